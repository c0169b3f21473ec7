"""Runs attackers one after the other against a deployment, and prints the tables."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from trials.faults.processes import adopt_orphans, kill_all
from trials.security.case import ATTACKERS, WHO, Attacker, Findings, Found
from trials.security.site import NGINX, Site
from trials.security.table import cells, requests, update_markdown

for group in ("outsiders", "insiders"):
    import_module(f"trials.security.{group}")  # fills ATTACKERS, in this order


def attack(site: Site, attackers: list[Attacker]) -> dict[str, Findings]:
    """Let all attackers try, one after the other."""
    found = {}
    for attacker in attackers:
        began = time.monotonic()
        try:
            found[attacker.name] = attacker.attack(site)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            found[attacker.name] = {"FAILED": Found(None, reason)}
        took = time.monotonic() - began
        print(f"{WHO[attacker.name]} ({took:.0f} s)", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.security")
    parser.add_argument("names", nargs="*", metavar="NAME", help="attackers; all by default")
    parser.add_argument("--list", action="store_true", help="say which attackers there are")
    parser.add_argument("--markdown", type=Path, help="a page whose tables get the new rows")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - ATTACKERS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(ATTACKERS)}")
    chosen = [ATTACKERS[name] for name in arguments.names] or list(ATTACKERS.values())
    if arguments.list:
        print("\n".join(f"{one.name:20} {WHO[one.name]}" for one in chosen))
        return 0
    if NGINX is None:
        parser.error("there is no nginx on this machine (Debian: apt-get install nginx-light)")
    return run_all(chosen, arguments.markdown)


def run_all(attackers: list[Attacker], markdown: Path | None) -> int:
    """Print the tables; return 1 if an attack could not be tried, and keep its directory."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that running processes end, too
    root = Path(tempfile.mkdtemp(prefix="security-"))
    root.chmod(0o755)  # another user works here
    try:
        site = Site(root / "site")
        site.start()
        found = attack(site, attackers)
    finally:
        kill_all(os.getpid())
    for name, findings in found.items():
        print("\n".join(["", WHO[name], cells(name, findings), requests(findings)]))
    failed = any("FAILED" in findings for findings in found.values())
    if markdown and not failed:
        update_markdown(markdown, found)
    if failed:
        print(f"what is left of it is in {root}")
    else:
        shutil.rmtree(root)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
