"""A case of ``peagle fit`` as the checks look at it: with the fit's own settings and its GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from peagle.case import Case, ami_for
from peagle.catalog.schema import Catalog, Drafter, Pair, ProofPrompts, Target
from peagle.checkpoints.heads import attention_of, read_head
from peagle.checkpoints.models import Checkpoint
from peagle.checks import make_case
from peagle.cli.fit_case import Places, instance_of
from peagle.fit.models import FitCase
from peagle.planning import Options
from peagle.planning.drafter import own_head
from peagle.planning.engine_settings import engine_settings
from peagle.vllm.defaults import EngineConfig
from peagle.vllm.environment import Value

_OLDEST = "0.1.0"
"""The minimum of a model that nobody describes: the version rules know what its parts need."""


@dataclass(frozen=True)
class Question:
    """What was typed: the pair, what lies at the places that were named, and all options."""

    catalog: Catalog
    pair: Pair | None
    places: Places
    given: Mapping[str, Any]


def asked(question: Question, case: FitCase) -> Case:
    """The case as rules look at it. Its instance is the one that was named, if one was."""
    catalog, pair, given = question.catalog, question.pair, question.given
    engine, target_read, on = case.engine, question.places.target, given["instance_type"]
    target = pair.target if pair else _target(case, target_read)
    drafter = _drafter(question, target, case)
    found = make_case(
        catalog,
        target,
        drafter,
        k=engine.k,
        max_model_len=engine.max_model_len,
        vllm=engine.vllm,
        target_checkpoint=target_read,
        drafter_checkpoint=question.places.drafter if drafter else None,
        instance_type=on,
        tensor_parallel_size=engine.tensor_parallel_size,
        concurrency=given["max_num_seqs"],
    )
    gpu = instance_of(catalog, given).gpu_architecture
    settings = engine_settings(target, drafter, gpu, engine.vllm)
    return replace(
        found,
        settings={name: setting.value for name, setting in settings.items()} | _told(engine),
        ami=ami_for(found.runtimes, found.runtime, on) if on else None,
    )


def on_assumed_gpu(question: Question, case: Case) -> Case:
    """The case on the GPU whose memory was named, as the arithmetic takes it to be."""
    return replace(case, instance=instance_of(question.catalog, question.given))


def _told(engine: EngineConfig) -> dict[str, Value]:
    """What the fit reckons with, as vLLM's arguments."""
    return {
        "kv-cache-dtype": engine.kv_cache_dtype,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "gpu-memory-utilization": engine.gpu_memory_utilization,
        "enforce-eager": engine.enforce_eager,
    }


def _drafter(question: Question, target: Target, case: FitCase) -> Drafter | None:
    """The catalogue's drafter, the user's own head as a plan would have it, or none."""
    pair, read = question.pair, question.places.drafter
    if not case.engine.k:
        return None
    if read is None:
        return pair.drafter if pair else None
    heads = [drafter for drafter in target.drafters if drafter.method == "eagle3"]
    usual = pair.drafter if pair and pair.drafter in heads else next(iter(heads), None)
    if pair is None or usual is None:
        return _stand_in(read)
    options = Options(pair=target.short_name, drafter=read.location, drafter_checkpoint=read)
    return own_head(read.location, options, target, usual, question.catalog).value


def _stand_in(read: Checkpoint) -> Drafter:
    """A head of which only its checkpoint is known."""
    head = read_head(read.config)
    return Drafter(
        name="own",
        title=f"the head {read.location}",
        method="eagle3",
        parallel_drafting=head.parallel_drafting,
        format="speculators" if head.speculators_format else "vllm",
        min_vllm=_OLDEST,
        k_recommended=1,
        hidden_layers=head.layers,
        max_positions=head.max_positions,
        attention=attention_of(head),
        source=read.location,
    )


def _target(case: FitCase, read: Checkpoint | None) -> Target:
    """A target of which only its checkpoint is known."""
    model, location = case.target, read.location if read else "target"
    name = re.sub(r"[^A-Za-z0-9]+", "-", location).strip("-") or "target"
    dtypes, quantizations = ("bfloat16", "float16", "float32"), ("mxfp4", "fp8", "nvfp4")
    return Target(
        id=f"own/{name}",
        short_name="own",
        title=location,
        weights=location,
        revision="main",
        licence="",
        weight_bytes=model.checkpoint_bytes or 1,
        parameters=1,
        dtype=model.dtype if model.dtype in dtypes else "bfloat16",  # type: ignore[arg-type]
        quantization=model.quantization if model.quantization in quantizations else None,  # type: ignore[arg-type]
        min_vllm=_OLDEST,
        default_max_model_len=model.architecture.max_positions,
        architecture=model.architecture,
        default_drafter="own",
        drafters=(),
        proof=ProofPrompts(prompts=("",)),
        source=location,
    )
