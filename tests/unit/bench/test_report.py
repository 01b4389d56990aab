"""The HTML report: its content, that all text is escaped, that it loads nothing, and its size."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pictures.__main__ import FOLDER, NAME, picture
from peagle.bench.chart import Chart, Line, Point, draw, linear_ticks, log_ticks
from peagle.bench.models import BenchResult, BenchSetting, BenchWorkload, Interval
from peagle.bench.report import LARGEST_REPORT, report
from peagle.bench.results import read_result
from peagle.speed.models import Workload
from peagle.speed.slo import Slo
from tests.golden import assert_golden
from tests.unit.bench.made import ALONE, K3, RESULT, ROWS, row, two_workloads

ROOT = Path(__file__).parents[3]
FROZEN = ROOT / "tests" / "catalog" / "evidence" / "speed-gpt-oss-20b-h200.json"
NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&lt;b&gt;", "]]>", "'/*")


class Reader(HTMLParser):
    """The elements, their attributes, and all text; fails for elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "strong", "div",
    "figure", "figcaption", "svg", "desc", "path", "text", "table", "caption", "thead", "tbody",
    "tr", "th", "td", "dl", "dt", "dd", "code",
}  # fmt: skip


def test_the_report_of_a_sweep() -> None:
    slo = Slo(ttft=0.5, itl=0.004)
    assert_golden("bench/report.html", report(two_workloads(), slo).encode())


def test_the_report_of_evidence() -> None:
    text = report(*_of_evidence())
    assert "p-eagle K=7 at 1 request" in text
    assert "Acceptance was imposed" in text
    assert "the slowest and the fastest repetition" in text


def _of_evidence() -> tuple[BenchResult, None, str]:
    result, intervals = read_result(FROZEN)
    return result, None, intervals


def test_the_report_begins_with_the_summary_and_has_every_number() -> None:
    reader = Reader(report(RESULT))
    assert (
        "Fastest, against no speculation: p-eagle K=7 at 1 request (2.33 times the speed), "
        "p-eagle K=3 at 8 requests (1.50 times the speed, intervals overlap), "
        "no speculation at 64 requests."
    ) in reader.text
    for one in ROWS:
        assert f"{one.tokens_per_second.value:,.1f}" in reader.text
    for text in ("vLLM 0.28.0", "1 x H200", "$6.00 per hour", "Intel(R) Xeon(R)", "aiperf 0.3.0"):
        assert text in reader.text
    stops = "speculation stops paying at about 42 requests (38 to 47), at $0.15"
    assert f"By the fastest repetitions, {stops}" in reader.text
    assert "speculation stops paying at 42" in reader.text, "in the plot"


def test_the_report_loads_nothing() -> None:
    text = report(two_workloads())
    reader = Reader(text)
    assert ("http-equiv", "Content-Security-Policy") in reader.attributes
    assert any("default-src 'none'" in (value or "") for _, value in reader.attributes)
    assert set(reader.tags) <= ELEMENTS
    assert {name for name, _ in reader.attributes}.isdisjoint({"src", "href", "style", "onload"})
    assert not re.search(r"@import|url\(", text)
    assert set(re.findall(r"https?://[^\"<\s]+", text)) <= {
        "http://www.w3.org/2000/svg", "http://127.0.0.1:8000/v1",
    }  # fmt: skip


@pytest.mark.thorough
@given(texts=st.lists(st.text(max_size=60) | st.sampled_from(NASTY), min_size=8, max_size=8))
def test_all_text_is_escaped(texts: list[str]) -> None:
    plain = Reader(report(hostile(["x"] * 8)))
    nasty = Reader(report(hostile(texts)))
    assert nasty.tags == plain.tags
    assert [name for name, _ in nasty.attributes] == [name for name, _ in plain.attributes]


def hostile(texts: list[str]) -> BenchResult:
    """A result with these texts in all places that come from outside."""
    pair, drafter, name, price, source, command, saturated, ended = (f"x{text}" for text in texts)
    setting = BenchSetting(drafter, 3)
    rows = [
        row(one, 8, 100.0 + one.k, BenchWorkload(name, Workload(1, 1))) for one in (ALONE, setting)
    ]
    rows[1] = replace(rows[1], saturated=saturated, incomplete=ended)
    server = replace(
        RESULT.server, pair=pair, vllm=pair, gpu=drafter, stand_in=name,
        instance_type=source, base_url=name,
    )  # fmt: skip
    return replace(
        RESULT, server=server, rows=tuple(rows), price_source=price, sender=(source, price),
        command=("peagle", command), incomplete=ended, started=source, toolkit=command,
        host=replace(RESULT.host, system=name, python=pair, cpu=source),
    )  # fmt: skip


@pytest.mark.thorough
def test_a_large_result_stays_below_a_megabyte() -> None:
    workload = BenchWorkload("w" * 300, Workload(1, 1))
    rows = tuple(
        row(BenchSetting("<" * 400, k), load, 100.0, workload)
        for k in range(1, 12)
        for load in range(1, 120)
    )
    text = report(replace(RESULT, rows=rows))
    assert len(text.encode()) <= LARGEST_REPORT
    assert "more rows are in the result file" in text


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (
            replace(
                row(ALONE, 1, 1.0), tokens_per_second=Interval(0.0, 0.0, 0.0), incomplete="died"
            ),
        ),
        (row(K3, 4, 10.0),),
        (row(ALONE, 1, 1e-6), row(ALONE, 10_000, 1e9)),
        (row(ALONE, 2, 10.0, spread=4.0),),
    ],
    ids=["none", "nothing-measured", "one", "far-apart", "interval-below-zero"],
)
def test_few_and_extreme_rows(rows: tuple[object, ...]) -> None:
    text = report(replace(RESULT, rows=rows), Slo(itl=0.1))  # type: ignore[arg-type]
    reader = Reader(text)
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawn)
    assert "NaN" not in reader.text
    assert "inf" not in reader.text


def test_ticks_are_round_and_few() -> None:
    assert linear_ticks(2.3) == (0, 0.5, 1, 1.5, 2, 2.5)
    assert linear_ticks(5) == (0, 1, 2, 3, 4, 5)
    assert linear_ticks(101) == (0, 25, 50, 75, 100, 125)
    assert log_ticks(320, 21_000) == (500, 1_000, 2_000, 5_000, 10_000, 20_000)
    assert log_ticks(1e-3, 1e6) == tuple(10.0**power for power in range(-3, 7))[::2]
    assert log_ticks(31, 33) == (20, 50)


@given(
    st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_every_point_lies_in_the_plot(values: list[float], log_x: bool, log_y: bool) -> None:
    points = tuple(Point(at + 1, one, one / 9, one * 1.5) for at, one in enumerate(values))
    chart = Chart("t", "d", "x", "y", (Line("a", points, 1),), str, log_x, log_y)
    root = ElementTree.fromstring(draw(chart, alone=True))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    places = [p.attrib["transform"] for p in root.iter() if "transform" in p.attrib]
    assert len(places) == len(values) + 1  # the legend has one
    for place in places:
        across, down = map(float, place.removeprefix("translate(").removesuffix(")").split(","))
        assert 0 <= across <= width
        assert 0 <= down <= height


def test_the_picture_of_the_readme_shows_the_evidence() -> None:
    written = (FOLDER / NAME).read_text(encoding="utf-8")
    assert written == picture(), "write it with `python -m benchmarks.pictures`"
    ElementTree.fromstring(written)
    assert (FOLDER / NAME).relative_to(ROOT).as_posix() in (ROOT / "README.md").read_text()
