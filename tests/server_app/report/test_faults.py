"""Faults in a report: refused, failed and late replies."""

from __future__ import annotations

import re
from typing import Any

from server_app.report.grouping import Group
from server_app.report.history import faults_figure, faults_sentence, faults_tables
from server_app.report.run_data import RunData
from tests.support.recorded_runs import fleet, run_data


def line(round: int, replied: int = 4, **more: Any) -> dict[str, Any]:
    counts = {"sampled": 4, "replied": replied, "refused": {}, "failed": {}, "problems": {}}
    asked, left_out = more.pop("asked", {}), more.pop("left_out", {})
    return {"round": round, "clients": {**counts, **more}, "asked": asked, "left_out": left_out}


def troubled() -> RunData:
    problems = [{"3": "timeout"}, {"3": "no answer in 5 s", "0": "a NaN in stem.weight"}]
    lines = [
        line(1, 3, failed={"late": 1}, problems=problems[0]),
        line(2, 2, failed={"late": 1}, refused={"non-finite": 1}, problems=problems[1]),
        line(3, asked={"local": {"asked": 4, "answered": 3, "failed": {"crashed": 1},
                                 "problems": {"1": "x" * 200}}}),
        line(4, forgot=1, left_out={"77": "no answer"}),
    ]  # fmt: skip
    return run_data(lines, fleet(4), config={"seed": 5})


def test_replies_are_counted_and_the_late_told_apart() -> None:
    assert faults_sentence([Group("one", [troubled()])]) == (
        "13 of 16 replies were taken, 1 refused, and 2 failed (2 of these late). "
        "1 time a client had lost what it remembers."
    )


def test_where_all_is_well_the_report_says_so_in_a_sentence() -> None:
    groups = [Group("one", [run_data([line(1), line(2)])])]
    assert faults_sentence(groups) == "8 of 8 replies were taken, 0 refused, and 0 failed."
    assert faults_tables(groups) == []
    assert faults_figure(groups[0].runs[0]) == []


def test_faults_of_rounds_after_the_best_are_told_as_well() -> None:
    lines = [{**line(1), "validation": 0.9}, {**line(2, 3, failed={"late": 1}), "validation": 0.1}]
    said = faults_sentence([Group("one", [run_data(lines, at_best=True)])])
    assert said.startswith("7 of 8 replies were taken, 0 refused, and 1 failed")


def test_faults_are_told_by_reason_by_client_and_by_node() -> None:
    reasons, clients, nodes = faults_tables([Group("one", [troubled()])])
    assert reasons.columns == ["asked for", "what", "reason", "times", "rounds"]
    assert reasons.rows == [
        ["training", "failed", "late", "2", "1, 2"],
        ["training", "refused", "non-finite", "1", "2"],
        ["local", "failed", "crashed", "1", "3"],
    ]
    assert clients.columns == ["client", "level", "times", "rounds", "the last"]
    assert clients.rows == [
        ["3", "4", "2", "1, 2", "no answer in 5 s"],
        ["0", "1", "1", "2", "a NaN in stem.weight"],
        ["1", "2", "1", "3", "x" * 160],
    ]
    assert nodes.rows == [["77", "no answer"]]


def test_faults_of_several_runs_say_whose_they_are() -> None:
    reasons, *_ = faults_tables([Group("a", [troubled()]), Group("b", [run_data([line(1)])])])
    assert reasons.columns[:2] == ["settings", "seed"]
    assert reasons.rows[0][:2] == ["a", "5"]


def test_of_many_faults_the_first_hundred_are_shown_and_the_others_counted() -> None:
    lines = [line(1, 0, problems={str(client): "gone" for client in range(130)})]
    (clients,) = faults_tables([Group("one", [run_data(lines)])])
    assert len(clients.rows) == 100
    assert clients.notes == ["And 30 more."]


def titles(run: RunData) -> list[str]:
    (figure,) = faults_figure(run)
    return list(dict.fromkeys(re.findall(r"<title>([^<]*)", str(figure.charts["rounds"]))))


def test_each_round_has_a_bar_of_its_replies() -> None:
    assert titles(troubled())[:3] == [
        "round 1: 3 taken, 0 refused, 1 failed",
        "round 2: 2 taken, 1 refused, 1 failed",
        "round 3: 4 taken, 0 refused, 0 failed",
    ]


def test_bars_of_a_long_run_are_of_several_rounds_each() -> None:
    lines = [line(number, 3, failed={"late": 1}) for number in range(1, 252)]
    found = titles(run_data(lines))
    assert len(found) == 84  # 251 rounds, three a bar
    assert found[0] == "rounds 1 to 3: 9 taken, 0 refused, 3 failed"
    assert found[-1] == "rounds 250 to 251: 6 taken, 0 refused, 2 failed"
