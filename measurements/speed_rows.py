"""The rows of the evidence files, and the engines that they were measured with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from measurements.gpu.evidence import is_disturbed, read, repeats_experts, speed_of
from measurements.gpu.geometry import ADAPTIVE, CATALOG_IDS
from peagle.bench.evidence import SCRIPT
from peagle.case import build_case
from peagle.catalog.loading import load_catalog
from peagle.catalog.schema import NO_GPU, Catalog, Speed
from peagle.catalog.tables import SpeedModel
from peagle.fit.building import fit_case
from peagle.fit.estimate import FitCase
from peagle.options import Options
from peagle.speed.estimate import MEASURED_STEP
from peagle.speed.step import StepTimes, read_geometry
from peagle.workload import Workload

EVIDENCE = Path(__file__).parents[1] / "model_catalog" / "evidence"
SCRIPTS = ("measurements/gpu/speed.py", "benchmarks/gpu/speed.py", SCRIPT)
"""The scripts that measure speed: on a GPU host, its earlier place, and ``peagle bench``."""


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
    step: float
    together: bool
    """Whether the KV cache holds all requests, so that a step has all of them."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells this row from all others."""
        sizes = self.prompt, self.answer, self.cached
        return self.file, self.drafter, self.k, self.load, *sizes, self.graphs

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


def rows(folder: Path = EVIDENCE) -> list[Row]:
    """The rows of the evidence files that these scripts wrote, without those of adaptive
    verification, those that repeat experts, those that other work on the host disturbed, and those
    whose sender was the limit."""
    all_rows = []
    for path in sorted(folder.glob("*.json")):
        document = read(path)
        if document.get("script") not in SCRIPTS or document.get("gpu") == NO_GPU:
            continue
        measured = _of_bench if document["script"] == SCRIPT else _of_gpu_host
        for speed, raw in measured(document):
            all_rows.append(_row(path.name, document, Speed.model_validate(speed), raw))
    return all_rows


Raw = Mapping[str, Any]


def _of_gpu_host(document: Mapping[str, Any]) -> Iterator[tuple[Raw, Raw]]:
    """The speeds that measurements/gpu/speed.py wrote, and their raw rows."""
    name = next(name for name, pair in CATALOG_IDS.items() if pair == document["pair"])
    raws = document.get("raw", ())
    for raw in raws:
        adaptive = (raw["drafter"] or "").endswith(ADAPTIVE)
        if not (repeats_experts(raw, name) or is_disturbed(raw, raws) or adaptive):
            yield speed_of(raw), raw


def _of_bench(document: Mapping[str, Any]) -> Iterator[tuple[Raw, Raw]]:
    """The speeds that ``peagle bench`` wrote, and their raw rows: without those whose sender was
    the limit, and without a known size."""
    for speed, raw in zip(document.get("speeds", ()), document.get("raw", ()), strict=True):
        if not raw.get("saturated") and speed["ttft_seconds"] and speed["itl_seconds"]:
            yield speed, raw


def _row(file: str, document: Mapping[str, Any], speed: Speed, raw: Raw) -> Row:
    prompt, answer = speed.prompt_tokens, speed.output_tokens
    first, between = speed.ttft_seconds, speed.itl_seconds
    if not (prompt and answer and first and between):
        raise ValueError(f"{file}: a row without sizes or latencies")
    requests = speed.concurrency
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
        length=speed.acceptance_length or 1.0,
        tokens_per_second=speed.output_tokens_per_second,
        low=speed.low or speed.output_tokens_per_second,
        first=first.mean,
        between=between.mean,
        step=between.p50,
        together=requests * (prompt + answer) <= raw.get("kv_cache_tokens", math.inf),
    )


@cache
def catalog() -> Catalog:
    """The bundled catalogue."""
    return load_catalog()


@cache
def case_of(
    pair: str, gpu: str, drafter: str | None, k: int, tp: int = 1, graphs: int | None = None
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
        concurrency=128,
        settings=settings,
    )
    case = build_case(bundled, target, head, options, tensor_parallel_size=tp)
    return fit_case(case, instance)


@cache
def reference_times(
    pair: str, gpu: str, drafter: str | None, k: int, tp: int, graphs: int | None
) -> StepTimes:
    """The step times of an engine with the bundled constants."""
    model = catalog().speed_model
    case = case_of(pair, gpu, drafter, k, tp, graphs)
    speed = model.gpu(gpu, case.engine.gpu_memory_gib)
    if speed is None:
        raise ValueError(f"{gpu} is not in speed_model.yaml")
    return StepTimes(read_geometry(case), speed, model)


def summarize_times(row: Row, model: SpeedModel) -> StepTimes:
    """The step times of a row's engine with these constants."""
    times = reference_times(row.pair, row.gpu, row.drafter, row.k, row.gpus, row.graphs)
    return replace(times, model=model)
