"""What the checks have to say of a case of ``peagle fit``: the sum of a wrong pair is right and
worthless."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.checkpoints.architecture import read_quantization
from toolkit.checks import check
from toolkit.checks.models import Case
from toolkit.checks.running import About
from toolkit.checks.strangers import stranger
from toolkit.cli.fit_asked import Question, asked, on_assumed_gpu
from toolkit.cli.fit_case import Places, lacks_processor
from toolkit.findings import Finding, note, warning
from toolkit.fit.accounting import is_multimodal
from toolkit.fit.models import FitCase
from toolkit.fit.unknown import unknown_quantization
from toolkit.planning.own_heads import split_revision

_ABOUT_THE_GPU = ("gpu-too-old", "gpu-too-new")
"""What the rules about hardware say of the GPU itself; images and AMIs are no matter of memory."""

_RECKONED = ("drafting-slots",)
"""Rules whose errors the fit refuses by itself, and more exactly; their warnings are shown."""

_QUANTIZED = "quantization-estimated"


def findings_of(question: Question, case: FitCase) -> tuple[Finding, ...]:
    """Errors and warnings about target, head and load, errors about versions and the GPU.

    A version's warnings are about what is served, not about memory.
    """
    found = _of_rules(question, asked(question, case), ("target", "head", "load"))
    pair, read = question.pair, question.places
    if pair and read.drafter:
        strange = stranger(split_revision(read.drafter.location)[0], pair.target, question.catalog)
        found += [strange] if strange else []
    found += _unneeded(case)
    found += _without_processor(question, case)
    found += _quantized(read)
    return tuple(sorted(found, key=lambda f: ("error", "warning", "note").index(f.level)))


def refused_by_rules(question: Question, case: FitCase) -> bool:
    """Whether the rules about what the options of a fit decide refuse the case.

    Those about target and head are left out: nothing that a fit is asked mends these.
    """
    found = _of_rules(question, asked(question, case), ("load",))
    return any(finding.level == "error" for finding in found)


def _of_rules(question: Question, case: Case, subjects: Sequence[About]) -> list[Finding]:
    """All but notes about the subjects, and errors about versions and the GPU."""
    found = [
        finding
        for subject in subjects
        for finding in check(case, about=subject)
        if finding.level != "note" and not _is_reckoned(finding)
    ]
    assumed = on_assumed_gpu(question, case)
    found += (f for f in check(assumed, about="version") if f.level == "error")
    found += (f for f in check(case, only=_ABOUT_THE_GPU) if f.level == "error")
    return found


def _is_reckoned(finding: Finding) -> bool:
    return finding.code in _RECKONED and finding.level == "error"


def _unneeded(case: FitCase) -> list[Finding]:
    if case.engine.images or is_multimodal(case.target):
        return []
    message = "the target takes no images, so that --text-only changes nothing"
    return [note("text-only-unneeded", "--text-only", message, "leave it out")]


def _without_processor(question: Question, case: FitCase) -> list[Finding]:
    """A note that nothing is reckoned for images, where nobody asked for text only."""
    if question.given["text_only"] or not lacks_processor(question.places, case.target):
        return []
    message = (
        "no preprocessor_config.json lies beside the target's config.json, so that vLLM can take "
        "no images: reckoned for text"
    )
    return [note("text-only-assumed", "--target", message, "put it there to reckon with images")]


def _quantized(read: Places) -> list[Finding]:
    """Warnings about weights whose sizes come from their files, not from what vLLM makes of them.

    The arithmetic of heads takes 16 bits for every number.
    """
    found, target, head = [], read.target, read.drafter
    kind = unknown_quantization(target) if target else None
    if kind:
        message = f"weights quantised by {kind} are counted as they are stored"
        found.append(warning(_QUANTIZED, "target", message, "leave room for what vLLM repacks"))
    kind = read_quantization(head.config) if head else None
    if kind:
        message = f"the head is quantised by {kind}, and counted with 16 bits for every number"
        found.append(warning(_QUANTIZED, "drafter", message, "it may take less than shown"))
    return found
