"""A user's own photos, from the run to its answers: run, resumed, reported, predicted, split."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from data import own_source
from nestfl.commands.predict import Request, predict
from server_app import app as server
from server_app.config.composing import ConfigError, compose
from server_app.config.saved import CONFIG_FILE
from server_app.record.files import FLEET_FILE
from server_app.record.run_record import RunRecord
from server_app.start_checks import check
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.own_files import reviews, write_clients, write_csv, write_photo, write_photos
from tests.support.simulations import nestfl

CLIENTS = {
    name: {"cat": 8, "dog": 8, **({"yak": 4} if name == "dora" else {})}
    for name in ("anna", "ben", "cleo", "dora")
}
FAST = "dataset.max_train=null dataset.max_test=null evaluate.every=0"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    (tmp_path / "runs").mkdir()
    return federate_in(tmp_path / "runs")


def test_photos_of_clients_are_trained_on_resumed_and_answered_for(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = write_clients(tmp_path / "photos", CLIENTS)
    data = f"dataset=folder dataset.path={photos} dataset.partition=folders"
    _, lines = federate(f"{data} {FAST} name=photos")
    run = tmp_path / "runs" / "photos"
    assert lines[-1]["clients"]["replied"] == 4
    fleet = json.loads((run / FLEET_FILE).read_text())
    assert sorted(client["name"] for client in fleet["clients"].values()) == sorted(CLIENTS)
    assert fleet["classes"] == ["cat", "dog", "yak"]
    assert "only one client has: yak (dora)" in caplog.text
    assert "classes:" in (run / CONFIG_FILE).read_text()

    _, more = federate(f"resume={run} rounds=3")
    assert more[-1]["round"] == 3

    write_photo(tmp_path / "new" / "yak" / "huge.png", (5, 5, 200), (90, 60))
    report = predict(Request(run, tmp_path / "new", output=tmp_path / "answers.csv"))
    assert report.inputs.labelled
    (row,) = (tmp_path / "answers.csv").read_text().splitlines()[1:]
    assert row.startswith("yak/huge.png,")
    assert row.split(",")[1] in ("cat", "dog", "yak")
    everything = predict(Request(run))
    assert len(everything.inputs.data) == 13  # a fifth of 32, 32 and 4: 6, 6 and 1


def test_a_run_goes_on_with_the_data_that_it_began_with_and_with_no_other(
    federate: Federate, tmp_path: Path
) -> None:
    """It may lie elsewhere and be of another day; what was not recorded is not asked for."""
    photos = write_photos(tmp_path / "photos", {"cat": 20, "dog": 20})
    federate(f"dataset=folder dataset.path={photos} {FAST} name=run rounds=1")
    run = tmp_path / "runs" / "run"
    copied = tmp_path / "copied"
    shutil.copytree(photos, copied, copy_function=shutil.copyfile)
    own_source._arrays.cache_clear()
    _, lines = federate(f"resume={run} rounds=2 dataset.path={copied}")
    assert lines[-1]["round"] == 2

    def refusal(overrides: str = "") -> str:
        own_source._arrays.cache_clear()  # another process
        config = compose(f"resume={run} rounds=3 dataset.path={copied} {overrides}")
        with pytest.raises(ConfigError) as told:
            check(config)
        with pytest.raises(ConfigError, match=re.escape(str(told.value))):
            federate(f"resume={run} rounds=3 dataset.path={copied} {overrides}")
        return str(told.value)

    began = f"resume: {copied} has changed since the run was started: "
    same = "32 examples to train on and 8 to test on, as before, but not the same ones; going on,"
    assert refusal("dataset.test_seed=1").startswith(began + same)
    write_photo(copied / "cat" / "00.png", (1, 2, 3))
    assert refusal().startswith(began + same)
    for number in range(20, 25):
        write_photo(copied / "cat" / f"{number}.png")
    grown = "36 examples to train on and 9 to test on, which were 32 and 8; going on, it might test"
    assert refusal().startswith(began + grown)
    assert len(RunRecord(run).metrics()) == 2

    fleet = json.loads((run / FLEET_FILE).read_text())
    del fleet["data"]
    (run / FLEET_FILE).write_text(json.dumps(fleet))
    _, lines = federate(f"resume={run} rounds=3 dataset.path={copied}")
    assert lines[-1]["round"] == 3


def test_reviews_are_trained_on_by_who_wrote_them(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "reviews.csv", reviews(60))
    config = compose(
        f"dataset=table dataset.path={file} dataset.text=body dataset.label=stars "
        "dataset.partition=column dataset.column=user model=bert-tiny rounds=1 train.steps=1 "
        "strategy=heterofl strategy.widths=[0.5,1] fleet.budgets=[0.5,1] fleet.shares=[1,1] "
        f"fleet.clients=3 clients_per_round=3 output={tmp_path} name=texts report=false"
    )
    strategy = server.run(InProcessGrid(3), config)
    assert sorted(strategy.clients) == [0, 1, 2]
    write_csv(tmp_path / "new.csv", [{"body": "a text that nobody has rated"}])
    report = predict(Request(tmp_path / "texts", tmp_path / "new.csv"))
    assert not report.inputs.labelled


def test_feddf_distils_with_what_the_server_keeps_of_one_s_own_data(
    federate: Federate, tmp_path: Path
) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 40, "dog": 40})
    _, lines = federate(
        f"strategy=feddf strategy.distillation.steps=2 dataset=folder dataset.path={photos} "
        f"{FAST} rounds=1"
    )
    assert lines[-1]["clients"]["replied"] == 4


@pytest.mark.processes
def test_a_run_in_processes_of_its_own_reads_photos_under_a_path_with_spaces(
    tmp_path: Path,
) -> None:
    photos = write_photos(tmp_path / "my photos", {"cat": 12, "dog": 12})
    run = tmp_path / "my runs" / "first"
    settings = ["experiment=smoke", "rounds=1", "dataset.max_train=null", "dataset.max_test=null"]
    own = ["dataset=folder", f"dataset.path={photos}", "--run-dir", str(run)]
    done = nestfl("run", *settings, *own)
    assert done.returncode == 0, done.stdout + done.stderr
    answered = nestfl("predict", str(run), str(photos), "--json")
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["answers"][0]["label"] in ("cat", "dog")
