"""What the checks have to say of a case of ``peagle fit``: the sum of a wrong pair is right and
worthless."""

from __future__ import annotations

import re
from dataclasses import replace

from toolkit.catalog.models import Catalog, Drafter, Pair, Proof, Target
from toolkit.checkpoints.architecture import read_quantization
from toolkit.checkpoints.heads import read_head
from toolkit.checkpoints.models import Checkpoint
from toolkit.checks import check, make_case
from toolkit.checks.cases import ami_for
from toolkit.checks.models import Case
from toolkit.checks.strangers import stranger
from toolkit.findings import Finding, note, warning
from toolkit.fit.accounting import is_multimodal
from toolkit.fit.models import FitCase
from toolkit.fit.unknown import unknown_quantization
from toolkit.planning import Options
from toolkit.planning.own_heads import own_head, split_revision
from toolkit.planning.settings import engine_settings

_ABOUT_THE_GPU = ("gpu-too-old", "gpu-too-new")
"""What the rules about hardware say of the GPU itself; images and AMIs are no matter of memory."""

_RECKONED = ("drafting-slots",)
"""What the fit refuses by itself, and more exactly."""

_QUANTIZED = "quantization-estimated"

_OLDEST = "0.1.0"
"""The minimum of a model that nobody describes: the version rules know what its parts need."""


def findings_of(
    catalog: Catalog,
    pair: Pair | None,
    case: FitCase,
    read: tuple[Checkpoint | None, Checkpoint | None],
    instance_type: str | None,
) -> tuple[Finding, ...]:
    """Errors and warnings about target, head and load, errors about versions and the GPU.

    ``read`` is what lies at the places that were named, of target and drafter. A version's
    warnings are about what is served, not about memory.
    """
    asked = _asked(catalog, pair, case, read, instance_type)
    found = [
        finding
        for about in ("target", "head", "load")
        for finding in check(asked, about=about)
        if finding.level != "note" and finding.code not in _RECKONED
    ]
    found += (f for f in check(asked, about="version") if f.level == "error")
    found += (f for f in check(asked, only=_ABOUT_THE_GPU) if f.level == "error")
    if pair and read[1]:
        strange = stranger(split_revision(read[1].location)[0], pair.target, catalog)
        found += [strange] if strange else []
    found += _unneeded(case)
    found += _quantized(read)
    return tuple(sorted(found, key=lambda f: ("error", "warning", "note").index(f.level)))


def _unneeded(case: FitCase) -> list[Finding]:
    if case.engine.images or is_multimodal(case.target):
        return []
    message = "the target takes no images, so that --text-only changes nothing"
    return [note("text-only-unneeded", "--text-only", message, "leave it out")]


def _quantized(read: tuple[Checkpoint | None, Checkpoint | None]) -> list[Finding]:
    """Warnings about weights whose sizes come from their files, not from what vLLM makes of them.

    The arithmetic of heads takes 16 bits for every number.
    """
    found, (target, head) = [], read
    kind = unknown_quantization(target) if target else None
    if kind:
        message = f"weights quantised by {kind} are counted as they are stored"
        found.append(warning(_QUANTIZED, "target", message, "leave room for what vLLM repacks"))
    kind = read_quantization(head.config) if head else None
    if kind:
        message = f"the head is quantised by {kind}, and counted with 16 bits for every number"
        found.append(warning(_QUANTIZED, "drafter", message, "it may take less than shown"))
    return found


def _asked(
    catalog: Catalog,
    pair: Pair | None,
    case: FitCase,
    read: tuple[Checkpoint | None, Checkpoint | None],
    instance_type: str | None,
) -> Case:
    """The case as rules look at it."""
    engine, (target_read, head_read) = case.engine, read
    target = pair.target if pair else _target(case, target_read)
    drafter = _drafter(catalog, pair, target, case, head_read)
    asked = make_case(
        catalog,
        target,
        drafter,
        k=engine.k,
        max_model_len=engine.max_model_len,
        vllm=engine.vllm,
        target_checkpoint=target_read,
        drafter_checkpoint=head_read if drafter else None,
        instance_type=instance_type,
        tensor_parallel_size=engine.tensor_parallel_size,
    )
    gpu = asked.instance.gpu_architecture if asked.instance else ""
    settings = engine_settings(target, drafter, gpu, engine.vllm)
    return replace(
        asked,
        settings={name: setting.value for name, setting in settings.items()},
        ami=ami_for(asked.runtimes, asked.runtime, instance_type) if instance_type else None,
    )


def _drafter(
    catalog: Catalog,
    pair: Pair | None,
    target: Target,
    case: FitCase,
    read: Checkpoint | None,
) -> Drafter | None:
    """The catalogue's drafter, the user's own head as a plan would have it, or none."""
    if not case.engine.k:
        return None
    if read is None:
        return pair.drafter if pair else None
    heads = [drafter for drafter in target.drafters if drafter.method == "eagle3"]
    usual = pair.drafter if pair and pair.drafter in heads else next(iter(heads), None)
    if pair is None or usual is None:
        return _stand_in(read)
    options = Options(pair=target.short_name, drafter=read.location, drafter_checkpoint=read)
    return own_head(read.location, options, target, usual, catalog).value


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
        attention=head.attention,
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
        proof=Proof(prompts=("",)),
        source=location,
    )
