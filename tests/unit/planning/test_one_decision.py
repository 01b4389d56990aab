"""A plan and a verdict select the same setting for the same engine, load and size of requests."""

import math
import random
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest

from peagle.catalog import find_drafter, load_catalog
from peagle.catalog.schema import Architecture, AttentionGroup, Catalog
from peagle.checkpoints.architecture import read_architecture
from peagle.options import Options
from peagle.planning.planner import make_plan
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.speed.ranking import Setting
from peagle.workload import WorkloadName
from tests.unit.checkpoints import public_targets as public

CATALOG = load_catalog()
QWEN = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
FULL = AttentionGroup(kind="full", layers=12, kv_heads=4, head_dim=128)


def _with_attention(*groups: AttentionGroup, of: Architecture | None = None) -> Catalog:
    """The catalogue with Qwen3-Coder, whose layers keep another kind of cache."""
    target = CATALOG.targets[QWEN]
    kept = {"attention": groups, "recurrent": of.recurrent, "latent": of.latent} if of else {}
    shape = target.architecture.model_copy(update=kept or {"attention": groups})
    changed = target.model_copy(update={"architecture": shape})
    return replace(CATALOG, targets={**CATALOG.targets, QWEN: changed})


def _with_unknown_default() -> Catalog:
    """The catalogue with a head of its owner as the only one of Qwen3-Coder, never measured."""
    target = CATALOG.targets[QWEN]
    head = find_drafter(target, target.default_drafter or "")
    drafter = head.model_copy(
        update={"name": "mine", "weights": "s3://my-bucket/head", "published": (),
                "long_context": None}
    )  # fmt: skip
    changed = target.model_copy(update={"drafters": (drafter,), "default_drafter": "mine"})
    return replace(CATALOG, targets={**CATALOG.targets, QWEN: changed})


HYBRID, MLA = read_architecture(public.QWEN3_NEXT), read_architecture(public.DEEPSEEK_V3)
CATALOGS = {
    "as published": CATALOG,
    "hybrid": _with_attention(FULL, of=HYBRID),
    "mla": _with_attention(MLA.attention[0].model_copy(update={"layers": 48}), of=MLA),
    "sliding": _with_attention(
        FULL, FULL.model_copy(update={"kind": "sliding", "layers": 36, "window": 1024})
    ),
    "unknown head": _with_unknown_default(),
}
PAIRS = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b", "gemma-4-31b", "qwen3-8b")
TYPES = (
    *("ml.g6.12xlarge", "ml.g6e.2xlarge", "ml.g7e.2xlarge", "ml.g7e.12xlarge"),
    *("ml.p5.4xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge"),
)
SIZE: dict[str, Any] = {"prompt_tokens": 2048, "output_tokens": 256}
LOADS = (1, 2, 8, 24, 64, 128)
WORKLOADS: tuple[WorkloadName | None, ...] = (None, "chat", "rag", "agent")


class Situation(NamedTuple):
    pair: str
    instance_type: str
    load: int
    workload: WorkloadName | None
    instances: int
    cache: str = "as published"


ALL = [
    Situation(*each, count)
    for each in product(PAIRS, TYPES, LOADS, WORKLOADS)
    for count in ((1, 2) if each[-1] is None else (1,))
]
"""Two instances find fewer of the cached tokens than one, so a verdict is about another size."""
OF_EACH_CACHE = [
    Situation("qwen3-coder-30b", *each)
    for each in product(TYPES, (2, 8, 24, 64), (None, "chat"), (1,), [*CATALOGS][1:])
]


def disagreement(at: Situation) -> str | None:
    """What a plan and a verdict with the same options say, where they differ. Where the plan has
    several engines, the verdict is about the load of one, on its number of GPUs."""
    size = {} if at.workload else SIZE
    plan = make_plan(
        Options(
            pair=at.pair,
            instance_type=at.instance_type,
            instance_count=at.instances,
            copies=1 if at.instances > 1 else None,
            concurrency=at.load * at.instances,
            workload=at.workload,
            **size,
        ),
        CATALOGS[at.cache],
    )
    if not plan.fit.fits or (plan.engines > 1 and at.workload):
        return None
    assert plan.speed is not None
    verdict = make_verdict(
        VerdictOptions(
            pair=at.pair,
            instance_type=at.instance_type,
            tensor_parallel_size=plan.fit.tensor_parallel_size if plan.engines > 1 else None,
            workload=at.workload,
            loads=(math.ceil(plan.concurrency / plan.engines),),
            **size,
        ),
        CATALOGS[at.cache],
    )
    row = verdict.workloads[0].loads[0]
    best, speed = row.best or Setting(drafter=None, k=0), row.speed(row.best)
    planned = Setting(
        drafter=plan.drafter.name if plan.drafter else None,
        k=plan.speculation.k if plan.speculation else 0,
    )
    tokens = plan.speed.tokens_per_second, speed.tokens_per_second if speed else None
    same = planned == best and plan.fit.tensor_parallel_size == verdict.tensor_parallel_size
    same = same and plan.max_model_len == verdict.max_model_len
    if plan.engines == 1 and same:
        same = tokens[0] == pytest.approx(tokens[1], rel=0.01)
    return None if same else f"{at}: plan {planned} {tokens[0]}, verdict {best} {tokens[1]}"


@pytest.mark.parametrize("at", [
    Situation("gpt-oss-120b", "ml.p5.48xlarge", 32, "chat", 1),
    Situation("gpt-oss-120b", "ml.g7e.12xlarge", 12, "agent", 1),
    Situation("gpt-oss-120b", "ml.g7e.2xlarge", 2, "agent", 1),
    Situation("qwen3-8b", "ml.g6.xlarge", 8, None, 1),
    Situation("qwen3-coder-30b", "ml.g7e.12xlarge", 100, "chat", 1),
    Situation("qwen3-8b", "ml.g6.12xlarge", 24, "chat", 1),
    Situation("qwen3-coder-30b", "ml.g7e.2xlarge", 8, None, 1, "unknown head"),
], ids=str)  # fmt: skip
def test_they_select_the_same_setting_on_instances_with_several_gpus(at: Situation) -> None:
    assert disagreement(at) is None


def test_a_verdict_has_the_gpus_of_the_plan_for_each_load() -> None:
    options = VerdictOptions(
        pair="gpt-oss-20b", instance_type="ml.g6.12xlarge", loads=(8, 64), **SIZE
    )
    verdict = make_verdict(options, CATALOG)
    for load in verdict.workloads[0].loads:
        planned = Options(
            pair="gpt-oss-20b", instance_type="ml.g6.12xlarge", concurrency=load.concurrency
        )
        gpus = load.tensor_parallel_size or verdict.tensor_parallel_size
        assert gpus == make_plan(planned, CATALOG).fit.tensor_parallel_size
    first, second = verdict.workloads[0].loads
    assert (first.tensor_parallel_size, second.tensor_parallel_size) == (4, None)
    # The plan for the load of all copies has the same price per token.
    plan = make_plan(
        planned.model_copy(update={"concurrency": 2 * 64, "instance_count": 1}), CATALOG
    )
    assert plan.copies is not None
    assert plan.copies.per_instance == 2
    speed = second.speed(second.best)
    assert speed is not None
    assert plan.speed is not None
    assert speed.usd_per_million_tokens == pytest.approx(
        plan.speed.usd_per_million_tokens, rel=0.01
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [
    0,
    pytest.param(1, marks=pytest.mark.exhaustive),
    pytest.param(2, marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_a_plan_and_a_verdict_select_the_same_setting(seed: int) -> None:
    sample = random.Random(seed).sample(ALL, 40)
    assert [text for at in sample if (text := disagreement(at))] == []


@pytest.mark.thorough
@pytest.mark.parametrize("cache", [*CATALOGS][1:])
def test_they_do_for_each_kind_of_cache(cache: str) -> None:
    situations = [at for at in OF_EACH_CACHE if at.cache == cache]
    sample = random.Random(0).sample(situations, 12)
    assert [text for at in sample if (text := disagreement(at))] == []
