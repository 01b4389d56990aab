"""Rules for large pairs and for GPUs agree with vLLM's own functions."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.acceptance import with_imposed_acceptance
from peagle.catalog import load_catalog
from peagle.catalog.schema import AttentionGroup
from peagle.checks.rules.head_layout import draft_groups
from peagle.checks.rules.version import drafted
from peagle.planning import Options, make_plan
from peagle_serve.contract import SPECULATION
from tests.engine.conftest import Ask
from tests.engine.damage import Trial, engine_arguments
from tests.unit.checks.cases import GEOMETRY, geometry_case, tiny_case
from tests.unit.checks.damage import tiny

pytestmark = pytest.mark.engine
"""vLLM 0.28.0 pads the smaller group up to this."""
Geometry = tuple[tuple[AttentionGroup, ...], tuple[AttentionGroup, ...]]
"""The attention of a target, and that of a drafter."""


def parse_layers(geometry: Geometry) -> list[dict[str, Any]]:
    """The layers in vLLM's order: the target's, then the drafter's."""
    return [
        {**group.model_dump(include={"kind", "kv_heads", "head_dim", "window"}), "drafter": drafts}
        for groups, drafts in zip(geometry, (False, True), strict=True)
        for group in groups
        for _ in range(group.layers)
    ]


def full(layers: int, kv_heads: int = 8) -> tuple[AttentionGroup, ...]:
    """A group of so many layers of full attention; no group for 0 layers."""
    group = {"kind": "full", "kv_heads": kv_heads, "head_dim": 64}
    return tuple(AttentionGroup.model_validate(group | {"layers": n}) for n in [layers] if n)


def sliding(layers: int, window: int = 128) -> tuple[AttentionGroup, ...]:
    """A group of so many layers of sliding attention; no group for 0 layers."""
    group = {"kind": "sliding", "kv_heads": 8, "head_dim": 64, "window": window}
    return tuple(AttentionGroup.model_validate(group | {"layers": n}) for n in [layers] if n)


SMALL: list[Geometry] = [
    ((*sliding(narrow), *full(wide)), full(drafts, heads))
    for narrow, wide, drafts, heads in product(range(9), range(9), range(1, 7), (8, 4))
    if narrow or wide
] + [
    ((*sliding(narrow), *full(wide)), (*full(drafts), *sliding(slides, window)))
    for narrow, wide, drafts, slides, window in product(
        (0, 4), (0, 4, 9), range(2), range(4), (128, 64)
    )
    if (narrow or wide) and (drafts or slides)
]
REAL = [
    (folder.name, head)
    for folder in sorted(GEOMETRY.iterdir())
    for head in ("p-eagle", "eagle3")
    if (folder / head).is_dir()
]
"""Short names of real targets, and heads for them."""


def real_geometry(folder: Path, short: str, head: str) -> Geometry:
    """The attention of a real target and of a head of real size, read from their config.json."""
    case = geometry_case(folder, short, head)
    return case.architecture.attention, drafted(case)


@pytest.fixture(scope="module")
def groups(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> list[int | None]:
    """vLLM's groups for the drafter's layers of ``SMALL`` and of ``REAL``."""
    folder = tmp_path_factory.mktemp("asked")
    real = [real_geometry(folder / "-".join(pair), *pair) for pair in REAL]
    answers: list[int | None] = ask("kv_groups", [parse_layers(head) for head in (*SMALL, *real)])
    return answers


def test_layers_are_grouped_as_in_vllm(groups: list[int | None]) -> None:
    small = groups[: len(SMALL)]
    wrong = {
        str(parse_layers(geometry)): (ours, theirs)
        for geometry, theirs in zip(SMALL, small, strict=True)
        if (ours := draft_groups(*geometry)) is not None and ours != theirs
    }
    assert wrong == {}
    assert {1, 2, 3} <= set(small), "the cases include refused and accepted ones"


@pytest.mark.parametrize("pair", REAL, ids="+".join)
def test_vllm_puts_the_layers_of_a_real_head_into_one_group(
    pair: tuple[str, str], groups: list[int | None]
) -> None:
    group_of = dict(zip(REAL, groups[len(SMALL) :], strict=True))
    assert group_of[pair] == 1


def test_vllm_imposes_the_rates_of_a_sweep(ask: Ask) -> None:
    rates = (0.75, 0.5, 0.25)
    plan = with_imposed_acceptance(make_plan(Options(pair="tiny", k=3), load_catalog()), rates)
    config = json.loads(plan.environment[SPECULATION]) | {"model": str(tiny("p-eagle"))}
    engine = {"model": str(tiny("target")), "speculative_config": config}
    assert ask("imposed_rates", engine) == list(rates)


def test_the_cpu_engine_cannot_impose_rates(ask: Ask) -> None:
    """So a sweep on it refuses to."""
    assert ask("synthetic_on_cpu", None) == "Synthetic acceptance not supported with CPU sampling"


def test_model_runner_v2_supports_eagle3_and_not_p_eagle(ask: Ask, tmp_path: Path) -> None:
    heads = {"p-eagle": "tiny", "eagle3": "tiny+eagle3"}
    engines = {
        head: engine_arguments(Trial(tiny_case), tiny_case(tmp_path / head, head=head, pair=pair))
        for head, pair in heads.items()
    }
    lists = ask("runner_v2", engines)
    assert lists["p-eagle"] == ["parallel drafting for EAGLE speculative decoding"]
    assert lists["eagle3"] == []
