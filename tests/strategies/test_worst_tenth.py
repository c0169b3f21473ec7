"""The worst tenth of the clients in every kind of test: in each round's line, and at the end."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from server_app.record.run_record import RunRecord
from server_app.record.summary import show, summarise
from strategies.evaluation import worst_tenth, worst_tenths
from tests.support.federations import federate_in


def test_it_is_rounded_up_to_whole_clients() -> None:
    assert worst_tenth([number / 100 for number in range(1, 12)]) == pytest.approx(0.015)  # 2 of 11
    assert worst_tenth([0.7, 0.3]) == 0.3
    assert worst_tenth([]) is None


def test_of_perplexities_the_worst_are_the_highest() -> None:
    line = {"scores": {"local": {"0": 0.2, "1": 0.4}, "local_perplexity": {"0": 30.0, "1": 20.0}}}
    assert worst_tenths(line) == {"worst_tenth": {"local": 0.2, "local_perplexity": 30.0}}


def test_what_clients_have_trained_counts_as_a_kind_of_its_own() -> None:
    line = {"personal": {"accuracy": 0.5, "scores": {"3": 0.9, "4": 0.1}}}
    assert worst_tenths(line) == {"worst_tenth": {"personal": 0.1}}
    assert worst_tenths({"round": 1, "personal": {}}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_it_lies_between_the_lowest_client_and_the_mean(scores: list[float]) -> None:
    found = worst_tenth(scores)
    assert found is not None
    assert min(scores) <= found <= sum(scores) / len(scores) + 1e-12


def test_a_run_tells_it_in_its_lines_in_its_summary_and_on_the_terminal(tmp_path: Path) -> None:
    more = "evaluate.personal_every=1 evaluate.clients_every=1 rounds=1 name=run"
    _, (line,) = federate_in(tmp_path)(more)
    by_kind = {**line["scores"], "personal": line["personal"]["scores"]}
    assert set(line["worst_tenth"]) == {"local", "global", "validation", "personal"}
    # One of four clients is their worst tenth.
    assert line["worst_tenth"] == {kind: min(own.values()) for kind, own in by_kind.items()}
    record, output = RunRecord(tmp_path / "run"), io.StringIO()
    summary = json.loads(record.summary_file.read_text())
    assert summary["worst_tenth"] == line["worst_tenth"]
    show(record, summary, Console(file=output))
    assert f"worst tenth: of clients local {line['worst_tenth']['local']:.2%}" in output.getvalue()


def test_a_summary_has_the_newest_of_each_kind() -> None:
    lines = [
        {"round": 1, "worst_tenth": {"local": 0.1, "personal": 0.2}},
        {"round": 2, "worst_tenth": {"personal": 0.3}},
        {"round": 3},
    ]
    assert summarise(lines)["worst_tenth"] == {"local": 0.1, "personal": 0.3}  # type: ignore[arg-type]
