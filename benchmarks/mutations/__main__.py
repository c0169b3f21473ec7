"""Puts faults into a copy of the checkout, runs the tests that belong to each, prints the table.

    python -m benchmarks.mutations [FILE ...] [--faults 8] [--seed 0] [--survivors]

The exit code is 1 if the tests catch fewer than nine of ten, those equal in effect aside.
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
from importlib import import_module
from pathlib import Path

from benchmarks.mutations.equal import EQUAL
from benchmarks.mutations.faults import Fault, chosen, faults_of

ROOT = Path(__file__).parents[2]
WANTED = 0.9
TESTS: dict[str, tuple[str, ...]] = {
    "models/slicing.py": ("models/test_slicing.py",),
    "strategies/aggregation/nested_mean.py": ("strategies/aggregation",),
    "strategies/aggregation/exact_sums.py": ("strategies/aggregation",),
    "strategies/aggregation/bounds.py": ("strategies/aggregation/test_bounds.py",),
    "strategies/levels/planning.py": ("strategies/levels",),
    "strategies/levels/cost.py": ("strategies/levels",),
    "server_app/record/checkpoint.py": ("server_app/record/test_run_record.py",),
    "inference/thresholds.py": ("inference/test_inference.py",),
    "data/partition.py": ("data/test_partition.py",),
    "strategies/rounds/enrolment.py": ("strategies/rounds/test_introductions.py",),
    "strategies/rounds/attendance.py": ("strategies/rounds/test_enrolment.py",),
    "strategies/rounds/streaming.py": ("strategies/rounds/test_streaming.py",),
    "strategies/rounds/folding.py": ("strategies/rounds",),
    "training/losses.py": ("training/test_losses.py", "strategies/methods/test_scalefl.py"),
}
"""The tests that belong to each file."""
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not processes", "--hypothesis-seed=0")
HEAVY = ("torch", "torch._dynamo", "numba", "flwr.serverapp", "flwr.clientapp", "datasets",
         "flwr_datasets.partitioner", "sklearn.cluster", "sklearn.datasets", "hydra", "pytest",
         "hypothesis.extra.numpy", "tensorboard.plugins")  # fmt: skip
"""What the tests import, and takes seconds: it is imported once, and each run starts from there."""
NOT_COPIED = (".git", ".venv", "__pycache__", ".hypothesis", "*.egg-info", "outputs", "runs")


def run_tests(checkout: Path, tests: tuple[str, ...]) -> None:
    """Run some tests of a checkout in this process, and end it with their exit code."""
    os.setsid()
    os.chdir(checkout)
    sys.path[0] = os.environ["PYTHONPATH"] = str(checkout)
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]
    with Path("tests.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import pytest

    os._exit(pytest.main([*OPTIONS, *(f"tests/{name}" for name in tests)]))


def passes(checkout: Path, tests: tuple[str, ...], seconds: float | None = None) -> bool:
    """Whether tests pass, in a process of their own and in time: an endless loop does not."""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(checkout, tests))
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def survivors_of(checkout: Path, faults: list[Fault], tests: tuple[str, ...]) -> list[Fault]:
    """Put each fault into its file, and return those that no test notices."""
    start = time.monotonic()
    if not passes(checkout, tests):
        sys.exit(f"tests fail without any fault: see {checkout / 'tests.log'}")
    limit = 30 + 3 * (time.monotonic() - start)
    survivors = []
    for number, fault in enumerate(faults):
        file = checkout / fault.file
        source = file.read_bytes()
        file.write_bytes(fault.put_into(source))
        os.utime(file, (number, number))  # so that no bytecode of another fault is taken for its
        survived = passes(checkout, tests, limit)
        file.write_bytes(source)
        if survived:
            survivors.append(fault)
        outcome = "survived" if survived else "caught"
        print(f"  {fault.line:4} {outcome:9} {fault.change}", flush=True)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations")
    parser.add_argument("files", nargs="*", metavar="FILE", help="source files; all by default")
    parser.add_argument("--faults", type=int, default=8, help="how many for each file")
    parser.add_argument("--seed", type=int, default=0, help="which ones are chosen")
    arguments = parser.parse_args()
    if unknown := set(arguments.files) - TESTS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(TESTS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked
    for module in HEAVY:
        import_module(module)
    checkout = Path(tempfile.mkdtemp(prefix="mutations-")) / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_COPIED))
    os.environ["NUMBA_CACHE_DIR"] = str(checkout.parent / "numba")
    table, made, unnoticed = [], 0, 0
    for file in arguments.files or TESTS:
        print(file, flush=True)
        faults = [
            fault
            for fault in chosen(faults_of(checkout, file), arguments.faults, arguments.seed)
            if (file, fault.text, fault.change) not in EQUAL
        ]
        survived = survivors_of(checkout, faults, TESTS[file])
        table.append(f"{file:40} {len(faults) - len(survived):4} of {len(faults):3} caught")
        made, unnoticed = made + len(faults), unnoticed + len(survived)
    shutil.rmtree(checkout.parent)
    print(*table, sep="\n")
    print(f"{'all':40} {made - unnoticed:4} of {made:3} caught")
    return int(made - unnoticed < WANTED * made)


if __name__ == "__main__":
    sys.exit(main())
