"""Whether a head belongs to the target, the method and the catalogue entry that it is used with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from peagle import findings
from peagle.case import Case
from peagle.catalog.find import same_sizes
from peagle.catalog.schema import Drafter, Target
from peagle.checkpoints.architecture import read_dtype, read_quantization
from peagle.checkpoints.heads import Head
from peagle.checkpoints.models import is_hub_id, split_revision
from peagle.checks.facts import OTHER_HEAD, sibling_pair
from peagle.checks.head_layout import stored_width
from peagle.checks.registry import Findings, error, for_head, rule, warning
from peagle.findings import Finding
from peagle_serve.heads import classes_of


@rule("head-not-for-target", about="head", vllm_notices="never")
def head_not_for_target(case: Case) -> Findings:
    """A head that the catalogue lists only under a different target.

    Hardly any of its drafts are accepted, or it does not load. For a target of the user's own
    with the sizes of that target, probably a fine-tuned copy, it is a warning.
    """
    named = case.drafter.weights if case.drafter else None
    read = case.drafter_checkpoint.location if case.drafter_checkpoint else None
    hub_id = next((split_revision(at)[0] for at in (named, read) if at and is_hub_id(at)), None)
    if hub_id is None or _has(case.target, hub_id):
        return
    for other in case.targets.values():
        if other.id != case.target.id and _has(other, hub_id):
            target = case.target
            names = ", ".join(drafter.name for drafter in target.drafters)
            message = f"{hub_id} was trained for {other.id}, not for {target.id}"
            if case.own_target and same_sizes(case.target, other):
                fix = "measure acceptance: the head knows the base model, not what was tuned"
                yield warning("drafter", message, fix)
                continue
            fix = f"use the target {other.short_name}"
            fix += f", or a drafter of {target.short_name}: {names}" if names else ""
            yield error("drafter", message, fix)


def _has(target: Target, hub_id: str) -> bool:
    return any((drafter.weights or "").lower() == hub_id.lower() for drafter in target.drafters)


OWN_HEAD = "pass your own head with --drafter: s3://..., a Hugging Face id, or a folder"


@rule("head-not-public", about="head", vllm_notices="never")
def head_not_public(case: Case) -> Findings:
    """A head whose weights are not public.

    The catalogue has the sizes of some unpublished heads; estimates with them hold for your own
    head of the same kind. A plan uses another drafter instead.
    """
    drafter = case.drafter
    if drafter is None or drafter.public or drafter.weights is not None or case.head is not None:
        return
    instead = (other for other in case.target.drafters if other.name == drafter.fallback)
    yield replaced_by(drafter, next(instead, None))


def replaced_by(drafter: Drafter, instead: Drafter | None) -> Finding:
    """The warning about a head without public weights, with the drafter that replaces it."""
    message = f"{drafter.title}: not public"
    if instead is not None:
        message += f"; a plan uses another drafter: {instead.title}"
    return findings.warning("head-not-public", "drafter", message, OWN_HEAD)


@rule("speculators-verifier", about="head", vllm_notices="never")
@for_head
def speculators_verifier(case: Case, head: Head) -> Findings:
    """A head in the speculators format that was trained for a different target (its verifier).

    vLLM does not compare them when the target is given too. A head of another model of the same
    sizes runs, and nearly no draft is accepted. For a variant, such as an FP8 version or a
    target of the user's own with the same class, it is a warning.
    """
    outer = head.document.get("speculators_config")
    verifier = (outer.get("verifier") if isinstance(outer, Mapping) else None) or {}
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(name, str) or not name:
        return
    theirs, ours = _last(name), _last(case.target.id)
    if theirs in (ours, _last(case.target.weights)):
        return
    message = f"trained for {name}, but the target is {case.target.id}"
    is_tuned = case.own_target and case.architecture.class_name in classes_of(verifier)
    if ours in theirs or theirs in ours or is_tuned:
        fix = "measure acceptance: the hidden states of a variant differ slightly"
        yield warning("drafter", message, fix)
    # A verifier that is named by its folder only may still be of the target's class.
    elif name.count("/") == 1 or case.architecture.class_name not in classes_of(verifier):
        yield error("drafter", message, OTHER_HEAD)


def _last(name: str) -> str:
    return PurePosixPath(name.rstrip("/")).name.lower()


@rule("eagle3-as-p-eagle", about="head", vllm_notices="at start")
@for_head
def eagle3_as_p_eagle(case: Case, head: Head) -> Findings:
    """A plain EAGLE-3 head started as P-EAGLE.

    With parallel_drafting vLLM requires a placeholder token and mask_hidden, which such a head
    lacks, and does not start.
    """
    if not case.is_parallel or head.config.parallel_drafting:
        return
    if not head.has_mask or head.config.speculators == "eagle3":
        message = f"{head.location} is a plain EAGLE-3 head, but the pair starts it as P-EAGLE"
        fix = f"use the pair {sibling_pair(case, parallel=False)}, or a P-EAGLE head"
        yield error("drafter", message, fix)


@rule("p-eagle-as-eagle3", about="head", vllm_notices="never")
@for_head
def p_eagle_as_eagle3(case: Case, head: Head) -> Findings:
    """A P-EAGLE head started as a plain EAGLE-3 head.

    vLLM loads it without its mask, with one log line, and drafts token by token from states
    that the head was not trained on: slow, without an error.
    """
    masked = head.config.parallel_drafting if head.has_mask is None else head.has_mask
    if masked and not case.is_parallel:
        message = f"{head.location} is a P-EAGLE head, but the pair starts it as plain EAGLE-3"
        fix = f"use the pair {sibling_pair(case, parallel=True)}, or an EAGLE-3 head"
        yield error("drafter", message, fix)


@rule("hidden-size-mismatch", about="head", vllm_notices="on a request")
@for_head
def hidden_size_mismatch(case: Case, head: Head) -> Findings:
    """A head for a hidden size that differs from the target's.

    vLLM loads it and crashes on the first request, when it multiplies the two. Other rules
    report a wrong target, and a head of which only config.json is wrong.
    """
    head_width, width = head.config.target_hidden_size, case.architecture.hidden_size
    if head_width in (None, width, case.target.architecture.hidden_size) or _fits(head, width):
        return
    message = f"the head takes hidden states of size {head_width:,}; {case.target.id} has {width:,}"
    yield error("drafter", message, OTHER_HEAD)


def _fits(head: Head, width: int) -> bool:
    """Whether the weights take hidden states of this width, whatever config.json states."""
    config, fc = head.config, head.shape("fc.weight")
    if fc is None or config.quantized or not config.uses_auxiliary:
        return False
    return fc[-1:] == (config.built_for * width,)


@rule("embeddings-not-shared", about="head", vllm_notices="never")
@for_head
def embeddings_not_shared(case: Case, head: Head) -> Findings:
    """A head without embeddings of its own whose width differs from the target's.

    vLLM shares the target's embeddings when the widths are equal. Otherwise it keeps an
    uninitialized table and reports it in one log line: nearly no draft is accepted.
    """
    width, own_width = case.architecture.hidden_size, head.config.hidden_size
    if not head.tensors or head.named("embed_tokens"):
        return
    if own_width in (None, width, case.target.architecture.hidden_size):
        return
    # Other rules report a wrong config.json, and the head of a different model.
    if stored_width(head) is None and not any(hidden_size_mismatch.check(case)):
        message = f"no embeddings; those of {case.target.id} are {width:,} wide, not {own_width:,}"
        yield error("drafter", message, "export the head with embed_tokens")


@rule("target-numerics", about="target", vllm_notices="never")
def target_numerics(case: Case) -> Findings:
    """A target with a different dtype or quantization from the one the head was trained on.

    A head reads hidden states, which change with the target's numerics (a drift of 4 % lowered
    acceptance). vLLM cannot detect it.
    """
    trained = case.target.quantization or case.target.dtype
    served = _served(case)
    if case.is_eagle and served not in (None, trained):
        training = f"the head was trained on {case.target.id} in {trained}"
        message = f"the target is served in {served}; {training}"
        yield warning("target", message, f"measure acceptance, or serve the target in {trained}")


def _served(case: Case) -> str | None:
    """The quantization that vLLM applies while it loads the target, else what was read of it."""
    requested = case.setting("quantization")
    if isinstance(requested, str) and requested:
        return requested
    config = case.target_read.config if case.target_read else {}
    return read_quantization(config) or read_dtype(config)
