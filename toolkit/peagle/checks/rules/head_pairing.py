"""Whether a head belongs to the target, the method and the catalogue entry that it is used with:
sizes, vocabularies, tokenizers, and the tokens of its masked slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from peagle import findings
from peagle.case import Case
from peagle.catalog.find import same_sizes
from peagle.catalog.schema import Drafter, Target
from peagle.catalog.tables import VersionRule
from peagle.checkpoints.architecture import read_dtype, read_quantization
from peagle.checkpoints.heads import Head
from peagle.checkpoints.models import is_hub_id, reserved_tokens, split_revision
from peagle.checks.registry import Findings, error, rule, warning
from peagle.checks.rules.head_layout import OTHER_HEAD
from peagle.findings import Finding
from peagle_serve.heads import placeholder, read_classes


@rule("head-not-for-target", about="head", vllm_notices="never")
def head_not_for_target(case: Case) -> Findings:
    """A head that the catalogue lists only under a different target.

    For a target of the user's own with the sizes of that target, probably a fine-tuned copy, it is
    a warning.
    """

    def has(target: Target, weights: str) -> bool:
        return any((head.weights or "").lower() == weights.lower() for head in target.drafters)

    target = case.target
    named = case.drafter.weights if case.drafter else None
    read = case.drafter_checkpoint.location if case.drafter_checkpoint else None
    hub_id = next((split_revision(at)[0] for at in (named, read) if at and is_hub_id(at)), None)
    if hub_id is None or has(target, hub_id):
        return
    for other in case.targets.values():
        if other.id == target.id or not has(other, hub_id):
            continue
        message = f"{hub_id} was trained for {other.id}, not for {target.id}"
        if case.own_target and same_sizes(target, other):
            fix = "measure acceptance: the head knows the base model, not what was tuned"
            yield warning("drafter", message, fix)
            continue
        names = ", ".join(drafter.name for drafter in target.drafters)
        fix = f"use the target {other.short_name}"
        fix += f", or a drafter of {target.short_name}: {names}" if names else ""
        yield error("drafter", message, fix)


PASS_OWN_HEAD = "pass your own head with --drafter: s3://..., a Hugging Face id, or a folder"


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
    return findings.warning("head-not-public", "drafter", message, PASS_OWN_HEAD)


@rule("speculators-verifier", about="head", vllm_notices="never")
def speculators_verifier(case: Case, head: Head) -> Findings:
    """A head in the speculators format that was trained for a different target (its verifier).

    A head of another model of the same sizes runs, and nearly no draft is accepted. For a variant,
    such as an FP8 version or a target of the user's own with the same class, it is a warning.
    """

    def last(name: str) -> str:
        return PurePosixPath(name.rstrip("/")).name.lower()

    outer = head.document.get("speculators_config")
    verifier = (outer.get("verifier") if isinstance(outer, Mapping) else None) or {}
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(name, str) or not name:
        return
    theirs, ours = last(name), last(case.target.id)
    if theirs in (ours, last(case.target.weights)):
        return
    message = f"trained for {name}, but the target is {case.target.id}"
    of_class = case.architecture.class_name in read_classes(verifier)
    if ours in theirs or theirs in ours or (case.own_target and of_class):
        fix = "measure acceptance: the hidden states of a variant differ slightly"
        yield warning("drafter", message, fix)
    # A verifier that is named by its folder only may still be of the target's class.
    elif name.count("/") == 1 or not of_class:
        yield error("drafter", message, OTHER_HEAD)


@rule("target-numerics", about="target", vllm_notices="never")
def target_numerics(case: Case) -> Findings:
    """A target with a different dtype or quantization from the one the head was trained on.

    A head reads hidden states, which change with the target's numerics (a drift of 4 % lowered
    acceptance).
    """
    trained = case.target.quantization or case.target.dtype
    served = case.setting("quantization")
    if not isinstance(served, str) or not served:
        config = case.target_read.config if case.target_read else {}
        served = read_quantization(config) or read_dtype(config)
    if case.is_eagle and served not in (None, trained):
        training = f"the head was trained on {case.target.id} in {trained}"
        message = f"the target is served in {served}; {training}"
        yield warning("target", message, f"measure acceptance, or serve the target in {trained}")


@rule("tokenizer-differs", about="head", vllm_notices="never")
def tokenizer_differs(case: Case) -> Findings:
    """A head whose tokenizer differs from the target's."""
    head, target = case.drafter_checkpoint, case.target_checkpoint
    ours, theirs = (read.tokenizer if read else None for read in (head, target))
    if case.head is None or ours is None or theirs is None or not ours.differs_from(theirs):
        return
    if ours.vocab_size and theirs.vocab_size and ours.vocab_size != theirs.vocab_size:
        message = f"{case.head.location} has a tokenizer of {ours.vocab_size:,} tokens; the "
        message += f"target's has {theirs.vocab_size:,}"
        yield error("drafter", message, OTHER_HEAD)
    else:
        message = f"the special tokens of {case.head.location} differ from those of the target"
        yield warning("drafter", message, f"compare the tokenizers, or {OTHER_HEAD}")


def _placeholders(case: Case, head: Head) -> Iterator[tuple[VersionRule, tuple[str, Any] | None]]:
    """The entries of the case's vLLM version, each with the first key that it reads of the
    placeholder token, and its value; the speculators format has a single key."""
    for entry in placeholder_missing.entries(case) if case.is_parallel else ():
        names = ("mask_token_id",) if head.config.speculators_format else entry.names
        yield entry, placeholder(head.document, names)


@rule("placeholder-missing", about="head", vllm_notices="at start")
def placeholder_missing(case: Case, head: Head) -> Findings:
    """A P-EAGLE head that does not name the placeholder token of its masked slots."""
    config = head.config
    if config.speculators == "eagle3" or not (config.parallel_drafting or head.has_mask):
        return
    for entry, token in _placeholders(case, head):
        if token is None:
            fix = "copy the head again, or set mask_token_id to the token it was trained with"
            fix = fix if config.speculators_format else ""
            yield placeholder_missing.of_entry(entry, "drafter", head.location, fix)


_ROLES = {"eos": "EOS", "pad": "padding", "unk": "unknown"}


@rule("mask-token-used", about="head", vllm_notices="never")
def mask_token_used(case: Case, head: Head) -> Findings:
    """A P-EAGLE head whose mask token is the target's end, padding or unknown token.

    The masked slots get the embedding of that token. It occurs in text and is trained for
    another purpose: with its EOS token, the tiny head has an acceptance length of 2.01 instead
    of 2.34.
    """
    read = reserved_tokens(case.target_read) if case.target_read else {}
    for _, named in _placeholders(case, head):
        key, token = named or ("", None)
        reserved = [*case.target.special_tokens.items(), *read.items()]
        used = {role for role, tokens in reserved if type(token) is int and token in tokens}
        roles = [name for role, name in _ROLES.items() if role in used]
        if roles:
            message = f"{key} is {token}, the {' and '.join(roles)} token of {case.target.id}"
            fix = f"set {key} to the token that the head was trained with, or measure acceptance"
            yield warning("drafter", message, fix)
