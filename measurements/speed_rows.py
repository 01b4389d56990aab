"""The rows of the evidence files, and the engines that they were measured with."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from peagle.bench.evidence import SCRIPT
from peagle.bench.result import is_compiling
from peagle.case import build_case
from peagle.catalog.loading import load_catalog
from peagle.catalog.schema import NO_GPU, Catalog, Speed
from peagle.catalog.tables import SpeedModel
from peagle.fit.building import fit_case
from peagle.fit.estimate import FitCase
from peagle.options import Options
from peagle.speed.estimate import MEASURED_REQUESTS, MEASURED_STEP
from peagle.speed.step import StepTimes, read_geometry
from peagle.workload import Workload

EVIDENCE = Path(__file__).parents[1] / "model_catalog" / "evidence"
COMPARED = EVIDENCE / "compared"
"""Evidence that is neither used by plans nor fitted: incomplete sweeps."""
SCRIPTS = ("measurements/gpu/speed.py", "benchmarks/gpu/speed.py", SCRIPT)
"""The script, its earlier place, which evidence names, and ``peagle bench``. The script is in the
history of the repository."""
CATALOG_IDS = {
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "qwen3-coder-30b": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "gemma-4-31b": "google/gemma-4-31B-it",
}
WITH_EXPERTS = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b")
"""The pairs whose target is a mixture of experts."""
ADAPTIVE = "-adaptive"
"""Suffix of a drafter whose draft length vLLM chooses for each step, up to K (0.30.0 and later)."""
INTERVAL = 0.05
"""Repetitions ended when the slowest and the fastest differed by less than this share."""
DISTURBED = 0.2
"""How much longer than with other prompts one request's median ITL is in a disturbed row, as a
share. In the first evidence 14 of 18 settings are within 14 %, the others beyond 30 %."""
STALLED_TTFT, STALLED_ITL = 2.5, 4.0
"""How many times as long as with the other settings the mean TTFT or the P99 of ITL is where a
kernel was compiled. Of all rows of single prompts seven of GPT-OSS with 128 requests exceed this,
by 2.8 to 11.6 times; the others are within 2.2 and 3.5."""
HELD_BACK = 0.2
"""How much longer than a step the mean ITL is where vLLM holds text back, as a share. A token that
is a part of a character has no text yet: of random tokens of Gemma-4, with drafts of 1.8 tokens, an
output comes every third step. Of all rows 12 exceed 50 %, the others are within 7 %."""

_SPEED_KEYS = frozenset(Speed.model_fields)

RawRow = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One measured row: the fastest repetition and its latencies, and how it was measured."""

    file: str
    pair: str
    gpu: str
    gpus: int
    vllm: str
    drafter: str | None
    k: int
    load: int
    prompt: int
    answer: int
    cached: int
    graphs: int | None
    length: float
    tokens_per_second: float
    low: float
    first: float
    between: float
    """Mean TTFT and ITL; 0 where they are not those of the steps (``HELD_BACK``)."""
    step: float
    together: bool
    """Whether the KV cache holds all requests, so that a step has all of them."""
    turns: bool
    """Whether they are turns of conversations that follow one another."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells this row from all others."""
        sizes = self.prompt, self.answer, self.cached
        return self.file, self.drafter, self.k, self.load, *sizes, self.graphs

    @property
    def compiling(self) -> bool:
        """Whether the engine still compiled kernels in the repetitions."""
        return is_compiling(self.low, self.tokens_per_second)

    @property
    def workload(self) -> Workload:
        """The size of its requests."""
        return Workload(self.prompt, self.answer, self.cached)

    @property
    def setting(self) -> str:
        """``p-eagle K=3``, ``target alone``."""
        return f"{self.drafter} K={self.k}" if self.drafter else "target alone"

    @property
    def place(self) -> str:
        """Host, request size and load: what the rows of a choice share. The prefix cache holds a
        block less of a prompt with a drafter."""
        cached = ", conversation" if self.cached else ""
        return f"{self.file}, {self.prompt} + {self.answer} tokens{cached}, {self.load}"


def key_of(file: str, speed: Speed) -> tuple[object, ...]:
    """``Row.key`` of a row of ``speeds``."""
    sizes = speed.prompt_tokens, speed.output_tokens, speed.cached_prompt_tokens
    graphs = speed.max_cudagraph_capture_size
    return file, speed.drafter, speed.k, speed.concurrency, *sizes, graphs


def rows(folder: Path = EVIDENCE, *, turns: bool = False) -> list[Row]:
    """The rows of the evidence files that these scripts wrote, without those of adaptive
    verification, those that repeat experts, those that other work on the host disturbed, and those
    whose sender was the limit. Without the conversations of ``peagle bench`` or, with ``turns``,
    only these: a turn arrives when its conversation is ready for it, which says little of a single
    prompt, so they are compared and not fitted."""
    all_rows = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        if document.get("script") not in SCRIPTS or not _is_known(document):
            continue  # what users measured of targets or on GPUs that the model does not have
        measured = _of_bench if document["script"] == SCRIPT else _of_gpu_host
        for speed, raw in measured(document):
            if (speed.get("turns", 1) > 1) == turns:
                all_rows.append(_row(path.name, document, Speed.model_validate(speed), raw))
    return all_rows


def _is_known(document: Mapping[str, Any]) -> bool:
    known_gpu = catalog().speed_model.gpu(document.get("gpu", NO_GPU)) is not None
    return known_gpu and document["pair"] in catalog().targets


def _of_gpu_host(document: Mapping[str, Any]) -> Iterator[tuple[RawRow, RawRow]]:
    """The speeds that measurements/gpu/speed.py wrote, and their raw rows."""
    name = next(name for name, pair in CATALOG_IDS.items() if pair == document["pair"])
    raws = document.get("raw", ())
    for raw in raws:
        adaptive = (raw["drafter"] or "").endswith(ADAPTIVE)
        disturbed = is_disturbed(raw, raws) or has_stalls(raw, raws)
        if not (repeats_experts(raw, name) or disturbed or adaptive):
            yield _speed_of(raw), raw


def _of_bench(document: Mapping[str, Any]) -> Iterator[tuple[RawRow, RawRow]]:
    """The speeds that ``peagle bench`` wrote, and their raw rows: without those whose sender was
    the limit, without a known size, and without those whose last requests were fewer than the
    others at a time."""
    for speed, raw in zip(document.get("speeds", ()), document.get("raw", ()), strict=True):
        whole = all(attempt["requests"] % raw["concurrency"] == 0 for attempt in raw["tries"])
        if not raw.get("saturated") and whole and speed["ttft_seconds"] and speed["itl_seconds"]:
            yield speed, raw


def repeats_experts(raw: RawRow, pair: str) -> bool:
    """Whether dummy weights made the tokens of a row's steps use the same experts.

    The biases of GPT-OSS's routers outweigh what a token has of its own, and a parallel drafter
    proposes one token at all positions, unless the biases were zero and the drafts random.
    """
    if pair not in WITH_EXPERTS:
        return False
    if raw["k"] and raw.get("drafted_tokens") != "random":
        return True
    biased = pair.startswith("gpt-oss") and raw.get("biases") != "zero"
    return biased and raw["concurrency"] > 1


def is_disturbed(raw: RawRow, document: Sequence[RawRow]) -> bool:
    """Whether other work on the host slowed this row down, according to the rows of its document.

    It did where the repetition before the others, in which vLLM compiles kernels, is the fastest.
    And one request's step reads the same weights whatever the prompt (the KV cache of 2,048 tokens
    adds 0.03 ms to 5 ms): with speculation the CPU determines much of it, and a step that is much
    longer than with other prompts waited for the CPU.
    """
    best: float = _fastest(raw)["output_tokens_per_second"]
    if raw.get("not_counted", 0.0) > (1 + INTERVAL) * best:
        return True
    if raw["concurrency"] != 1:
        return False
    engine = ("drafter", "k", "concurrency")
    same = (other for other in document if all(other[key] == raw[key] for key in engine))
    return _median_itl(raw) > (1 + DISTURBED) * min(map(_median_itl, same))


def has_stalls(raw: RawRow, document: Sequence[RawRow]) -> bool:
    """Whether vLLM compiled a kernel in the fastest repetition too, according to the rows of the
    same requests in its document: their first outputs, or single ones, wait far longer than with
    other settings."""
    requests = ("concurrency", "prompt_tokens", "output_tokens")
    others = [
        _fastest(other)
        for other in document
        if other is not raw and all(other[key] == raw[key] for key in requests)
    ]
    if len(others) < 2 or raw.get("turns", 1) > 1:
        return False
    best = _fastest(raw)
    for latency, statistic, times in (
        ("ttft_seconds", "mean", STALLED_TTFT),
        ("itl_seconds", "p99", STALLED_ITL),
    ):
        usual = statistics.median(other[latency][statistic] for other in others)
        if best[latency][statistic] > times * usual:
            return True
    return False


def _median_itl(raw: RawRow) -> float:
    seconds: float = _fastest(raw)["itl_seconds"]["p50"]
    return seconds


def _speed_of(raw: RawRow) -> dict[str, Any]:
    """The row of ``speeds`` for a raw one: the fastest repetition. The mean tokens of prompts, and
    those that the prefix cache held, are as the engine counted them: prompts of later turns are
    longer than the first one."""
    best = _fastest(raw)
    speeds = [attempt["output_tokens_per_second"] for attempt in raw["tries"]]
    values = {**raw, **best, "low": min(speeds), "high": max(speeds), "repetitions": len(speeds)}
    values["cached_prompt_tokens"] = 0
    if best.get("cache_queries"):
        tokens = best["output_tokens_per_second"] * best["seconds"]
        requests = round(tokens / raw["output_tokens"])
        values["prompt_tokens"] = round(best["cache_queries"] / requests)
        values["cached_prompt_tokens"] = round(best["cache_hits"] / requests)
    return {name: value for name, value in values.items() if name in _SPEED_KEYS}


def _fastest(raw: RawRow) -> RawRow:
    tries: Sequence[RawRow] = raw["tries"]
    return max(tries, key=lambda attempt: float(attempt["output_tokens_per_second"]))


def _row(file: str, document: Mapping[str, Any], speed: Speed, raw: RawRow) -> Row:
    prompt, answer = speed.prompt_tokens, speed.output_tokens
    first, between = speed.ttft_seconds, speed.itl_seconds
    if not (prompt and answer and first and between):
        raise ValueError(f"{file}: a row without sizes or latencies")
    requests, length = speed.concurrency, speed.acceptance_length or 1.0
    step = speed.tpot_seconds.mean * length if speed.tpot_seconds else between.mean
    in_time = between.mean <= (1 + HELD_BACK) * step
    return Row(
        file=file,
        pair=document["pair"],
        gpu=document["gpu"],
        gpus=document["tensor_parallel_size"],
        vllm=document["engine"]["version"],
        drafter=speed.drafter,
        k=speed.k,
        load=requests,
        prompt=prompt,
        answer=answer,
        cached=speed.cached_prompt_tokens,
        graphs=speed.max_cudagraph_capture_size,
        length=length,
        tokens_per_second=speed.output_tokens_per_second,
        low=speed.low or speed.output_tokens_per_second,
        first=first.mean if in_time else 0.0,
        between=between.mean if in_time else 0.0,
        step=between.p50,
        together=requests * (prompt + answer) <= raw.get("kv_cache_tokens", math.inf),
        turns=speed.turns > 1,
    )


@cache
def catalog() -> Catalog:
    """The bundled catalogue."""
    return load_catalog()


@cache
def case_of(
    pair: str,
    gpu: str,
    drafter: str | None,
    k: int,
    tp: int = 1,
    graphs: int | None = None,
    load: int = MEASURED_REQUESTS,
) -> FitCase:
    """The pair on the smallest instance with this GPU, with the options of the measured engines."""
    bundled = catalog()
    target = bundled.targets[pair]
    head = next((d for d in target.drafters if d.name == drafter), None)
    types = [i for i in bundled.instances.instances if i.gpu == gpu and i.gpu_count >= tp]
    instance = min(types, key=lambda i: (i.gpu_count, -i.gpu_memory_mib))
    settings = {"max-num-batched-tokens": str(MEASURED_STEP)}
    if graphs is not None:
        settings["max-cudagraph-capture-size"] = str(graphs)
    options = Options(
        pair=pair,
        k=k or None,
        instance_type=instance.type,
        concurrency=max(load, MEASURED_REQUESTS),
        settings=settings,
    )
    case = build_case(bundled, target, head, options, tensor_parallel_size=tp)
    return fit_case(case, instance)


@cache
def reference_times(
    pair: str, gpu: str, drafter: str | None, k: int, tp: int, graphs: int | None, load: int
) -> StepTimes:
    """The step times of an engine with the bundled constants."""
    model = catalog().speed_model
    case = case_of(pair, gpu, drafter, k, tp, graphs, load)
    speed = model.gpu(gpu, case.engine.gpu_memory_gib)
    if speed is None:
        raise ValueError(f"{gpu} is not in speed_model.yaml")
    return StepTimes(read_geometry(case), speed, model)


def summarize_times(row: Row, model: SpeedModel) -> StepTimes:
    """The step times of a row's engine with these constants."""
    engine = row.pair, row.gpu, row.drafter, row.k, row.gpus, row.graphs, row.load
    times = reference_times(*engine)
    return replace(times, model=model)
