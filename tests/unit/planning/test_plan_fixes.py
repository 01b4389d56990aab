"""Every option that a printed fix proposes removes the finding."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.findings import Finding
from peagle.planning import Options, Plan, make_plan
from peagle.speed.slo import Slo, parse_slo
from tests.unit.planning.small_catalog import CATALOG as SMALL
from tests.unit.planning.speeds import measured, run

CATALOG = load_catalog()
MEASURED = measured(run())

NUMBER = r"[0-9][0-9,]*"
VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "instance-type": (r"ml\.[a-z0-9-]+\.[0-9]*[a-z]+", str),
    "instance-count": (NUMBER, int),
    "k": (NUMBER, int),
    "max-model-len": (NUMBER, int),
    "concurrency": (NUMBER, int),
    "prompt-tokens": (NUMBER, int),
    "output-tokens": (NUMBER, int),
    "min-tokens-per-second": (NUMBER, float),
    "max-price-per-hour": (r"[0-9]+\.[0-9]+", float),
    "slo": (r"[a-z]+=[0-9.]+(?:,[a-z]+=[0-9.]+)?", parse_slo),
    "vllm": (r"[0-9]+\.[0-9]+\.[0-9]+", str),
}
"""Option -> how its values look in a fix, and their type."""

pytestmark = pytest.mark.thorough

Corpus = tuple[Catalog, str, tuple[dict[str, Any], ...]]


def _products(**values: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """All combinations; ``None`` leaves an option out."""
    found = (dict(zip(values, some, strict=True)) for some in itertools.product(*values.values()))
    return tuple({k: v for k, v in one.items() if v is not None} for one in found)


CORPUS: dict[str, Corpus] = {
    "small instances": (SMALL, "chat", _products(
        instance_type=("ml.g5.xlarge", "ml.g5.12xlarge", "ml.g7e.2xlarge"),
        concurrency=(None, 500, 3000),
        instance_count=(None, 1),
        max_model_len=(None, 8192),
    )),
    "requirements": (MEASURED, "chat", _products(
        instance_type=(None, "ml.g7e.2xlarge"),
        instance_count=(None, 1, 3),
        k=(None, 7),
        min_tokens_per_second=(850, 950, 5000),
    )),
    "times and prices": (MEASURED, "chat+p-eagle", _products(
        instance_type=(None, "ml.g7e.2xlarge"),
        slo=(None, Slo(ttft=0.05), Slo(ttft=0.2, itl=0.01)),
        max_price_per_hour=(None, 3.5, 8.0),
        instance_count=(None, 2),
    )),
    "requests": (SMALL, "chat", _products(
        prompt_tokens=(1000, 4000, 9000), output_tokens=(None, 200), max_model_len=(None, 4096)
    )),
    "named drafters": (MEASURED, "chat+eagle3", _products(
        concurrency=(8, 32), instance_type=("ml.g7e.2xlarge",), k=(None, 3)
    )),
    "gpt-oss-20b": (CATALOG, "gpt-oss-20b", _products(
        instance_type=("ml.g4dn.xlarge", "ml.g5.xlarge", "ml.g6e.xlarge"),
        concurrency=(None, 400),
        k=(None, 11),
    )),
    "gpt-oss-120b": (CATALOG, "gpt-oss-120b", _products(
        max_price_per_hour=(None, 3.0, 15.0), slo=(None, Slo(itl=0.002)), concurrency=(8, 300)
    )),
}  # fmt: skip


def proposed(fix: str) -> Iterator[dict[str, Any]]:
    """The options with values in a fix, one by one; and ``--no-speculation``."""
    for option, (pattern, of) in VALUES.items():
        for found in re.finditer(rf"--{option}(?: to)? ({pattern})(?=[\s,;)]|$)", fix):
            yield {
                option.replace("-", "_"): of(found[1].replace(",", "") if of is int else found[1])
            }
    if "--no-speculation" in fix:
        yield {"speculation": False}


def urgent(made: Plan) -> list[Finding]:
    return [finding for finding in made.findings if finding.level != "note"]


@cache
def _findings(name: str) -> tuple[tuple[Options, Finding], ...]:
    catalog, pair, corpus = CORPUS[name]
    made = [(options := Options(pair=pair, **one), make_plan(options, catalog)) for one in corpus]
    return tuple((options, finding) for options, plan in made for finding in urgent(plan))


@pytest.mark.parametrize("name", CORPUS)
def test_each_printed_fix_removes_its_finding(name: str) -> None:
    catalog, applied = CORPUS[name][0], 0
    for options, finding in _findings(name):
        for change in proposed(finding.fix):
            if change == {"speculation": False}:
                change |= {"k": None, "drafter": None, "pair": options.pair.partition("+")[0]}
            fixed = make_plan(options.model_copy(update=change), catalog)
            remaining = [one.code for one in urgent(fixed)]
            assert finding.code not in remaining, (options, finding, change)
            applied += 1
    assert applied >= 2


def test_the_corpus_covers_the_findings_of_planning() -> None:
    codes = {finding.code for name in CORPUS for _, finding in _findings(name)}
    assert codes >= {
        "instance-too-small",
        "cache-below-concurrency",
        "several-instances",
        "price-above-limit",
        "speed-below-minimum",
        "slo-missed",
        "requests-above-context",
        "k-above-trained",
        "speculation-loses",
    }
