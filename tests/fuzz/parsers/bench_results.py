"""What a report reads: results of a bench and evidence; and the options of a sweep."""

from __future__ import annotations

import json
from dataclasses import replace

from peagle.bench.compare import summary_of
from peagle.bench.evidence import evidence_document, read_result
from peagle.bench.local import catalog_name
from peagle.bench.sweep import parse_settings
from peagle.errors import UserError
from peagle.speed.slo import parse_slo
from tests.fuzz.inputs import TEXTS, json_bytes, texts
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.files import written
from tests.unit.bench.made import RESULT, ROWS

_SMALL = replace(RESULT, rows=ROWS[:4:3])
RESULTS = (json.loads(json.dumps(_SMALL.document())), evidence_document(_SMALL))


def _result(data: bytes) -> None:
    result, _ = read_result(written("result.json", data))
    for rows in result.by_workload().values():
        summary_of(rows)


PARSERS = (
    Parser(
        "bench-result",
        _result,
        json_bytes(*RESULTS),
        (UserError,),
        [json.dumps(one).encode() for one in RESULTS],
    ),
    Parser(
        "bench-settings",
        parse_settings,
        texts("k=none,1,3", more=TEXTS),
        (UserError,),
        ["k=none,1,3"],
    ),
    Parser(
        "bench-gpu",
        lambda name: catalog_name(name, ("H100", "L4", "L40S")),
        texts("NVIDIA H100 80GB HBM3", more=TEXTS),
        (),
        ["NVIDIA H100 80GB HBM3"],
    ),
    Parser(
        "slo",
        parse_slo,
        texts("ttft=0.5,itl=0.02", more=TEXTS),
        (UserError,),
        ["ttft=0.5,itl=0.02"],
    ),
)
