"""The integers of the fit equal those of vLLM's functions, for the real geometry of every pair."""

from itertools import pairwise
from typing import Any

import pytest

from peagle.catalog.schema import AttentionGroup
from peagle.engine.machine import Engine
from peagle.fit.estimate import FitCase, cache_layout, compute_fit, compute_layout
from peagle.vllm.defaults import PADDING_RATIO, cache_element_bytes, in_flight_tokens
from tests.engine.conftest import Ask
from tests.unit.checks.damage import tiny
from tests.unit.fit.geometry import TARGETS, case

pytestmark = pytest.mark.engine
GIB = 1 << 30


def parse_layers(groups: tuple[AttentionGroup, ...], tp: int, element: int) -> list[dict[str, Any]]:
    """Every layer with its cache, in the order in which vLLM sees the layers."""
    return [
        {
            "kv_heads": -(-group.kv_heads // tp),
            "head_dim": group.head_dim,
            "window": group.window,
            "element": element,
        }
        for group in groups
        for _ in range(group.layers)
    ]


ODD = (
    (AttentionGroup(kind="full", layers=5, kv_heads=8, head_dim=128),
     AttentionGroup(kind="sliding", layers=17, kv_heads=8, head_dim=128, window=512)),
    (AttentionGroup(kind="full", layers=4, kv_heads=3, head_dim=80),
     AttentionGroup(kind="sliding", layers=4, kv_heads=8, head_dim=128, window=512),
     AttentionGroup(kind="full", layers=2, kv_heads=8, head_dim=64)),
    (AttentionGroup(kind="sliding", layers=9, kv_heads=2, head_dim=64, window=256),
     AttentionGroup(kind="sliding", layers=3, kv_heads=2, head_dim=64, window=1024)),
    (AttentionGroup(kind="full", layers=9, kv_heads=2, head_dim=64),
     AttentionGroup(kind="full", layers=1, kv_heads=32, head_dim=128)),
)  # fmt: skip


def pairs() -> list[FitCase]:
    sizes = ((1, "auto", 32768), (2, "fp8", 131072), (8, "auto", 5000))
    return [
        case(name, head, tensor_parallel_size=tp, kv_cache_dtype=dtype, max_model_len=length)
        for name in TARGETS
        for head in (None, "p-eagle", "eagle3")
        for tp, dtype, length in sizes
    ]


def test_the_cache_is_divided_as_in_vllm(ask: Ask) -> None:
    """For every pair, and for layers of several sizes and windows that no pair has."""
    asked = [(compute_layout(groups, 1, 2, PADDING_RATIO), parse_layers(groups, 1, 2), 9999, 4096)
             for groups in ODD]  # fmt: skip
    for fit_case in pairs():
        engine, drafter = fit_case.engine, fit_case.drafter
        groups = fit_case.target.architecture.attention
        groups += drafter.shape.attention if drafter else ()
        element = cache_element_bytes(engine, "bfloat16")
        layers = parse_layers(groups, engine.tensor_parallel_size, element)
        in_flight = in_flight_tokens(engine, drafter)
        asked.append((cache_layout(fit_case), layers, engine.max_model_len, in_flight))
    questions, expected = [], []
    for layout, layers, length, in_flight in asked:
        for available in (7 * GIB + 1, 61 * GIB + 12345):
            sizes = {"length": length, "in_flight": in_flight, "available": available}
            questions.append({"layers": layers, **sizes})
            tokens, concurrency = layout.capacity(available, length, in_flight)
            expected.append({
                "blocks": available // layout.block_bytes, "tokens": tokens,
                "concurrency": concurrency, "needed": layout.request_bytes(length, in_flight),
            })  # fmt: skip
    assert len(questions) == 80
    assert ask("cache_capacity", questions) == expected


STEPS = [
    (k, requests, tokens)
    for k in (1, 2, 5, 8, 10)
    for requests, tokens in (
        (1024, 512), (1024, 1023), (1024, 1024), (1024, 2048), (1024, 4096), (1024, 8192),
        (1024, 16384), (4, 4), (4, 7), (4, 8), (4, 9), (4, 10),
    )
]  # fmt: skip
"""K, requests at a time, tokens of a step."""


def tiny_engine(k: int, requests: int, tokens: int, parallel: bool) -> dict[str, Any]:
    """vLLM's arguments for the tiny pair."""
    head: dict[str, Any] = {"model": str(tiny("p-eagle")), "parallel_drafting": True}
    return {
        "model": str(tiny("target")),
        "max_model_len": 128,
        "max_num_seqs": requests,
        "max_num_batched_tokens": tokens,
        "speculative_config": {
            "method": "eagle3",
            "num_speculative_tokens": k,
            **(head if parallel else {"model": str(tiny("eagle3"))}),
        },
    }


Step = tuple[int, int, int, bool]
"""K, requests at a time, tokens of a step, whether the head drafts in parallel."""
REFUSAL_WORDS: dict[Step, str | None] = {
    (5, 1024, 2048, True): None,  # with many requests and drafts, vLLM queues requests
    (8, 1024, 4096, True): None,
    (10, 4, 9, True): "enough slots",
    (1, 1024, 1023, False): "max_num_seqs",
}
"""Part of vLLM's error for some steps; ``None`` if it accepts the step."""


def fits(step: Step, vllm: str) -> bool:
    """Whether the fit accepts the step."""
    k, requests, tokens, parallel = step
    fit_case = case("qwen3-coder-30b", "p-eagle" if parallel else "eagle3", vllm=vllm, k=k)
    changed = {"max_num_seqs": requests, "max_num_batched_tokens": tokens}
    return compute_fit(fit_case._replace(engine=fit_case.engine._replace(**changed))).fits  # type: ignore[arg-type]


def at_a_boundary(verdicts: dict[Step, bool]) -> set[Step]:
    """The steps on both sides of every change of the verdict as the step grows; without a change,
    the step that is most likely to be wrong."""
    chosen = set()
    for k, requests, parallel in {(k, requests, parallel) for k, requests, _, parallel in verdicts}:
        row = sorted(step for step in verdicts if (*step[:2], step[3]) == (k, requests, parallel))
        changes = [pair for pair in pairwise(row) if verdicts[pair[0]] != verdicts[pair[1]]]
        assert len(changes) <= 1, "if a step is accepted, larger ones are too"
        chosen |= set(*changes) or {row[0] if verdicts[row[0]] else row[-1]}
    return chosen


def test_steps_are_refused_where_vllm_refuses_them(engine: Engine, ask: Ask) -> None:
    steps = [(*step, parallel) for step in STEPS for parallel in (True, False)]
    verdicts = {step: fits(step, engine.vllm) for step in steps}
    trials = sorted(at_a_boundary(verdicts) | set(REFUSAL_WORDS))
    answers = ask("refusals", [tiny_engine(*trial) for trial in trials])
    refusals = dict(zip(trials, answers, strict=True))
    for step, refusal in refusals.items():
        assert verdicts[step] == (refusal is None), (step, refusal)
    for step, words in REFUSAL_WORDS.items():
        refusal = refusals[step]
        assert refusal is None if words is None else words in (refusal or "")
