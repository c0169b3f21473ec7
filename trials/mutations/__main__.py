"""Puts faults into a copy of the checkout, runs the tests of each file, and prints the table.

    python -m trials.mutations [FILE ...] [--faults 8] [--seed 0]

Tests that do not end count as having caught a fault. The exit code is 1 if fewer than nine of ten
faults are caught, not counting those without an effect.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from trials.mutations.equal import EQUAL
from trials.mutations.faults import Fault, chosen, faults_of

ROOT = Path(__file__).parents[2]
WANTED = 0.9
TESTS: dict[str, tuple[str, ...]] = {
    "models/slicing.py": ("models/test_slicing.py",),
    "strategies/aggregation/nested_mean.py": ("strategies/aggregation/test_nested_mean.py",),
    "strategies/aggregation/exact_sums.py": (
        "strategies/aggregation/test_exact_sums.py",
        "strategies/aggregation/test_bounds.py",
    ),
    "strategies/aggregation/update.py": ("strategies/aggregation/test_bounds.py",),
    "strategies/levels/planning.py": ("strategies/levels/test_search.py",),
    "strategies/levels/cost.py": ("strategies/levels/test_cost.py",),
    "server_app/record/checkpoint.py": ("server_app/record/test_run_record.py",),
    "inference/thresholds.py": ("inference/test_inference.py",),
    "data/partition.py": ("data/test_partition.py", "data/test_natural_clients.py"),
    "strategies/nodes/enrolment.py": ("strategies/nodes/test_introductions.py",),
    "strategies/nodes/roster.py": ("strategies/nodes/test_roster.py",),
    "strategies/nodes/exchange.py": ("strategies/nodes/test_exchange.py",),
    "strategies/replies.py": (
        "strategies/test_replies.py",
        "client_app/test_memory.py",
    ),
    "strategies/methods/scalefl.py": ("strategies/methods/test_scalefl.py",),
    "training/shared_losses.py": (
        "training/test_shared_losses.py",
        "strategies/methods/test_scalefl.py",
    ),
}
"""The tests that belong to each file."""
SLOW = (
    "of_a_network",
    "memory_does_not_grow",
    "thousands",
    "number_of_threads",
    "kill_9",
    "msdnet24",
    "efficientnet_b4",
)
"""Words in the names of tests that take long and are not needed here."""
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0",
           "-m", "not processes", "-k", f"not ({' or '.join(SLOW)})")  # fmt: skip
NOT_COMPILED = ("strategies/aggregation/exact_sums.py", "strategies/aggregation/update.py")
"""Files whose numba loops run as Python here, where compiling them takes longer than the tests."""
HEAVY = ("torch", "torch._dynamo", "numba", "flwr.serverapp", "flwr.clientapp", "datasets",
         "flwr_datasets.partitioner", "sklearn.cluster", "sklearn.datasets", "hydra", "pytest",
         "hypothesis.extra.numpy", "tensorboard.plugins")  # fmt: skip
"""Modules that the tests import slowly: they are imported once, and each run is forked after it."""
NOT_COPIED = (".git", ".venv", "__pycache__", ".hypothesis", "*.egg-info", "outputs", "runs")


def run_tests(checkout: Path, file: str) -> None:
    """Run the tests of a file in this process, and end it with their exit code."""
    import numba
    import pytest

    os.setsid()
    os.chdir(checkout)
    sys.path[0] = os.environ["PYTHONPATH"] = str(checkout)
    os.environ["NUMBA_DISABLE_JIT"] = str(int(file in NOT_COMPILED))
    numba.config.reload_config()
    with Path("tests.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os._exit(pytest.main([*OPTIONS, *(f"tests/{name}" for name in TESTS[file])]))


def verdict(checkout: Path, file: str, seconds: float | None = None) -> str:
    """Return the result of a file's tests, run in a process of their own."""
    process = multiprocessing.get_context("fork").Process(
        target=run_tests, args=(checkout, file), daemon=True
    )
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return "endless"
    return "survived" if process.exitcode == 0 else "caught"


def outcomes(checkout: Path, file: str, faults: list[Fault]) -> Counter[str]:
    """Put each fault into the file in turn, and count the tests' results."""
    start = time.monotonic()
    if verdict(checkout, file) != "survived":
        sys.exit(f"tests fail without any fault:\n{(checkout / 'tests.log').read_text()}")
    limit = 30 + 3 * (time.monotonic() - start)
    found: Counter[str] = Counter()
    source = (checkout / file).read_bytes()
    for number, fault in enumerate(faults):
        (checkout / file).write_bytes(fault.put_into(source))
        os.utime(checkout / file, (number, number))  # so that no older bytecode is used
        outcome = verdict(checkout, file, limit)
        if outcome == "survived" and (file, fault.text, fault.change) in EQUAL:
            outcome = "equal"
        found[outcome] += 1
        print(f"  {fault.line:4} {outcome:9} {fault.change}", flush=True)
    (checkout / file).write_bytes(source)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.mutations")
    parser.add_argument("files", nargs="*", metavar="FILE", help="source files; all by default")
    parser.add_argument("--faults", type=int, default=8, help="how many for each file")
    parser.add_argument("--seed", type=int, default=0, help="which ones are chosen")
    arguments = parser.parse_args()
    if unknown := set(arguments.files) - TESTS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(TESTS)}")
    os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads cannot be forked
    for module in HEAVY:
        import_module(module)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is removed, too
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_COPIED))
        os.environ["NUMBA_CACHE_DIR"] = str(Path(folder) / "numba")
        for file in arguments.files or TESTS:
            print(file, flush=True)
            faults = chosen(faults_of(checkout, file), arguments.faults, arguments.seed)
            table[file] = outcomes(checkout, file, faults)
    table["all"] = sum(table.values(), Counter())
    for file, found in table.items():
        caught = found["caught"] + found["endless"]
        made = caught + found["survived"]
        print(f"{file:40} {caught:4} of {made:3} caught, {found['equal']:3} are equal in effect")
    return int(caught < WANTED * made)


if __name__ == "__main__":
    sys.exit(main())
