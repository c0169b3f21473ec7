"""The fault matrix: nestfl is killed, starved and lied to, and what the user saw is written down.

    python -m benchmarks.faults                              all faults; about 25 minutes on 2 cores
    python -m benchmarks.faults killed-run late-node         some
    python -m benchmarks.faults --markdown docs/faults.md    and the table in the docs
    FAULTS_PATIENCE=4 python -m benchmarks.faults            on a busy machine: it waits longer

Linux only: processes are found in /proc. As root, all faults run; else those that mount a small
disk or change to another user say that they were not run.
"""
