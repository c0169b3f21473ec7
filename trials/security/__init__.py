"""The attacks of docs/security.md, tried against real deployments on this machine.

    python -m trials.security                                 all; about 10 minutes on 2 cores
    python -m trials.security nothing device-key              some attackers
    python -m trials.security --markdown docs/security.md     and the tables in the docs

Each is tried twice: `before`, with Flower's own commands and nothing else, and `after`, with the
scripts of deploy/. All traffic stays on loopback, and all loops end. Linux only; as root, all of it
runs; else the attacks of another user of this machine say that they were not run.
"""
