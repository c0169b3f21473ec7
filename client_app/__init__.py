"""What runs on a device: the ClientApp, what the device affords, and what it remembers."""

import os
import sys
from pathlib import Path

from protocol.environment import STARTED_IN

if Path(sys.argv[0]).name == "flwr-simulation":
    # Ray puts this process's directory first on its workers' path: were it not this app's, clients
    # would be loaded from whatever checkout the SuperLink was started in, without a word.
    os.environ.setdefault(STARTED_IN, os.getcwd())
    os.chdir(Path(__file__).resolve().parents[1])
