"""`nestfl data`, `predict` and `split` of tables of numbers, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from data.inputs import read_inputs
from data.series import SeriesData
from inference.serving.node_part import Form, answer, read_part
from nestfl.commands import app
from server_app.splitting import Splitter
from server_app.trained_level import load_level
from tests.support.sensor_tables import ACTIVITIES, sensor_run, sensor_table

pytestmark = pytest.mark.usefixtures("one_thread")


def nestfl(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sensor_run(tmp_path_factory.mktemp("run"), "strategy=scalefl")


def test_data_shows_columns_windows_and_clients(tmp_path: Path) -> None:
    file = sensor_table(tmp_path / "t.parquet", rows=50)
    settings = ("dataset.label=activity", "dataset.window=12", "dataset.column=person")
    code, told = nestfl("data", file, *settings, "dataset.partition=column", "--json")
    assert code == 0, told
    found = json.loads(told)
    assert found["holds"] == "series"
    assert found["columns"] == ["ax", "ay"]
    assert found["input"] == {"in_channels": 2, "length": 12}
    assert found["left_out"] == 4 * 3 * 2  # of 50 rows, 4 windows take 48
    assert sum(each["train"] + each["test"] for each in found["classes"].values()) == 4 * 3 * 4
    assert sorted(found["clients"]) == [f"person{n}" for n in range(4)]
    code, shown = nestfl("data", file, *settings, "dataset.test_column=person")
    assert code == 0, shown
    assert "taken as: series of 12 steps of 2 columns" in shown
    assert "rows in no window of 12: 24" in shown


def test_data_tells_all_that_is_no_number(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("v,label\n1,a\nx,a\n3,b\n,b\n5,b\n6,a\n")
    code, told = nestfl("data", file)
    assert code == 2
    assert "t.csv, row 3: v is 'x': expected a number" in told
    assert "t.csv, row 5: no v: expected a number" in told


def test_predict_answers_for_windows_of_a_table(run: Path, tmp_path: Path) -> None:
    measured = pq.read_table(run.parent / "sensors.parquet").select(["ay", "ax"]).slice(0, 30)
    pyarrow.csv.write_csv(measured, tmp_path / "new.csv")
    code, told = nestfl("predict", run, tmp_path / "new.csv", "--output", tmp_path / "answers.csv")
    assert code == 0, told
    rows = [line.split(",") for line in (tmp_path / "answers.csv").read_text().split()]
    assert [row[0] for row in rows[1:]] == ["new.csv:0", "new.csv:12"]
    assert all(set(row) & set(ACTIVITIES) for row in rows[1:])
    code, told = nestfl("predict", run, run.parent / "sensors.parquet")
    assert code == 0, told
    assert "accuracy" in told


@torch.no_grad()
def test_the_nodes_of_a_split_network_take_series_as_they_were_measured(
    run: Path, tmp_path: Path
) -> None:
    last = len(Splitter(run).level.exits)
    code, told = nestfl(
        "split", run, "--output", tmp_path / "parts", "--exits", f"1,{last}", "--threshold", 0.5
    )
    assert code == 0, told
    (device, low), (cloud, high) = (
        read_part(path) for path in sorted((tmp_path / "parts").iterdir())
    )
    assert device.takes[0] == (Form("float32", (2, 12)),)
    level = load_level(run)
    data = read_inputs(run.parent / "sensors.parquet", level.dataset).data
    assert isinstance(data, SeriesData)
    logits, features = answer(device, low, (data.series[:8],), 0)
    ((normalised, _),) = data.at(torch.arange(8)).batches(8)
    whole = Splitter(run).net(normalised)
    torch.testing.assert_close(logits, whole[0])
    torch.testing.assert_close(answer(cloud, high, features, device.last)[0], whole[-1])
