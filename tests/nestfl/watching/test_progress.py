"""A run's reports while it goes on: its progress, the time left, and the reason of a failure."""

from __future__ import annotations

import io
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data.catalog import DataError
from nestfl.launching import failure
from nestfl.watching.passes import watched_on
from nestfl.watching.progress import Follower, JsonLines, Lines, RunState, display_on
from server_app import app as server
from server_app.config.composing import compose
from server_app.predictor import Watch
from server_app.record.metrics import round_line
from tests.support.federations import federate_in
from tests.support.grids import InProcessGrid


def test_half_a_line_waits_for_its_end_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"old": 1}\n')
    lines = JsonLines(path)
    assert lines.new() == []
    with path.open("a") as file:
        for text, expected in [
            ('{"a": ', []),
            ("1}", []),
            ('\n{"b": 2}\n{"c', [{"a": 1}, {"b": 2}]),
            ('\n[3]\n{"d": 4}\n', [{"d": 4}]),
        ]:
            file.write(text)
            file.flush()
            assert lines.new() == expected


def test_lines_that_a_resumed_run_cuts_off_are_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n')
    lines = JsonLines(path)
    path.write_text('{"round": 1}\n{"round": 2}\n')
    assert lines.new() == []
    with path.open("a") as file:
        file.write('{"round": 3}\n')
    assert lines.new() == [{"round": 3}]


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "lines.jsonl")
    assert lines.new() == []
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n')
    assert lines.new() == [{"a": 1}]


def test_time_left_is_the_pace_of_the_last_rounds() -> None:
    state = RunState()
    assert state.seconds_left() is None
    state.take_event({"event": "start", "rounds": 20}, now=100)
    assert state.seconds_left() is None
    state.take_event({"event": "round", "round": 1}, now=150)  # slow: all starts
    state.take_metrics({"round": 1}, now=151)
    assert state.seconds_left() == 50 * 19
    for number in range(2, 11):
        state.take_event({"event": "round", "round": number}, now=150 + 2 * number)
    assert state.seconds_left() == 2 * 10


def test_a_resumed_run_counts_from_where_it_goes_on() -> None:
    state = RunState()
    state.take_event({"event": "start", "rounds": 20}, now=0)
    state.take_event({"event": "round", "round": 15}, now=3)
    assert state.seconds_left() == 15


def test_the_last_evaluation_is_kept_over_rounds_without_one() -> None:
    state = RunState()
    tested = {"round": 1, "levels": {"1": {"accuracy": 0.5, "loss": 0.25}, "2": {}}, "cis": 0.25}
    state.take_metrics(tested, now=0)
    state.take_metrics({"round": 2, "levels": {}}, now=1)
    assert state.accuracies == {"1": 0.5}
    assert state.test_loss == "test loss 0.25"
    assert state.system == "system accuracy 25.0 %"


def test_an_early_end_has_a_reason() -> None:
    state = RunState()
    state.take_event({"event": "end", "reason": "all clients failed"}, now=0)
    assert state.reason == "all clients failed"


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown(tmp_path: Path, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100)
    follower = Follower(tmp_path)
    clients = {"sampled": 10, "replied": 8, "refused": {"NaN": 1}, "failed": 1}
    levels = {"1": {"accuracy": 0.912}, "2": {"accuracy": 0.95}}
    events = [
        {"event": "start", "rounds": 4, "levels": 2, "nodes": 20},
        {"event": "round", "round": 1},
        {"event": "reply", "round": 2, "done": 4, "of": 10},
    ]
    train = {"loss": 1.23456}
    record = {"round": 1, "seconds": 2.5, "clients": clients, "levels": levels, "train": train}
    record["cis"] = 0.923
    with display_on(console, quiet=False) as display:
        (tmp_path / "progress.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
        (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        follower.step(display)
    found = "loss 1.235, accuracy of level 1: 91.2 %, 2: 95.0 %, system accuracy 92.3 %"
    assert found in screen.getvalue()
    if terminal:
        assert "1/4" in screen.getvalue()
        assert "4/10" in screen.getvalue()
    else:
        assert isinstance(display, Lines)
        assert screen.getvalue() == (
            f"round 1/4, 8/10 replies, 1 refused, 1 failed, {found}, 2.5 s\n"
        )


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"round": 3, "train": {"loss": 0.5}}, "round 3/9, loss 0.5"),
        ({"round": 3, "train": {"loss": None}, "levels": None}, "round 3/9"),
        (
            {"round": 0, "levels": {"1": {"accuracy": 0.1}}},
            "round 0/9, accuracy of level 1: 10.0 %",
        ),
        (
            {"round": 1, "levels": {"1": {"accuracy": 0.1}}, "cis": 0.731, "validation": 0.5},
            "round 1/9, accuracy of level 1: 10.0 %, system accuracy 73.1 %, validation 50.0 %",
        ),
        (  # the mean of 1 and 3: nobody holds level 3
            {
                "round": 0,
                "levels": {
                    "1": {"accuracy": 0.1, "loss": 1.0},
                    "2": {"accuracy": 0.2, "loss": 3.0},
                    "3": {"accuracy": 0.3, "loss": 9.0, "lack": "untrained"},
                },
            },
            "round 0/9, accuracy of level 1: 10.0 %, 2: 20.0 %, 3 (untrained): 30.0 %, test loss 2",
        ),
        (
            {"round": 5, "train": {"loss": 0.5}, "levels": {"1": {"accuracy": 0.1, "loss": None}}},
            "round 5/9, loss 0.5, accuracy of level 1: 10.0 %, test loss nan",
        ),
    ],
)
def test_a_line_holds_what_is_known_of_a_round(record: dict[str, Any], line: str) -> None:
    assert round_line(record, 9) == line


def test_the_reason_is_the_servers_error_and_its_causes_without_tracebacks() -> None:
    log = (
        "\x1b[36m(ClientAppActor pid=1)\x1b[0m Traceback (most recent call last):\nKeyError: 'c'\n"
        "\x1b[91mERROR \x1b[0m:     Simulation raised an exception\n"
        "Traceback (most recent call last):\n  File one\nKeyError: 'a'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File two\n    boom()\nValueError: \x1b[1mb\x1b[0m\n"
        "\x1b[91mERROR \x1b[0m:     Exit Code: 700\n"
    )
    assert failure.reason(log) == ["ValueError: b", "KeyError: 'a'"]


def test_a_cause_that_says_nothing_new_is_left_out() -> None:
    log = (
        "ERROR :     Simulation raised an exception\n"
        "Traceback (most recent call last):\n  File one\n"
        "pyarrow.lib.ArrowInvalid: no magic bytes\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  File two\n"
        "data.catalog.DataError: /data/train.parquet cannot be read: no magic bytes\n"
        "ERROR :     Exit Code: 700\n"
    )
    assert failure.reason(log) == ["DataError: /data/train.parquet cannot be read: no magic bytes"]


def test_wrong_data_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\nfine,0\nnot so,1,2\n")
    chosen = f"model=bert-tiny strategy=heterofl dataset=sst2 dataset.path={tmp_path}"
    with pytest.raises(DataError) as raised:
        server.run(InProcessGrid(1), compose(f"{chosen} output={tmp_path}"))
    trace = "".join(traceback.format_exception(raised.value))
    log = f"ERROR :     Simulation raised an exception\n{trace}ERROR :     Exit Code: 700\n"
    (line,) = failure.reason(log)
    assert line.startswith(
        f"DataError: {tmp_path}/train.csv cannot be read: CSV parse error: Row #3"
    )


def test_an_expected_error_is_the_reason_in_the_line_that_the_log_has_of_it() -> None:
    log = "ERROR :     Simulation raised an exception: FederationError: no client\nERROR : x\n"
    assert failure.reason(log) == ["FederationError: no client"]


def test_without_an_error_the_reason_is_the_end_of_the_log() -> None:
    assert failure.reason("\x1b[92mINFO\x1b[0m: one\n\ntwo\n")[1:] == ["INFO: one", "two"]


def test_what_clients_wrote_into_the_log_commands_no_terminal() -> None:
    log = "\x1b]0;title\x07one\r\x1b[2Jtwo\u202e\n"
    assert failure.reason(log)[1:] == ["one", "two"]
    assert failure.shown("a\x1b[2J\nb\x9b1A") == ["a", "b"]


def test_a_long_pass_shows_a_bar_on_a_terminal_and_nothing_elsewhere() -> None:
    for terminal, patience in ((True, 0.0), (True, 3600.0), (False, 0.0)):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=terminal, width=80)
        watch: Watch[int] = watched_on(console, patience)
        assert list(watch(range(3), 3, "answering")) == [0, 1, 2]
        assert ("answering" in screen.getvalue()) == (terminal and not patience)
        assert terminal or screen.getvalue() == ""


def test_a_pass_that_is_given_up_leaves_no_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    watch: Watch[int] = watched_on(console, 0.0)
    for _ in range(2):  # a bar that is left would refuse the next
        batches = watch(range(3), 3, "answering")
        assert (next(batches), next(batches)) == (0, 1)
        del batches


@pytest.mark.parametrize("terminal", [True, False])
def test_work_of_the_server_is_shown_until_its_round_ends(tmp_path: Path, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100)
    follower = Follower(tmp_path)
    work = {"event": "work", "round": 7, "what": "distilling level 2 of 4", "done": 300, "of": 1000,
            "loss": 0.51234}  # fmt: skip
    events = [{"event": "start", "rounds": 9}, {"event": "reply", "done": 4, "of": 4}, work]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    with display_on(console, quiet=False) as display:
        if isinstance(display, Lines):
            display = Lines(console, pace=0)
        follower.step(display)
        follower.step(display)  # which has nothing new to tell
    shown = screen.getvalue()
    if terminal:
        assert "distilling level 2 of 4" in shown
        assert "300/1000" in shown
    else:
        assert shown == "round 7, loss 0.5123, distilling level 2 of 4: step 300 of 1000\n"
    follower.state.take_event({"event": "round", "round": 7}, now=1)
    assert follower.state.work is None


@pytest.mark.parametrize("terminal", [True, False])
def test_tests_are_shown_as_they_are_answered(tmp_path: Path, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100)
    follower = Follower(tmp_path)
    events = [
        {"event": "start", "rounds": 9, "nodes": 8, "without": {"test": 5}},
        {"event": "reply", "done": 4, "of": 4},
        {"event": "answer", "round": 7, "what": "tests", "done": 300, "of": 1000},
    ]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    with display_on(console, quiet=False) as display:
        if isinstance(display, Lines):
            display = Lines(console, pace=0)
        follower.step(display)
        follower.step(display)  # which has nothing new to tell
    shown = screen.getvalue()
    warning = "Warning: 5 of 8 clients have no test part; these are not asked to test on it\n"
    if terminal:
        assert warning.strip() in shown
        assert "300/1000" in shown
    else:
        assert shown == f"{warning}round 7, tests: 300 of 1000 answered\n"
    follower.state.take_event({"event": "round", "round": 7}, now=1)
    assert follower.state.answers is None


def test_a_run_tells_how_its_tests_go_on(tmp_path: Path) -> None:
    federate_in(tmp_path)("rounds=1 name=mine")
    events = map(json.loads, (tmp_path / "mine" / "progress.jsonl").read_text().splitlines())
    answers = [(e["done"], e["of"]) for e in events if e["event"] == "answer"]
    assert answers[0] == (0, 12)  # of four clients: own level, full model, validation
    assert answers[-1] == (12, 12)


def test_short_work_adds_no_line_to_a_log(tmp_path: Path) -> None:
    screen = io.StringIO()
    state = RunState()
    state.take_event({"event": "work", "round": 1, "what": "x", "done": 1, "of": 2}, now=0)
    Lines(Console(file=screen), pace=1e9).update(state, [])
    assert screen.getvalue() == ""
