"""`nestfl plan`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nestfl.commands import app


def plan(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", "--model", "resnet20", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_installed_command_prints_the_published_table() -> None:
    command = [str(Path(sys.executable).with_name("nestfl")), "plan", "--model", "resnet110"]
    splits = ["--splits", "2/3:.7,.78:.7,48:.75,1.0:1"]
    done = subprocess.run([*command, *splits], capture_output=True, text=True, check=True)
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    table = [[cell.strip() for cell in row] for row in rows]
    assert [row[:6] for row in table] == [
        ["1", "36/54 0.67", "0.70", "0.210 M", "83.44 M", "0.121"],
        ["2", "42/54 0.78", "0.70", "0.466 M", "99.68 M", "0.269"],
        ["3", "48/54 0.89", "0.75", "0.867 M", "138.50 M", "0.501"],
        ["4", "54/54 1.00", "1.00", "1.731 M", "253.15 M", "1.000"],
    ]
    assert all(float(row[7].removesuffix(" ms")) > 0 for row in table)


def test_json_holds_the_plan_and_the_latencies() -> None:
    code, out, _ = plan("--levels", "3", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["model"] == "resnet20"
    assert [level["level"] for level in answer["levels"]] == [1, 2, 3]
    assert answer["levels"][-1]["parameters"] == 272_474
    assert answer["levels"][-1]["parameters_with_exits"] > 272_474
    assert all(level["latency_ms"] > 0 for level in answer["levels"])
    for level, ratio in zip(answer["levels"], (0.25, 0.5, 1), strict=True):
        assert abs(level["share"] / ratio - 1) <= 0.1


def test_a_network_that_takes_no_single_image_is_planned_without_latency() -> None:
    code, out, _ = plan("--model", "resnet18", "--image-size", "8", "--splits", "3:.5,8:1")
    assert code == 0
    assert "No latency: one input of this size shrinks to a pixel" in out


def test_width_alone_is_a_given_split_at_full_depth() -> None:
    _, out, _ = plan("--splits", "1.0:.5,1.0:1", "--json", "--no-latency")
    half, whole = json.loads(out)["levels"]
    assert half["exits"] == whole["exits"] == [9]
    assert half["parameters"] == half["parameters_with_exits"]


def test_budgets_become_levels_and_clients_are_told_theirs() -> None:
    code, out, _ = plan("--budgets", "70e3,71e3,140e3,145e3,300e3", "--no-latency")
    assert code == 0
    assert "Levels of the clients: 1, 1, 2, 2, 3" in out


def test_budgets_become_as_many_levels_as_are_asked_for() -> None:
    budgets = ("--budgets", "70e3,71e3,140e3,145e3,300e3", "--no-latency", "--json")
    code, out, _ = plan(*budgets, "--levels", "2")
    assert code == 0
    assert json.loads(out)["level_of_client"] == [1, 1, 1, 1, 2]


def test_options_reach_the_model() -> None:
    pool = plan("--splits", "5:1,9:1", "--option", "head=pool", "--json", "--no-latency")[1]
    conv = plan("--splits", "5:1,9:1", "--option", "head=conv", "--json", "--no-latency")[1]
    pooled, convolved = (json.loads(out)["levels"][0]["parameters"] for out in (pool, conv))
    assert convolved - pooled == 3 * (32 * 32 * 9 + 2 * 32)


def test_a_network_that_reads_text_is_counted_for_a_texts_length() -> None:
    model = ("--model", "bert-tiny", "--classes", "2", "--option", "vocabulary=100")
    short, long = (
        json.loads(plan(*model, "--splits", "2:1", "--tokens", n, "--json", "--no-latency")[1])
        for n in ("16", "32")
    )
    assert short["levels"][0]["parameters"] == long["levels"][0]["parameters"] == 492_162
    assert long["levels"][0]["macs"] > 2 * short["levels"][0]["macs"]


def test_a_network_that_reads_series_is_counted_for_their_channels_and_length() -> None:
    model = ("--model", "conv1d-micro", "--classes", "2", "--channels", "4", "--option", "kernel=1")
    short, long = (
        json.loads(plan(*model, "--splits", "1.0:1", "--length", n, "--json", "--no-latency")[1])
        for n in ("8", "16")
    )
    (one,), (two,) = short["levels"], long["levels"]
    assert one["parameters"] == two["parameters"]
    head = 48 * 2  # which reads the mean over time, however long
    assert two["macs"] - head == 2 * (one["macs"] - head)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "levels.png"
    code, _, _ = plan("--splits", "3:.5,9:1", "--no-latency", "--plot", str(picture))
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "vgg"], "unknown model 'vgg'; choose from bert"),
        (["--cost", "flops"], "unknown cost 'flops'; choose from parameters, macs, memory"),
        (["--ratios", "1,.5"], "expected to rise from above 0 to 1"),
        (["--ratios", ".5,x,1"], "'x' is not a number"),
        (["--ratios", ".5,1", "--splits", "3:.5,9:1"], "one of --ratios, --budgets and --splits"),
        (["--budgets", ""], "--budgets is empty: expected at least one, separated by commas"),
        (["--ratios", " "], "--ratios is empty: expected at least one, separated by commas"),
        (["--splits", ""], "--splits is empty: expected at least one, separated by commas"),
        (["--ratios", ".5,1", "--levels", "3"], "--levels 3 beside --ratios, which says how many"),
        (["--splits", "9:1", "--levels", "3"], "--levels 3 beside --splits, which says how many"),
        (["--budgets", "1e5,3e5", "--levels", "5"], "5 levels: these budgets make 1 to 2"),
        (["--splits", "3"], "split '3': expected DEPTH:WIDTH"),
        (["--splits", "3:0,9:1"], "--splits is 0.0: expected above 0, up to 1"),
        (["--splits", "12:.5,9:1"], "depth 12: resnet20 has units 1 to 9"),
        (["--levels", "0"], "--levels 0: expected 1 to 100"),
        (["--tolerance", "0.0001"], "no split costs 0.125 of the full model's 272,474 parameters"),
        (["--tolerance", "-1"], "--tolerance -1.0: expected 0 to 100"),
        (["--classes", "0"], "--classes 0: expected 1 to 1,048,576"),
        (["--width-step", "0"], "--width-step 0.0: expected 0.0001 to 1"),
        (["--depth-grid", "0"], "--depth-grid 0: expected 1 to"),
        (["--option", "head"], "option 'head': expected NAME=VALUE"),
        (["--option", "depth=3"], "unknown option 'depth' of resnet20"),
        (["--splits", "9:1", "--plot", "no/such/folder/p.png"], "No such file or directory"),
        (["--splits", "9:1", "--plot", "picture.xyz"], "Format 'xyz' is not supported"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], message: str) -> None:
    code, out, err = plan("--no-latency", *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("nestfl plan: ")
    assert err.count("\n") == 1


def test_nefls_submodels_are_planned_for_any_network() -> None:
    _, out, _ = plan("--cut", "depth", "--ratios", ".4,1", "--json", "--no-latency")
    part, whole = json.loads(out)["levels"]
    assert part["blocks"] == [[0, 1], [0, 1], [0]]
    assert (part["depth"], part["width"], part["exits"]) == (5, 1.0, [9])
    assert "blocks" not in whole
    code, out, _ = plan("--cut", "both", "--ratios", ".4,1", "--no-latency")
    assert code == 0
    assert "6/9 0.67" in out


def test_an_unknown_cut_is_answered_with_the_choices() -> None:
    code, _, err = plan("--cut", "deep")
    assert code != 0
    assert "unknown cut 'deep'; choose from width, depth, both, prefix" in err
    assert "--cut depth beside --splits" in plan("--cut", "depth", "--splits", "1.0:1")[2]
