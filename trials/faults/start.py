"""Faults of a start: fewer nodes than levels, and faults that cannot be tried here."""

from __future__ import annotations

import tempfile

from trials.faults.case import Case, Outcome, fault, not_run, survived
from trials.faults.processes import APP, BIN, Process, free_port
from trials.faults.runs import rounds_of

SMALL = (
    "rounds=2 evaluate.every=0 dataset.max_train=200 dataset.max_test=100 train.epochs=1 "
    "train.device=cpu"
)


@fault(300)
def two_nodes(case: Case) -> Outcome:
    """`flwr run .` with Flower's default of 2 nodes."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as ray:
        env = {
            "FLWR_HOME": str(case.folder / "flwr"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_TMPDIR": ray,
            "NESTFL_CACHE": str(case.shared / "cache"),
            "COLUMNS": "160",
        }
        hydra = f'hydra="{SMALL} name=run output={case.folder}"'
        command = [str(BIN / "flwr"), "run", str(APP), "--stream", "--run-config", hydra]
        run = Process(command, case.log("run"), case.folder, env)
        run.end(240)
    case.see(run, r"num-supernodes=\d")  # nestfl's own hint; Flower has another one
    trained = sorted(rounds_of(case.folder / "run")[0]["slices"])
    assert trained == ["1", "4"], f"levels {trained} were trained"
    assert "untrained" in run.output(), "untrained levels are not marked"
    return survived("levels 2 and 3, which nobody held")


@fault()
def hidden_gpu(case: Case) -> Outcome:
    """Simulated clients on a machine with a GPU."""
    return not_run("there is no GPU here; tests say what Flower is told")
