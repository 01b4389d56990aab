"""Acceptance from a file: files that are refused, plans on which it is imposed, and catalogues."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.acceptance import (
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
    rates_of,
    read_acceptance,
    with_imposed_acceptance,
    with_text_acceptance,
)
from peagle.catalog import find_pair, load_catalog
from peagle.catalog.schema import Catalog
from peagle.errors import UserError
from peagle.planning import Options, Plan, make_plan
from peagle.render.requests import tag_value
from peagle.speed.acceptance import acceptance_of
from peagle_serve.contract import SPECULATION
from tests.support import raises_code
from tests.unit.bench.drafting import Drafting, prompts_of

PAIR = "gpt-oss-20b+p-eagle"
FULL = "openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    prompts = prompts_of("chat 1", "chat 2")
    return measure_acceptance(Drafting().target(), prompts, AcceptanceRequest()).document()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Options(pair="gpt-oss-20b+p-eagle", k=3), load_catalog())


def changed(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    total = document["total"]
    acceptance = {**total["acceptance"], **values}
    return {**document, "total": {**total, "acceptance": acceptance}}


@pytest.mark.parametrize(
    "values",
    [
        {"per_position": [0.7, 0.2, -0.1]},
        {"per_position": [1.7, 0.2, 0.1]},
        {"per_position": [0.2, 0.7, 0.1]},
        {"per_position": [0.7, 0.3]},
        {"length": 4.5},
        {"length": float("nan")},
        {"length": "nan"},
        {"drafts": 0},
    ],
)
def test_impossible_numbers_are_refused(
    document: dict[str, Any], tmp_path: Path, values: dict[str, Any]
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(changed(document, **values)))

    with raises_code("acceptance-file", UserError):
        read_acceptance(file)


def test_other_files_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with raises_code("acceptance-file", UserError):
        read_acceptance(file)
    other = json.dumps({**document, "format": 2})
    for text in ("", "{}", "[]", '{"format": 1', "NaN", '{"k": "x"}', other):
        file.write_text(text)
        with raises_code("acceptance-file", UserError):
            read_acceptance(file)


def test_only_measured_positions_and_domains_have_rates(
    document: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    found = read_acceptance(file)

    assert rates_of(found, 2, "chat") == (0.7, 0.2)
    with raises_code("acceptance-file", UserError):
        rates_of(found, 4)
    with raises_code("acceptance-file", UserError):
        rates_of(found, 2, "chats")


def test_the_engine_gets_the_rates(plan: Plan) -> None:
    found = with_imposed_acceptance(plan, (0.7, 0.4, 0.2))

    config = json.loads(found.environment[SPECULATION])
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == [0.7, 0.4, 0.2]
    assert config["num_speculative_tokens"] == 3
    assert found.environment[SPECULATION] in found.engine_arguments
    same = {name: getattr(plan, name)
            for name in ("speculation", "environment", "engine_arguments")}  # fmt: skip
    assert found.model_copy(update=same) == plan


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def measured() -> AcceptanceResult:
    prompts = prompts_of(*(f"{kind} {n}" for kind in ("code", "chat") for n in range(10)))
    found = measure_acceptance(Drafting().target(), prompts, AcceptanceRequest())
    return replace(found, server=replace(found.server, pair=FULL))


def saved(folder: Path, result: AcceptanceResult) -> Path:
    file = folder / "acceptance.json"
    file.write_bytes(acceptance_bytes(result))
    return file


@pytest.mark.parametrize(
    ("domain", "lengths"), [(None, (1.8, 2.267, 2.667)), ("chat", (1.7, 1.9, 2.0))]
)
def test_it_is_preferred_to_all_other_acceptance(
    catalog: Catalog,
    measured: AcceptanceResult,
    tmp_path: Path,
    domain: str | None,
    lengths: tuple[float, ...],
) -> None:
    found = with_text_acceptance(catalog, "gpt-oss-20b", saved(tmp_path, measured), domain)

    drafter = find_pair(found, PAIR).drafter
    runs = found.speeds["openai/gpt-oss-20b"]
    known = [acceptance_of(drafter, k, runs, {"p-eagle"}, decay=0.8) for k in (1, 2, 3)]
    assert [one.length for one in known] == pytest.approx(list(lengths), abs=2e-3)
    assert {one.basis for one in known} == {"measured"}
    assert "drafts on p.jsonl" in known[0].source
    assert not find_pair(catalog, PAIR).drafter.on_text, "the catalogue itself is unchanged"
    others = [one.on_text for one in find_pair(found, PAIR).target.drafters if one != drafter]
    assert set(others) == {()}


def test_the_pair_is_that_of_the_file_or_is_named(
    catalog: Catalog, measured: AcceptanceResult, tmp_path: Path
) -> None:
    for of_file in (tag_value(FULL), None):  # an endpoint has a tag, a URL has none
        server = replace(measured.server, pair=of_file)
        file = saved(tmp_path, replace(measured, server=server))
        assert find_pair(with_text_acceptance(catalog, PAIR, file), PAIR).drafter.on_text
    with raises_code("acceptance-file", UserError):
        with_text_acceptance(catalog, "gpt-oss-20b", file)
    for other in ("gpt-oss-120b", "gpt-oss-20b+eagle3"):
        with raises_code("acceptance-file", UserError):
            with_text_acceptance(catalog, other, saved(tmp_path, measured))


def test_what_is_not_of_the_users_text_is_refused(
    catalog: Catalog, measured: AcceptanceResult, tmp_path: Path
) -> None:
    stand_in = replace(measured.server, stand_in="peagle/tiny")
    imposed = replace(measured.total.acceptance, basis="imposed")
    few = replace(measured.total.acceptance, drafts=99)
    for wrong in (
        replace(measured, server=stand_in),
        replace(measured, total=replace(measured.total, acceptance=imposed)),
        replace(measured, total=replace(measured.total, acceptance=few)),
    ):
        with raises_code("acceptance-file", UserError):
            with_text_acceptance(catalog, PAIR, saved(tmp_path, wrong))
