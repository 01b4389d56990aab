"""Cases, workloads and constants for the tests of the performance model."""

from datetime import date
from typing import Any

from peagle.case import build_case
from peagle.catalog.find import find_instance
from peagle.catalog.loading import load_catalog
from peagle.catalog.schema import Speed, SpeedRun
from peagle.fit.building import fit_case
from peagle.fit.estimate import FitCase
from peagle.options import Options
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE, Acceptance, Performance
from peagle.speed.estimate import performance
from peagle.workload import Workload

CATALOG = load_catalog()
MODEL = CATALOG.speed_model
SHORT = Workload(128, 400)
LONG = Workload(4096, 256)
TWENTY, CODER, GEMMA = (
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "google/gemma-4-31B-it",
)


def case(
    target: str = TWENTY,
    drafter: str | None = None,
    k: int = 0,
    instance: str = "ml.p5.4xlarge",
    *,
    tp: int = 1,
    **engine: Any,
) -> FitCase:
    """A case of the catalogue; ``engine`` changes its engine settings."""
    listed = CATALOG.targets[target]
    head = next((d for d in listed.drafters if d.name == drafter), None)
    options = Options(pair=target, k=k or None, instance_type=instance)
    on = find_instance(CATALOG.instances, instance)
    whole = build_case(CATALOG, listed, head, options, tensor_parallel_size=tp)
    built = fit_case(whole, on)
    return built._replace(engine=built.engine._replace(**engine))


def accepted(length: float) -> Acceptance:
    """An imposed acceptance length; 1 is the target alone."""
    return Acceptance(length, "imposed", "a test") if length > 1 else NO_DRAFT_ACCEPTANCE


def speed(
    of: FitCase, load: float = 8, workload: Workload = SHORT, length: float = 1.0, **more: Any
) -> Performance:
    """The performance of a case by the catalogue's constants."""
    return performance(of, workload, load, accepted(length), more.pop("model", MODEL), **more)


def tokens(of: FitCase, load: float = 8, workload: Workload = SHORT, length: float = 1.0) -> float:
    """The estimated tokens per second, which must be known."""
    rate = speed(of, load, workload, length).tokens_per_second
    assert rate is not None
    return rate


def run(*speeds: Speed, **changes: Any) -> SpeedRun:
    """A run of GPT-OSS-20B on an H100 with these rows."""
    fields: dict[str, Any] = {
        "target": TWENTY,
        "date": date(2026, 11, 20),
        "vllm": "0.28.0",
        "gpu": "H100",
        "tensor_parallel_size": 1,
        "synthetic": True,
        "file": "run.json",
        "speeds": speeds,
    }
    return SpeedRun(**fields | changes)


def row(
    load: int, tokens_per_second: float, drafter: str | None = None, k: int = 0, **more: Any
) -> Speed:
    """A measured speed with prompts of 128 and answers of 400 tokens."""
    sizes = {"prompt_tokens": 128, "output_tokens": 400}
    return Speed(
        drafter=drafter,
        k=k,
        concurrency=load,
        output_tokens_per_second=tokens_per_second,
        **sizes | more,
    )
