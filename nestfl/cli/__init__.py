"""The commands of `nestfl`, and what they take: a file each."""

from nestfl.cli import (
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
from nestfl.cli.group import app

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
