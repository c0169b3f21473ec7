"""The report in a real browser: no errors, readable on a phone and in dark mode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_app.report.page import write_report
from tests.server_app.report.chromium import Browser, chromium
from tests.server_app.report.test_page import SECTIONS
from tests.support.recorded_runs import fleet, recorded, round_of, write_run

PHONE, DESK = 390, 1280
LEAST_CONTRAST = 4.5
"""Least contrast of texts by WCAG 2."""
TEXTS = (
    *("h1", "h2", "p", "td", "th", ".faint", ".notes", "a", ".cards dt", ".cards dd", "pre"),
    *(".banner", ".legend li", "label", "button", "footer", ".tiles span", ".share", "svg text"),
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports with all that a report may show: of a run with faults, and of a comparison."""
    folder = tmp_path_factory.mktemp("reports")
    record = fleet(12)
    lines = [round_of(number, record) for number in range(1, 6)]
    problems = {"3": "late", "5": "a NaN in " + "stem.weight." * 20}
    lines[2]["clients"] |= {"replied": 10, "failed": {"late": 1}, "refused": {"non-finite": 1},
                            "problems": problems}  # fmt: skip
    run = write_run(folder / "a-long-name-of-a-run-of-scalefl-with-resnet20-on-digits", lines,
                    record, finished=False)  # fmt: skip
    several = [
        recorded(folder / f"{strategy}-{seed}", strategy=strategy, seed=seed, better=seed / 20)
        for strategy in ("scalefl", "heterofl") for seed in (0, 1)
    ]  # fmt: skip
    found = {"run": folder / "run.html", "comparison": folder / "comparison.html"}
    write_report([run], found["run"])
    write_report(several, found["comparison"])
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not installed (on Debian: apt install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def style(browser: Browser, selector: str, name: str) -> str:
    script = f"getComputedStyle(document.querySelector({json.dumps(selector)})).{name}"
    return str(browser.value(script))


def visible(browser: Browser, selector: str) -> list[str]:
    """Return the classes of the elements that take up room."""
    found: list[str] = browser.value(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".filter(e => e.getBoundingClientRect().height > 0).map(e => e.getAttribute('class'))"
    )
    return found


def contrasts(browser: Browser) -> dict[str, float]:
    """Return the least contrast of the texts of each kind with what is behind them."""
    found: dict[str, float] = browser.value(
        """(kinds => {
      const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
      const rgb = colour => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
      };
      const light = colour => rgb(colour).slice(0, 3).reduce((sum, part, place) => {
        const x = part / 255, linear = x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
        return sum + linear * [.2126, .7152, .0722][place];
      }, 0);
      const behind = element => {
        for (; element; element = element.parentElement) {
          const colour = getComputedStyle(element).backgroundColor;
          if (rgb(colour)[3] === 255) return colour;
        }
        return 'white';
      };
      return Object.fromEntries(kinds.map(kind => [kind, Math.min(
        ...[...document.querySelectorAll(kind)].map(element => {
          const own = getComputedStyle(element);
          const ink = light(element.ownerSVGElement ? own.fill : own.color);
          const pair = [ink, light(behind(element))].sort((a, b) => b - a);
          return (pair[0] + .05) / (pair[1] + .05);
        }))]));
    })("""
        + json.dumps(TEXTS)
        + ")"
    )
    return found


@pytest.mark.parametrize("page", ["run", "comparison"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_all_sections_show_without_a_complaint_and_fit_the_window(
    browser: Browser, pages: dict[str, Path], page: str, dark: bool, width: int
) -> None:
    browser.show(pages[page], width, dark=dark)
    heights = browser.value(
        f"{SECTIONS}.map(name => document.getElementById(name).getBoundingClientRect().height)"
    )
    assert all(height > 50 for height in heights)
    size = browser.value("[document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1] == width
    assert browser.complaints == []


def test_what_is_wrong_with_a_page_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    view = "<!doctype html><meta name=viewport content='width=device-width, initial-scale=1'>"
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    found = {}
    for wrong in (f"{policy}<script>1</script>", "<script>console.error('sorry')</script>",
                  "<script>absent()</script>", f"<pre>{'wide ' * 100}</pre>"):  # fmt: skip
        page.write_text(view + wrong)
        browser.show(page, PHONE)
        wide = browser.value("document.documentElement.scrollWidth") > PHONE
        found[wrong], browser.complaints = (wide, "".join(browser.complaints)), []
    refused, said, thrown, wide_one = found.values()
    assert "Content Security Policy" in refused[1]
    assert "sorry" in said[1]
    assert "absent is not defined" in thrown[1]
    assert wide_one == (True, "")


@pytest.mark.parametrize("dark", [False, True])
def test_texts_can_be_read_in_light_and_in_the_dark(
    browser: Browser, pages: dict[str, Path], dark: bool
) -> None:
    browser.show(pages["run"], DESK, dark=dark)
    paper = [int(part) for part in re.findall(r"\d+", style(browser, "body", "backgroundColor"))]
    assert (max(paper) < 60) if dark else (min(paper) > 200)
    found = contrasts(browser)
    assert {kind: value for kind, value in found.items() if value < LEAST_CONTRAST} == {}


@pytest.mark.parametrize("page", ["run", "comparison"])
def test_the_buttons_choose_what_accuracy_is_drawn_over(
    browser: Browser, pages: dict[str, Path], page: str
) -> None:
    browser.show(pages[page], DESK)
    for over in ("rounds", "bytes", "seconds", "rounds"):
        browser.value(f"document.querySelector('[for=over-{over}]').click()")
        assert set(visible(browser, "#accuracy figure > div")) == {f"over-{over}"}
    assert browser.complaints == []


def test_pointing_at_a_chart_tells_the_values_there(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.show(pages["run"], DESK)
    assert style(browser, "#tip", "display") == "none"
    chart = "#accuracy .over-rounds svg"
    browser.point_at(chart, across=0.96)  # its right end: the last round
    # Round 5 reaches 0.9 x 5/7 = 0.643, and level 1 is 0.06 below that.
    assert told(browser) == ["round: 5", "64.3 %  level 4", "62.3 %  level 3", "60.3 %  level 2",
                             "58.3 %  level 1"]  # fmt: skip
    assert visible(browser, f"{chart} .cursor") == ["cursor"]
    browser.point_at("h2")
    assert style(browser, "#tip", "display") == "none"
    assert visible(browser, ".cursor") == []


def test_on_a_phone_the_tip_stays_inside_the_window(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.show(pages["comparison"], PHONE)
    browser.point_at("#accuracy .over-rounds svg", across=0.96)
    left, right = browser.value(
        "(b => [b.left, b.right])(document.getElementById('tip').getBoundingClientRect())"
    )
    assert 0 <= left < right <= PHONE
    assert told(browser)[0] == "round: 5"


def told(browser: Browser) -> list[str]:
    assert style(browser, "#tip", "display") == "block"
    return str(browser.value("document.getElementById('tip').textContent")).split("\n")


def test_the_command_can_be_copied(browser: Browser, pages: dict[str, Path]) -> None:
    browser.show(pages["run"], DESK)
    copied: dict[str, Any] = browser.value(
        "(b => ({text: b.textContent, hidden: b.hidden,"
        " command: document.getElementById(b.dataset.copies).textContent}))"
        "(document.querySelector('button[data-copies]'))"
    )
    assert copied == {"text": "copy", "hidden": False, "command": "nestfl run strategy=scalefl"}
