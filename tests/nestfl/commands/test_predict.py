"""`nestfl predict`, as a user types it."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from rich.console import Console
from torch import Tensor

from data.catalog import DataError
from data.clients import all_clients, client_data, global_test
from data.images import ImageData
from data.inputs import read_inputs
from data.spec import DatasetSpec
from inference import exits_taken, freeze
from nestfl.commands import app
from nestfl.commands import predict as predict_command
from nestfl.watching import passes
from server_app import app as server
from server_app import predictor as predicting
from server_app.config.composing import compose
from server_app.predictor import Predictor
from server_app.record import checkpoint
from server_app.trained_level import load_level
from tests.support.grids import InProcessGrid
from training.testing import evaluate


def trained_run(output: Path, overrides: str = "") -> Path:
    """A run directory of four clients, one in each level, on digits."""
    config = compose(
        f"strategy=scalefl model=resnet20 fleet=small rounds=2 train.epochs=3 train.batch_size=16 "
        f"train.augment=false evaluate.every=0 dataset.max_train=600 output={output} name=run "
        f"{overrides}"
    )
    server.run(InProcessGrid(config.fleet.clients), config)
    return output / str(config.name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def no_time_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "LEAST_SECONDS", 0.0)


def predict(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def answered(*arguments: object) -> dict[str, Any]:
    code, out, err = predict(*arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# --- answers ---------------------------------------------------------------------------------


def test_by_default_the_largest_level_runs_to_the_end_on_the_test_set(run: Path) -> None:
    found = answered(run)
    level = load_level(run)
    test = global_test(level.dataset)
    assert (found["level"], found["round"], found["inputs"]) == (4, 2, len(test))
    assert (found["share"], found["thresholds"]) == (1, None)
    assert found["left_at_exit"] == [0, 0, 0, 1]
    hits = [answer["class"] == answer["label"] for answer in found["answers"]]
    assert found["accuracy"] == pytest.approx(np.mean(hits))
    # Frozen statistics are of training data, the rounds' tests were of the batch: near, not equal.
    in_batches = evaluate(level.net, test, level.settings)[-1].accuracy
    assert found["accuracy"] == pytest.approx(in_batches, abs=0.1)


def test_a_checkpoint_answers_as_its_run_does(run: Path) -> None:
    newest = sorted((run / "checkpoints").glob("round-*"))[-1]
    assert answered(newest)["answers"] == answered(run)["answers"]


def test_the_best_checkpoint_answers_where_it_is_asked_for(tmp_path: Path) -> None:
    run = trained_run(tmp_path, "evaluate.every=1 train.epochs=1 checkpoint.keep=3")
    first = checkpoint.load(run / "checkpoints" / "round-000001.safetensors")
    best = checkpoint.write(run / "checkpoints" / "best.safetensors", 1, first.tensors, first.state)
    assert answered(run, "--best") == answered(best) == answered(first.path)
    assert answered(run, "--best")["round"] == 1
    assert answered(run)["round"] == 2
    score = first.state["metrics"]["validation"]
    assert answered(run, "--best")["validation"] == score
    assert (
        f"Level 4 after round 1 (validation {score:.2%}): 360 inputs" in predict(run, "--best")[1]
    )
    code, _, told = predict(best, "--best")
    assert (code, told) == (
        2,
        f"nestfl predict: --best chooses a checkpoint: give the run's folder, not {best}\n",
    )
    best.unlink()
    code, _, told = predict(run, "--best")
    assert code == 2
    assert f"{run} has no best checkpoint: a run keeps one from its first test on, where" in told


def test_a_budget_is_kept_and_early_answers_are_cheaper(run: Path) -> None:
    found = answered(run, "--budget", "0.85")
    assert found["share"] == pytest.approx(0.85, abs=0.06)  # thresholds are of other data
    assert sum(found["left_at_exit"]) == pytest.approx(1)
    assert found["left_at_exit"][0] > 0
    exits = [answer["exit"] for answer in found["answers"]]
    paid = dict(zip(found["exits"], found["macs_by_exit"], strict=True))
    assert found["macs"] == pytest.approx(np.mean([paid[unit] for unit in exits]))
    assert found["full_macs"] < found["macs_by_exit"][-1]  # early heads are on the path


def test_on_validation_data_the_budget_is_met_within_a_sample(run: Path) -> None:
    predictor = Predictor(load_level(run), 64)
    plan = predictor.plan_for_budget(0.85, "share")
    assert plan.thresholds is not None
    costs = torch.tensor(predictor.macs.shares.exits)
    spent = float(costs[exits_taken(predictor.scores, plan.thresholds)].mean())
    slack = float(costs[-1] - costs[0]) / predictor.scores.shape[1]
    assert 0.85 - slack - 1e-6 <= spent <= 0.85 + 1e-6


def test_a_budget_that_is_enough_runs_to_the_end(run: Path) -> None:
    assert answered(run, "--budget", "1.5")["thresholds"] is None
    assert answered(run, "--budget-ms", "1e6")["left_at_exit"] == [0, 0, 0, 1]


def test_a_loss_that_is_allowed_makes_answers_cheaper(run: Path) -> None:
    first_exit = answered(run, "--max-loss", "100")
    assert first_exit["left_at_exit"][0] > 0.9  # whatever it loses
    predictor = Predictor(load_level(run), 64)
    plan = predictor.plan_for_loss(2.0)
    taken = exits_taken(predictor.scores, plan.thresholds or [math.inf] * 3)
    early, last = predictor._hits.gather(0, taken[None]), predictor._hits[-1]
    assert early.double().mean() >= last.double().mean() - 0.02
    assert answered(run, "--max-loss", "2")["share"] <= 1


def test_answers_do_not_depend_on_the_batch(run: Path) -> None:
    together, alone = (
        answered(run, "--threshold", "0.6", "--batch-size", size)["answers"] for size in (256, 7)
    )
    for one, other in zip(together, alone, strict=True):
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-4)
        assert {**one, "confidence": 0} == {**other, "confidence": 0}


def test_a_threshold_is_what_early_answers_reach(run: Path) -> None:
    found = answered(run, "--threshold", "0.25", "--level", "3")
    assert found["thresholds"] == [0.25, 0.25]
    assert found["exits"] == [6, 7, 8]
    early = [answer for answer in found["answers"] if answer["exit"] != 8]
    assert early
    assert all(answer["confidence"] >= 0.25 for answer in early)


def test_answers_are_printed_and_written(run: Path, tmp_path: Path) -> None:
    code, out, _ = predict(run, "--threshold", "0.6", "--output", tmp_path / "answers.csv")
    assert code == 0
    assert "The first 10 of 360 answers" in out
    assert re.search(r"Level 4 after round 2 \(validation .*%\): 360 inputs, accuracy", out)
    rows = list(csv.DictReader((tmp_path / "answers.csv").open()))
    predict(run, "--threshold", "0.6", "--output", tmp_path / "answers.json")
    listed = json.loads((tmp_path / "answers.json").read_text())["answers"]
    assert [row["class"] for row in rows] == [answer["class"] for answer in listed]
    assert list(rows[0]) == ["input", "class", "exit", "confidence", "label"]


def test_a_table_and_a_picture_of_budgets(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "budgets.png"
    code, out, _ = predict(run, "--table", "--plot", picture)
    assert code == 0
    assert "speed-up" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = answered(run, "--table")["budgets"]
    assert found[-1]["budget"] == found[-1]["speedup"] == found[-1]["share"] == 1
    assert [row["budget"] for row in found] == sorted(row["budget"] for row in found)
    assert found[0]["share"] < 0.75
    assert all(row["ms"] > 0 and 0 < row["accuracy"] <= 1 for row in found)


@pytest.mark.parametrize("asked", [{"table": True}, {"budget": 0.8}])
def test_a_narrow_terminal_loses_nothing(run: Path, asked: dict[str, Any]) -> None:
    report = predict_command.predict(predict_command.Request(run, **asked))

    def shown(width: int) -> str:
        screen = io.StringIO()
        predict_command.show(report, Console(file=screen, width=width))
        assert max(map(len, screen.getvalue().splitlines())) <= width
        return screen.getvalue()

    words = [word for word in shown(1000).split() if re.search(r"\w", word)]
    for width in (60, 30):
        together = "".join(shown(width).split())
        assert [word for word in words if word not in together] == []


def test_passes_are_watched_on_a_terminal_and_not_beside_json(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def watch(batches: Iterable[Tensor], count: int, what: str) -> Iterator[Tensor]:
        taken = list(batches)
        assert 0 < len(taken) <= count
        seen.append(what)
        return iter(taken)

    monkeypatch.setattr(passes, "watched_on", lambda console: watch)
    assert predict(run, "--budget", "0.8", "--batch-size", "7")[0] == 0
    assert seen == ["gathering statistics", "fitting thresholds", "answering"]
    assert predict(run, "--json")[0] == 0
    assert len(seen) == 3


# --- inputs ----------------------------------------------------------------------------------


def png(folder: Path, name: str, pixels: Any) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def test_inputs_of_all_kinds_with_and_without_labels(run: Path, tmp_path: Path) -> None:
    spec = load_level(run).dataset
    test = global_test(spec)
    assert isinstance(test, ImageData)
    images, labels = test.images[:12].numpy(), test.labels[:12].numpy()
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        png(tmp_path / "flat", f"{row:02d}.png", image[0])
        png(tmp_path / "classes", f"{label}/{row:02d}.png", image[0])
    np.savez(tmp_path / "plain.npz", x=images)
    np.savez(tmp_path / "labelled.npz", x=images, y=labels)
    files = sorted((tmp_path / "flat").iterdir())
    encoded = [{"bytes": file.read_bytes(), "path": None} for file in files]
    pq.write_table(pa.table({"image": encoded}), tmp_path / "plain.parquet")
    pq.write_table(pa.table({"image": encoded, "label": labels}), tmp_path / "labelled.parquet")

    for name in ("flat", "plain.npz", "labelled.npz", "plain.parquet", "labelled.parquet"):
        inputs = read_inputs(tmp_path / name, spec)
        assert isinstance(inputs.data, ImageData)
        assert torch.equal(inputs.data.images, test.images[:12])
        assert inputs.labelled == name.startswith("labelled")
    by_class = read_inputs(tmp_path / "classes", spec)
    assert by_class.data.labels.tolist() == sorted(labels.tolist())

    first = [answer["class"] for answer in answered(run)["answers"][:12]]
    plain, labelled = (answered(run, tmp_path / name) for name in ("flat", "labelled.parquet"))
    assert plain["accuracy"] is None
    assert labelled["accuracy"] == pytest.approx(np.mean(np.array(first).astype(int) == labels))
    for found, names in ((plain, "{:02d}.png"), (labelled, "labelled.parquet:{}")):
        assert [answer["class"] for answer in found["answers"]] == first
        assert [answer["input"] for answer in found["answers"]] == list(
            map(names.format, range(12))
        )
    (alone,) = answered(run, tmp_path / "flat" / "03.png")["answers"]
    assert (alone["input"], alone["class"]) == ("03.png", first[3])
    code, out, _ = predict(run, tmp_path / "flat", "--table")
    assert code == 0
    assert "speed-up" in out
    assert "no labels" in predict(run, tmp_path / "flat", "--plot", tmp_path / "p.png")[2]


def test_a_broken_image_of_a_folder_is_left_out_and_told(run: Path, tmp_path: Path) -> None:
    for number in range(4):
        png(tmp_path, f"photos/{number}.png", np.full((8, 8), 60 * number, np.uint8))
    whole = {each["input"]: each for each in answered(run, tmp_path / "photos")["answers"]}
    broken = tmp_path / "photos" / "1.png"
    broken.write_bytes(broken.read_bytes()[:45])
    os.mkfifo(tmp_path / "photos" / "4.png")
    code, out, err = predict(run, tmp_path / "photos", "--json")
    assert code == 1
    found = json.loads(out)
    assert found["answers"] == [whole[f"{number}.png"] for number in (0, 2, 3)]
    assert [each.partition(" cannot")[0] for each in found["broken"]] == [
        *(str(broken), str(tmp_path / "photos" / "4.png"))
    ]
    assert f"nestfl predict: warning: {broken} cannot be decoded: " in err
    code, out, err = predict(run, broken)
    assert (code, out) == (2, "")
    assert f"nestfl predict: {broken} cannot be decoded: " in err


def test_folders_that_are_no_classes_give_no_labels(tmp_path: Path) -> None:
    png(tmp_path, "holiday/a.png", np.zeros((8, 8), np.uint8))
    png(tmp_path, "3/b.png", np.zeros((8, 8), np.uint8))
    assert not read_inputs(tmp_path, DatasetSpec("digits")).labelled
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in"):
        read_inputs(tmp_path / "empty", DatasetSpec("digits"))


def test_all_clients_together_are_each_of_them(run: Path) -> None:
    spec = load_level(run).dataset
    everyone = all_clients(spec)
    single = [client_data(spec, number) for number in range(spec.clients)]
    images: list[Tensor] = [cast(ImageData, one.train).images for one in single]
    assert torch.equal(cast(ImageData, everyone.train).images, torch.cat(images))
    assert torch.equal(
        everyone.validation.labels, torch.cat([one.validation.labels for one in single])
    )


# --- checkpoints -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heterofl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with static norms; five nodes came, where the fleet said four."""
    output = tmp_path_factory.mktemp("runs")
    config = compose(
        "strategy=heterofl model=resnet20 fleet=small rounds=2 train.epochs=1 evaluate.every=0 "
        f"dataset.max_train=300 dataset.max_test=60 output={output} name=run"
    )
    server.run(InProcessGrid(5), config)
    return output / "run"


def test_static_norms_keep_the_statistics_of_the_last_evaluation(heterofl: Path) -> None:
    level = load_level(heterofl, 2)
    assert not level.outdated_statistics
    assert Predictor(level, 32).net is level.net
    found = answered(heterofl, "--level", "2")
    reported = json.loads((heterofl / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["accuracy"] == pytest.approx(reported["levels"]["2"]["accuracy"])
    assert found["exits"] == [9]


def test_statistics_of_earlier_weights_are_gathered_anew(heterofl: Path) -> None:
    first = sorted((heterofl / "checkpoints").glob("round-*"))[0]
    level = load_level(first)
    assert level.round == 1
    assert level.outdated_statistics
    assert Predictor(level, 32).net is not level.net
    assert answered(first)["round"] == 1


def test_the_parts_are_those_of_the_clients_that_came(heterofl: Path) -> None:
    assert load_level(heterofl).dataset.clients == 5


def test_a_frozen_copy_leaves_the_level_as_it_was(run: Path) -> None:
    net = load_level(run).net
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    freeze(net, [torch.randn(4, 1, 8, 8)])
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


# --- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--level", "7"], "no level 7 in this run; choose from 1, 2, 3, 4"),
        (["--budget", "0.6", "--threshold", "0.5"], "one of --budget, --budget-ms, --threshold"),
        (["--max-loss", "-1"], "--max-loss -1.0: expected 0 to 100"),
        (["--level", "1", "--max-loss", "1"], "level 1 has one exit"),
        (["--budget", "0"], "--budget 0.0: expected above 0"),
        (["--budget", "0.1"], "a budget of 0.1 is below 0.6765, the cost of the first exit"),
        (["--budget-ms", "1e-9"], "a budget of 1e-09 is below"),
        (["--level", "1", "--budget", "0.9"], "level 1 has one exit: it always runs to the end"),
        (["--level", "1", "--threshold", "0.9"], "level 1 has one exit"),
        (["--threshold", "1.5"], "--threshold 1.5: expected 0 to 1"),
        (["--batch-size", "0"], "--batch-size 0: expected 1 to"),
        (["--output", "answers.txt"], "--output answers.txt: expected a name in .csv or .json"),
        (["--table", "--budget", "0.6"], "--table and --plot try budgets of their own"),
        (["nowhere"], "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_clear_line(run: Path, arguments: list[str], message: str) -> None:
    code, out, err = predict(run, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("nestfl predict: ")
    assert err.count("\n") == 1


def test_a_run_without_a_checkpoint_or_of_another_model_says_so(run: Path, tmp_path: Path) -> None:
    (nowhere := tmp_path / "no" / "where").mkdir(parents=True)
    assert "is no run directory and in none" in predict(nowhere)[2]
    shutil.copy(run / "config.yaml", tmp_path / "config.yaml")
    (tmp_path / "checkpoints").mkdir()
    assert "no whole checkpoint in" in predict(tmp_path)[2]
    checkpoint.save(tmp_path / "checkpoints", 1, {"round": torch.tensor(1)}, {})
    assert "the checkpoint is of another model or plan" in predict(tmp_path)[2]
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints", dirs_exist_ok=True)
    config = (run / "config.yaml").read_text().replace("validation: 0.1", "validation: 0.0")
    (tmp_path / "config.yaml").write_text(config)
    assert "no validation data to fit thresholds on" in predict(tmp_path, "--budget", "0.8")[2]
