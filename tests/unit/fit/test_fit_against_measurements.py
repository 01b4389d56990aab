"""The fit against real vLLM on a real GPU: every row of the evidence, none with a constant of its
own. The measured engine had dummy weights and the config.json files in the catalogue.
"""

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu.geometry import Setting
from peagle.checks import check
from peagle.fit.estimate import GIB, FitCase, cache_layout, compute_fit, refusal_reason
from peagle.vllm.defaults import in_flight_tokens
from tests.unit.checks.cases import catalog_case
from tests.unit.fit.geometry import H200, drafter, target

EVIDENCE = Path(__file__).parents[3] / "model_catalog" / "evidence" / "memory-h200.json"
MOST_TOKENS_OFF = 0.03
MOST_GIB_OFF = 2.0
MOST_SHARE_OFF = 0.03
"""Of the memory left for the cache; or ``MOST_GIB_OFF``, where that is more."""


@dataclass(frozen=True)
class Row:
    """One measured start: settings and result. ``exact``: in bytes, from the engine's worker; else
    rounded, from its log."""

    name: str
    case: FitCase
    kv_gib: float
    tokens: int
    weights_gib: float
    compiled: bool
    exact: bool


def document() -> Any:
    return json.loads(EVIDENCE.read_text())


def rows() -> list[Row]:
    """Every row in which the engine allocated a cache, measured or only logged."""
    evidence = document()
    version, records = evidence["engine"]["version"], [*evidence["rows"], *evidence["log_rows"]]
    return [_row(row, version) for row in records if "kv_cache_tokens" in row["logged"]]


def _row(row: dict[str, Any], version: str) -> Row:
    logged, ranks = row["logged"], row["ranks"]
    rank = min(ranks, key=lambda rank: rank["available_kv_cache_memory"]) if ranks else None
    return Row(
        name=f"{row['name']} of host {row['host']}",
        case=case_of(row, version),
        kv_gib=rank["available_kv_cache_memory"] / GIB
        if rank
        else logged["available_kv_cache_gib"],
        tokens=int(logged["kv_cache_tokens"]),
        weights_gib=rank["model_memory_usage"] / GIB if rank else logged["weights_gib"],
        compiled=logged.get("compiled_before", False),
        exact=rank is not None,
    )


def case_of(row: dict[str, Any], version: str) -> FitCase:
    """The pair and the engine's arguments; the H200's memory is that of CUDA."""
    setting = Setting(**row["setting"])
    engine = H200._replace(
        vllm=version,
        gpu_count=setting.tensor_parallel_size,
        gpu_memory_gib=150_109_880_320 / GIB,
        tensor_parallel_size=setting.tensor_parallel_size,
        gpu_memory_utilization=setting.gpu_memory_utilization,
        max_model_len=setting.max_model_len,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens or H200.max_num_batched_tokens,
        kv_cache_dtype=setting.kv_cache_dtype,
        enforce_eager=setting.enforce_eager,
        k=setting.k,
    )
    model, head = target(setting.pair), None
    if setting.drafter:
        head = drafter(setting.pair, setting.drafter)._replace(
            own_embeddings="embed_tokens" in setting.own(), own_output="lm_head" in setting.own()
        )
    return FitCase(model, head, engine)


def off(row: Row, compiled: bool) -> tuple[float, float]:
    """By how many GiB the cache is too large, and by which share the tokens are."""
    fit = compute_fit(row.case._replace(engine=row.case.engine._replace(compiled=compiled)))
    return fit.kv_cache_gib - row.kv_gib, fit.kv_cache_tokens / row.tokens - 1


def test_the_evidence_covers_the_required_settings() -> None:
    measured = rows()
    pairs = {(row.case.target.architecture.class_name, bool(row.case.drafter)) for row in measured}
    assert len({name for name, _ in pairs}) == 3, "GPT-OSS, Qwen3-Coder, Gemma"
    assert len(pairs) == 6, "with and without drafter"
    assert len({row.case.engine.k for row in measured if row.case.drafter}) >= 3
    assert {row.case.engine.gpu_memory_utilization for row in measured} == {0.8, 0.9}
    assert {row.case.engine.kv_cache_dtype for row in measured} == {"auto", "fp8"}
    assert len({row.case.target.architecture.layers for row in measured}) == 4
    assert sum(row.exact for row in measured) >= 24


def refusals() -> dict[str, dict[str, Any]]:
    """The refused settings by the engine's message, up to the first number or comma."""
    rows = [row for row in document()["rows"] if "error" in row]
    return {row["error"].partition(" is set")[0].partition(" currently")[0]: row for row in rows}


def test_settings_that_vllm_refuses_are_refused() -> None:
    slots = refusals()["refused: Value error, max_num_scheduled_tokens"]
    assert "reserves 9,216 tokens" in (refusal_reason(case_of(slots, "0.26.0")) or "")
    sliding = refusals()["refused: NotImplementedError: FlashInfer backend on SM90"]["setting"]
    case = catalog_case(
        f"{sliding['pair']}+{sliding['drafter']}",
        vllm="0.26.0",
        instance_type="ml.p5en.48xlarge",
        settings={"kv-cache-dtype": sliding["kv_cache_dtype"]},
    )
    assert "sliding-flashinfer" in {finding.code for finding in check(case)}
    assert len(refusals()) == 2, "a new refusal needs a rule of its own"


def test_the_documents_have_the_largest_error() -> None:
    errors = [off(row, False) for row in rows()]
    gib, share = (max(map(abs, column)) for column in zip(*errors, strict=True))
    half = statistics.median(abs(share) for _, share in errors)
    chapter = EVIDENCE.parents[2] / "docs" / "estimates.md"
    text = " ".join(chapter.read_text(encoding="utf-8").split())
    assert f"Compared with {len(errors)} starts of vLLM 0.26.0" in text
    assert f"the largest error is {share:.1%}".replace("%", " %") in text
    assert f"of the KV cache tokens and {gib:.1f} GiB; half of the starts are within" in text
    (within,) = re.findall(r"half of the starts are within ([\d.]+) %", text)
    assert half <= float(within) / 100


@pytest.mark.parametrize(
    "measured_before", [False, True], ids=["as case_of", "knowing the compile cache"]
)
def test_every_row_is_within_tolerance(measured_before: bool) -> None:
    for row in rows():
        gib, share = off(row, measured_before and row.compiled)
        assert abs(share) <= MOST_TOKENS_OFF, row.name
        assert abs(gib) <= max(MOST_GIB_OFF, MOST_SHARE_OFF * row.kv_gib), row.name


def test_weights_are_within_an_eighth_of_a_gib() -> None:
    """cuBLAS takes its workspace while some heads load, which vLLM counts among the weights."""
    for row in rows():
        fit = compute_fit(row.case)
        weights = fit.weights_gib + fit.drafter_gib
        assert weights == pytest.approx(row.weights_gib, abs=0.13), row.name


def test_the_tokens_of_a_known_cache_are_exact() -> None:
    for row in filter(lambda row: row.exact, rows()):
        layout, engine = cache_layout(row.case), row.case.engine
        in_flight = in_flight_tokens(engine, row.case.drafter)
        tokens, _ = layout.capacity(round(row.kv_gib * GIB), engine.max_model_len, in_flight)
        assert tokens == row.tokens, row.name


@pytest.mark.parametrize(("pair", "file"), [
    ("qwen3-coder-30b", "graphs-qwen3-coder-30b-h200.json"),
    ("gpt-oss-20b", "conversations-gpt-oss-20b-h200.json"),
])  # fmt: skip
def test_the_cache_beside_larger_cuda_graphs_is_within_one_percent(pair: str, file: str) -> None:
    """vLLM 0.28.0, whose log has the tokens of the KV cache: up to 2,560 tokens a graph."""
    for raw in json.loads((EVIDENCE.parent / file).read_text())["raw"]:
        engine = H200._replace(
            vllm="0.28.0",
            gpu_memory_gib=150_109_880_320 / GIB,
            max_num_seqs=raw["max_num_seqs"],
            k=raw["k"],
            max_cudagraph_capture_size=raw["max_cudagraph_capture_size"],
            prefix_caching=raw["prefix_caching"],
        )
        head = drafter(pair, raw["drafter"]) if raw["drafter"] else None
        tokens = compute_fit(FitCase(target(pair), head, engine)).kv_cache_tokens
        assert tokens == pytest.approx(raw["kv_cache_tokens"], rel=0.01), engine
