"""`flower-superlink`, that answers to its own user alone, and lets nobody speak for another.

    [PROXY_USER=www-data] [NESTFL_LISTENER=NUMBER] nestfl-superlink ARGUMENTS

The arguments are those of `flower-superlink`.
"""

from __future__ import annotations

import os
import pwd
import socket
import sys

from flwr.superlink.cli.flower_superlink import flower_superlink

from nestfl.guarded.migrations import allow_spaces
from nestfl.guarded.own_name import guard_names
from nestfl.guarded.own_user import guard_servers

PROXY_USER = "PROXY_USER"
LISTENER = "NESTFL_LISTENER"
"""The file descriptor of the port that it is to answer at, where who started it has taken that."""


def main() -> None:
    """Serve until it is stopped."""
    name, taken = os.environ.get(PROXY_USER), os.environ.pop(LISTENER, None)
    listener = socket.socket(fileno=int(taken)) if taken else None
    try:
        guard_servers(listener, pwd.getpwnam(name).pw_uid if name else None)
    except KeyError:
        sys.exit(f"{PROXY_USER} is {name!r}: expected a user of this machine")
    guard_names()
    allow_spaces()
    flower_superlink()


if __name__ == "__main__":
    main()
