"""Acceptance on the user's text replaces what is published or imposed, for its own pair only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.bench.acceptance import (
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
)
from peagle.bench.imposed import with_text_acceptance
from peagle.catalog import find_pair, load_catalog
from peagle.catalog.schema import Catalog
from peagle.errors import UserError
from peagle.render.requests import tag_value
from peagle.speed.acceptance import acceptance_of
from tests.support import raises_code
from tests.unit.bench.drafting import Drafting, prompts_of

PAIR = "gpt-oss-20b+p-eagle"
FULL = "openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE"


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
    assert not find_pair(catalog, PAIR).drafter.on_text, "the catalogue itself is unchanged"  # type: ignore[union-attr]
    others = [one.on_text for one in find_pair(found, PAIR).target.drafters if one != drafter]
    assert set(others) == {()}


def test_the_tag_of_an_endpoint_names_its_pair(
    catalog: Catalog, measured: AcceptanceResult, tmp_path: Path
) -> None:
    server = replace(measured.server, pair=tag_value(FULL))
    file = saved(tmp_path, replace(measured, server=server))

    assert find_pair(with_text_acceptance(catalog, PAIR, file), PAIR).drafter.on_text  # type: ignore[union-attr]


def test_a_url_has_no_pair_so_it_must_be_named(
    catalog: Catalog, measured: AcceptanceResult, tmp_path: Path
) -> None:
    file = saved(tmp_path, replace(measured, server=replace(measured.server, pair=None)))

    with raises_code("acceptance", UserError) as raised:
        with_text_acceptance(catalog, "gpt-oss-20b", file)

    assert raised.value.fix == "name it: gpt-oss-20b+DRAFTER"
    assert find_pair(with_text_acceptance(catalog, PAIR, file), PAIR).drafter.on_text  # type: ignore[union-attr]


@pytest.mark.parametrize("pair", ["gpt-oss-120b", "gpt-oss-20b+eagle3"])
def test_another_pair_is_refused(
    catalog: Catalog, measured: AcceptanceResult, tmp_path: Path, pair: str
) -> None:
    with raises_code("acceptance", UserError) as raised:
        with_text_acceptance(catalog, pair, saved(tmp_path, measured))

    assert raised.value.message.endswith(f"is of {FULL}, not of {pair}")


def test_what_is_not_of_the_users_text_is_refused(
    catalog: Catalog, measured: AcceptanceResult, tmp_path: Path
) -> None:
    stand_in = replace(measured.server, stand_in="peagle/tiny")
    imposed = replace(measured.total.acceptance, basis="imposed")
    few = replace(measured.total.acceptance, drafts=99)
    for wrong, why in (
        (replace(measured, server=stand_in), "peagle/tiny was measured in place of the target"),
        (replace(measured, total=replace(measured.total, acceptance=imposed)), "was imposed"),
        (replace(measured, total=replace(measured.total, acceptance=few)), "99 drafts are too few"),
    ):
        with raises_code("acceptance", UserError) as raised:
            with_text_acceptance(catalog, PAIR, saved(tmp_path, wrong))
        assert why in raised.value.message
