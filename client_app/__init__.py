"""Holds the device's side of a run: the ClientApp, the device's budget and its memory."""

import os
import sys
from pathlib import Path

from protocol.environment import STARTED_IN

if Path(sys.argv[0]).name == "flwr-simulation":
    # Ray puts this process's directory first on its workers' path. Outside this app, workers
    # would silently load clients from the checkout that the SuperLink was started in.
    os.environ.setdefault(STARTED_IN, os.getcwd())
    os.chdir(Path(__file__).resolve().parents[1])
