"""A report's figures as files: each is a whole SVG with its title, its legend and its colours."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup

from server_app.report.charts import Figure, alone
from server_app.report.page import write_report
from tests.support.recorded_runs import recorded

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_curve_and_the_front_are_files_that_can_be_read(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / name, strategy=name) for name in ("scalefl", "heterofl")]
    write_report(runs, tmp_path / "report.html", figures=tmp_path / "figures")
    written = {file.stem: file.read_text() for file in (tmp_path / "figures").iterdir()}
    assert {"level-1-rounds", "level-1-bytes", "level-1-seconds", "worst-level-rounds",
            "clients-tests-local-local",
            "accuracy-against-the-cost-of-an-answer-macs"} <= written.keys()  # fmt: skip
    for svg in written.values():
        assert {"scalefl", "heterofl"} <= set(texts(svg))
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert texts(written["level-1-rounds"])[0] == "Level 1"


def test_names_are_escaped_and_a_long_legend_takes_several_lines() -> None:
    legend = [(number, f"a rather long name <{number}>") for number in range(6)]
    chart = Markup('<svg viewBox="0 0 400 250"></svg>')
    svg = alone(Figure("A & B", legend, {"rounds": chart}), chart)
    title, *names = texts(svg)
    assert title == "A & B"
    assert names == [name for _, name in legend]
    heights = {each.get("y") for each in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert len(heights) > 3  # the title, and three lines of two names
