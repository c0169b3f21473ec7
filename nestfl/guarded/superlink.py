"""`flower-superlink` that answers its own user only, and refuses messages in another's name.

    [PROXY_USER=www-data] nestfl-superlink ARGUMENTS

The arguments are those of `flower-superlink`.
"""

from __future__ import annotations

import os
import pwd
import sys

from flwr.superlink.cli.flower_superlink import flower_superlink

from nestfl import leave_app
from nestfl.guarded.migrations import allow_spaces
from nestfl.guarded.own_name import guard_names
from nestfl.guarded.own_user import guard_servers

PROXY_USER = "PROXY_USER"


def main() -> None:
    """Serve until it is stopped."""
    leave_app()
    name = os.environ.get(PROXY_USER)
    try:
        guard_servers(proxy_user=pwd.getpwnam(name).pw_uid if name else None)
    except KeyError:
        sys.exit(f"{PROXY_USER} is {name!r}: expected a user of this machine")
    guard_names()
    allow_spaces()
    flower_superlink()


if __name__ == "__main__":
    main()
