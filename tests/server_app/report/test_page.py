"""The report as a whole: one small file that needs no other, and escapes all that it shows."""

from __future__ import annotations

import logging
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from server_app.config.typed import ConfigError
from server_app.record.files import METRICS_FILE
from server_app.record.run_record import RunRecord
from server_app.report.blocks import Table
from server_app.report.page import make_report, write_report
from tests.support.recorded_runs import fleet, recorded, round_of, write_run

MEGABYTE = 1_000_000
SECTIONS = ["results", "accuracy", "cost", "fleet", "clients", "faults", "config"]
"""Sections of every report."""
EVIL = "<script>alert(1)</script>\"'&"
REFERENCES = ("src", "href", "data", "action", "srcset", "poster", "xlink:href")


class Reader(HTMLParser):
    """Gathers a page's elements, what they refer to, and its text outside of style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.ids = Counter[str](), list[str]()
        self.references, self.handlers = list[str](), list[str]()
        self.text, self._inside = "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.text += " "
        self._inside = tag
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.references += [value or "" for name, value in attrs if name in REFERENCES]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def report_of(folder: Path, *runs: Path, **more: Any) -> str:
    write_report(runs, folder / "report.html", **more)
    return (folder / "report.html").read_text(encoding="utf-8")


def two(folder: Path) -> list[Path]:
    return [recorded(folder / name, strategy=name) for name in ("scalefl", "heterofl")]


@pytest.mark.parametrize("several", [False, True])
def test_a_report_has_all_sections_once(tmp_path: Path, several: bool) -> None:
    page = Reader(report_of(tmp_path, *two(tmp_path)[: 1 + several]))
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert all(count == 1 for count in Counter(page.ids).values())
    assert page.references == [f"#{name}" for name in SECTIONS]


@pytest.mark.parametrize("several", [False, True])
def test_a_report_refers_to_nothing_outside_of_it(tmp_path: Path, several: bool) -> None:
    html = report_of(tmp_path, *two(tmp_path)[: 1 + several])
    page = Reader(html)
    assert all(reference.startswith("#") for reference in page.references)
    assert not [word for word in ("http:", "https:", "url(", "@import", "//cdn") if word in html]
    assert not page.tags.keys() & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert "default-src 'none'" in html


def test_a_report_tells_the_config_the_code_the_versions_and_the_command(tmp_path: Path) -> None:
    text = Reader(report_of(tmp_path, recorded(tmp_path / "run"))).text
    for told in ("nestfl run strategy=scalefl", "code 0123456789abcdef", "torch 2.14.0",
                 "name: resnet20"):  # fmt: skip
        assert told in text


def test_whatever_a_run_says_comes_out_as_text(tmp_path: Path) -> None:
    record = fleet(4)
    record["command"] = record["code"] = EVIL
    record["versions"] = {EVIL: EVIL}
    record["clients"]["0"]["device"] = EVIL
    record["parts"][0]["name"] = EVIL
    line = round_of(1, record)
    line["clients"]["problems"] = {"0": EVIL}
    line["clients"]["refused"] = {EVIL: 1}
    line["asked"] = {EVIL: {"failed": {EVIL: 1}}}
    line[EVIL] = 0.5
    line["scores"][EVIL] = {"0": 0.5}
    line["levels"][EVIL] = {"accuracy": 0.5, "exits": {EVIL: {"accuracy": 0.1}, "6": {}}}
    line["left_out"] = {EVIL: EVIL}
    config = f"extra: '{EVIL.replace(chr(39), '')}'\n"
    runs = [write_run(tmp_path / name, [line], record, strategy=f"'{name} <script>'", config=config)
            for name in ("a", "b<script>")]  # fmt: skip
    tables = [Table(EVIL, [EVIL], [[EVIL]], [EVIL])]
    alone = report_of(tmp_path, runs[1])
    for html in (alone, report_of(tmp_path, *runs, tables=tables, title=EVIL)):
        page = Reader(html)
        assert page.tags["script"] == 1
        assert page.handlers == []
        assert "alert(1)</script>" not in html
        assert "<script>alert(1)</script>" in page.text  # shown, not run


def test_a_comparison_of_24_runs_with_100_clients_stays_below_a_megabyte(tmp_path: Path) -> None:
    runs = [
        recorded(tmp_path / f"{number}", rounds=100, clients=100, config=f"lr: {number}\n")
        for number in range(24)
    ]
    html = report_of(tmp_path, *runs)
    assert "24 runs in 24 groups" in html
    assert len(html.encode()) < MEGABYTE


def test_a_run_of_1000_clients_and_300_rounds_stays_below_a_megabyte(tmp_path: Path) -> None:
    html = report_of(tmp_path, recorded(tmp_path / "run", rounds=300, clients=1000))
    assert "1000 clients" in html
    assert len(html.encode()) < MEGABYTE


def test_a_report_of_a_run_that_goes_on_says_how_far_it_is(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", rounds=2, finished=False)
    (run / METRICS_FILE).open("a").write('{"round": 3, ')
    text = Reader(report_of(tmp_path, run)).text
    assert "run has not finished: 2 of 2 rounds are recorded. It is still going" in text


def test_an_old_run_has_a_report_that_says_what_is_not_known(tmp_path: Path) -> None:
    lines = [round_of(number, fleet()) for number in (1, 2)]
    text = Reader(report_of(tmp_path, write_run(tmp_path / "run", lines, None))).text
    assert "an older version of nestfl made this run" in text


def test_a_run_without_any_test_has_a_report(tmp_path: Path) -> None:
    text = Reader(report_of(tmp_path, write_run(tmp_path / "run", [{"round": 1}], None))).text
    assert "No round has tested anything yet." in text
    assert "No test of single clients is recorded." in text


def test_of_several_runs_one_without_a_round_is_named_alone(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", [], None, finished=False)
    page = Reader(report_of(tmp_path, recorded(tmp_path / "run"), empty))
    assert "empty has not finished: 0 of 0 rounds are recorded." in page.text


def test_without_any_round_there_is_nothing_to_report(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", [], None, finished=False)
    with pytest.raises(
        ConfigError, match=r"nothing to report yet: no round is recorded in .*empty"
    ):
        write_report([empty], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_report_is_not_written_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"report\.html cannot be written: .*absent is no folder"):
        write_report([recorded(tmp_path / "run")], tmp_path / "absent" / "report.html")


def best_of_two(folder: Path) -> Path:
    record = fleet()
    lines = [round_of(1, record) | {"validation": 0.8}, round_of(2, record) | {"validation": 0.5}]
    return write_run(folder, lines, record)


def test_cards_tell_the_last_round_s_scores_or_the_best_one_s(tmp_path: Path) -> None:
    run = best_of_two(tmp_path / "run")
    # Rounds 1 and 2 reach 0.3 and 0.45; the mean of the levels is 0.03 below that.
    last, best = (" ".join(Reader(report_of(tmp_path, run, at_best=at_best)).text.split())
                  for at_best in (False, True))  # fmt: skip
    assert "mean 42.0 % over the levels" in last
    assert "best 27.0 % mean after round 1" in last
    assert "mean 27.0 % over the levels" in best
    assert "mean after round" not in best
    assert "bytes 3.8 MB sent in training" in last  # 2 rounds of 1 MB down and 0.9 MB up
    assert "bytes 3.8 MB sent in training" in best  # spent, whichever round is told


def test_tables_that_are_given_are_told_apart_from_scores_of_the_best_round(tmp_path: Path) -> None:
    run, tables = best_of_two(tmp_path / "run"), [Table("Given", ["a"], [["1"]])]
    told = "The tables above are of each run"
    assert told in report_of(tmp_path, run, at_best=True, tables=tables)
    assert told not in report_of(tmp_path, run, tables=tables)
    assert told not in report_of(tmp_path, run, at_best=True)


def test_a_table_s_column_of_sentences_is_broken_into_lines() -> None:
    table = Table("", ["name", "why"], [["a", "x" * 48], ["b", "x" * 49]])
    assert table.prose == [False, True]


def test_a_run_does_not_fail_for_want_of_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("server_app.report.page.write_report", broken)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    make_report(RunRecord(recorded(tmp_path / "run")))
    assert "no report was made: RuntimeError: no room" in caplog.text


def test_a_run_ends_with_a_report_in_its_directory(tmp_path: Path) -> None:
    record = RunRecord(recorded(tmp_path / "run"))
    make_report(record)
    assert record.report_file == tmp_path / "run" / "report.html"
    assert record.report_file.is_file()
