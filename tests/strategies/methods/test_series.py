"""Methods train a network for series, on a table of numbers whose people are its clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app.record.run_record import RunRecord
from server_app.trained_level import load_level
from tests.support.sensor_tables import sensor_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "method",
    [
        *("scalefl", "heterofl", "nefl", "fjord", "depthfl"),
        "fedfa strategy.trials=2",
        "feddf dataset.server=0.3 strategy.distillation.steps=2",
    ],
)
def test_a_round_of_a_method_trains_on_windows_of_numbers(method: str, tmp_path: Path) -> None:
    run = sensor_run(tmp_path, f"strategy={method} evaluate.every=0 checkpoint.best=false")
    (line,) = RunRecord(run).metrics()
    assert line["clients"]["replied"] == line["clients"]["sampled"] == 4
    level = load_level(run)
    assert level.task.input(1).shape == (1, 2, 12)
    assert all(bool(tensor.isfinite().all()) for tensor in level.net.state_dict().values())
    assert level.dataset.columns == ("ax", "ay")
