"""Tries the attacks of docs/security.md against real deployments on this machine.

    python -m trials.security                                 all; about 5 minutes on 2 cores
    python -m trials.security nothing device-key              some attackers
    python -m trials.security --markdown docs/security.md     and the tables in the docs

Each attack is tried against a deployment by the scripts of deploy/. All traffic stays on loopback,
and all loops end. Linux only. As root, all attacks run; without root, those of another user of this
machine report that they were not run.
"""
