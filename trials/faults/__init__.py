"""Runs the fault matrix: each fault hits a real run, and the table records the user's view.

    python -m trials.faults                              all faults; about 25 minutes on 2 cores
    python -m trials.faults killed-run late-node         some
    python -m trials.faults --markdown docs/faults.md    and the table in the docs
    FAULTS_PATIENCE=4 python -m trials.faults            on a busy machine: it waits longer

Linux only: processes are found in /proc. As root, all faults run; without root, those that mount a
small disk or change to another user report that they were not run.
"""
