"""The commands of `nestfl`, a file each: what it takes, and what it does.

`nestfl --help` imports all of them: what takes long to import is imported in functions.
"""

from nestfl.commands import (
    check_model,
    compare,
    data,
    fingerprint,
    plan,
    predict,
    report,
    run,
    runs,
    serve,
    split,
    variance,
)
from nestfl.commands.group import app

__all__ = [
    "app",
    "check_model",
    "compare",
    "data",
    "fingerprint",
    "plan",
    "predict",
    "report",
    "run",
    "runs",
    "serve",
    "split",
    "variance",
]
