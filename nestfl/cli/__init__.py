"""The commands of `nestfl`, and what they take: a file each."""

from nestfl.cli import (
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
from nestfl.cli.group import app

__all__ = [
    "app",
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
