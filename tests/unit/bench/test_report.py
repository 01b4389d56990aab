"""The HTML report: its content, that all text is escaped, and that it loads nothing."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from peagle.bench.result import BenchResult, BenchSetting, BenchWorkload, Interval
from peagle.cli.view.bench import report
from peagle.workload import Slo, Workload
from tests.support import raises_code
from tests.unit.bench.made import ALONE, K3, RESULT, ROWS, row, two_workloads

NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&lt;b&gt;", "]]>", "'/*",
         "$x_{", "</svg>", "\\$")  # fmt: skip


class Reader(HTMLParser):
    """The elements and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.thorough
def test_tables_and_plots_show_the_numbers() -> None:
    text = report(two_workloads(), Slo(ttft=0.5, itl=0.004))
    reader = Reader(text)
    assert "p-eagle K=7 at 1 request (2.33 times the speed)" in reader.text
    for measured_row in ROWS:
        assert f"<td>{measured_row.tokens_per_second.value:,.1f}</td>" in text
    for fact in ("vLLM 0.28.0", "1 x H200", "$6.00 per hour", "Intel(R) Xeon(R)", "aiperf 0.3.0",
                 "ITL per output", "ITL per token", "Within ttft=0.5"):  # fmt: skip
        assert fact in reader.text
    assert "speculation stops paying at about" in reader.text
    assert "default-src 'none'" in text
    assert {"script", "img", "link", "iframe"}.isdisjoint(reader.tags)
    assert not re.search(r"@import|url\((?!#)|href=\"(?!#)", text), "it loads nothing"
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawn) == 2
    for picture_of_workload in drawn:
        ElementTree.fromstring(picture_of_workload)


@pytest.mark.thorough
def test_all_text_is_escaped() -> None:
    plain, hostile = Reader(report(with_texts("x"))), Reader(report(with_texts("x".join(NASTY))))
    kinds = {"script", "img", "b", "table", "tr", "td", "p", "svg", "h1", "dd"}
    assert [tag for tag in hostile.tags if tag in kinds] == [
        tag for tag in plain.tags if tag in kinds
    ]


def with_texts(text: str) -> BenchResult:
    """A result with this text in all places that come from outside."""
    rows = [
        replace(
            row(setting, 8, 100.0 + setting.k, BenchWorkload(text, Workload(1, 1))), incomplete=text
        )
        for setting in (ALONE, BenchSetting(text, 3))
    ]
    server = replace(RESULT.server, pair=text, vllm=text, gpu=text, stand_in=text,
                     instance_type=text, base_url=text)  # fmt: skip
    return replace(
        RESULT, server=server, rows=tuple(rows), price_source=text, sender=(text, text),
        command=("peagle", text), incomplete=text, started=text, toolkit=text,
        host=replace(RESULT.host, system=text, python=text, cpu=text),
    )  # fmt: skip


NOTHING = Interval(0.0, 0.0, 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "text"), [
    ((), "Nothing was measured."),
    ((replace(row(ALONE, 1, 1.0), tokens_per_second=NOTHING, incomplete="died"),), "died"),
    ((row(K3, 4, 10.0),), "Fastest: p-eagle K=3 at 4 requests."),
    ((row(ALONE, 1, 1e-6), row(ALONE, 10_000, 1e9)), "1,000,000,000.0"),
    ((row(ALONE, 2, 10.0, spread=4.0),), "-30.0"),
], ids=["none", "nothing-measured", "one", "far-apart", "interval-below-zero"])  # fmt: skip
def test_few_many_and_extreme_rows(rows: tuple[object, ...], text: str) -> None:
    reader = Reader(report(replace(RESULT, rows=rows), Slo(itl=0.1)))  # type: ignore[arg-type]
    assert text in reader.text


def test_without_its_libraries_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises_code("report-missing") as refused:
        report(RESULT)
    assert "peagle-toolkit[report]" in str(refused.value.fix)
