"""Vocabularies, tokenizers, and the tokens that a head uses for masked slots."""

from __future__ import annotations

from typing import Any

from peagle.case import Case
from peagle.catalog.tables import VersionRule
from peagle.checkpoints.heads import Head
from peagle.checkpoints.models import reserved_tokens
from peagle.checkpoints.reading import same_tokenizer
from peagle.checks.facts import (
    COPY_AGAIN,
    OTHER_HEAD,
    needs_vocabulary,
    other_shape,
    parse_ecr_image,
)
from peagle.checks.registry import Findings, error, for_head, note, rule, warning
from peagle_serve.contract import HUB_ID, MODEL, VOCABULARY_FILE, VOCABULARY_VARIABLE, is_s3_uri
from peagle_serve.heads import MIXED_FILES, placeholder


@rule("vocabulary-mismatch", about="head", vllm_notices="never")
@for_head
def vocabulary_mismatch(case: Case, head: Head) -> Findings:
    """A head whose vocabulary size differs from the target's.

    vLLM does not compare them for EAGLE-3 heads. Drafted ids stand for different tokens, or
    vLLM reads beyond a table: no draft is accepted, or the engine crashes.
    """
    head_size, target_size = head.config.vocab_size, case.architecture.vocab_size
    # Another rule reports a wrong target.
    if head_size not in (None, target_size, case.target.architecture.vocab_size):
        message = (
            f"the vocabulary has {head_size:,} tokens, that of {case.target.id} {target_size:,}"
        )
        yield error("drafter", message, OTHER_HEAD)


@rule("tokenizer-differs", about="head", vllm_notices="never")
def tokenizer_differs(case: Case) -> Findings:
    """A head whose tokenizer differs from the target's.

    vLLM never reads the head's tokenizer. The head was trained on different token ids from
    those that it gets, and nearly no draft is accepted. Different special tokens are only a
    warning.
    """
    head, target = case.drafter_checkpoint, case.target_checkpoint
    if head is None or target is None or case.head is None:
        return
    if same_tokenizer(target.tokenizer, head.tokenizer) is not False:
        return
    sizes = head.tokenizer.get("vocab_size"), target.tokenizer.get("vocab_size")
    if None not in sizes and sizes[0] != sizes[1]:
        message = (
            f"{head.location} has a tokenizer of {sizes[0]:,} tokens; the target's has {sizes[1]:,}"
        )
        yield error("drafter", message, OTHER_HEAD)
    else:
        message = f"the special tokens of {head.location} differ from those of the target"
        yield warning("drafter", message, f"compare the tokenizers, or {OTHER_HEAD}")


@rule("draft-vocabulary", about="head", vllm_notices="at start")
@for_head
def draft_vocabulary(case: Case, head: Head) -> Findings:
    """A draft vocabulary that differs from lm_head or exceeds the target's.

    vLLM builds lm_head from draft_vocab_size and rejects weights with a different number of
    rows; more tokens than the target has write beyond the logits.
    """
    config, most = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size or most
    lm_head = head.shape("lm_head.weight")
    if config.vocab_size in (None, most) and drafted > most:
        message = f"the head drafts {drafted:,} tokens, more than the {most:,} of {case.target.id}"
        yield error("drafter", message, OTHER_HEAD)
    elif lm_head not in (None, (drafted, config.hidden_size)) and not config.quantized:
        message = other_shape(head, "lm_head.weight", [drafted, config.hidden_size])
        yield error("drafter", message, MIXED_FILES)


@rule("d2t-missing", about="head", vllm_notices="never")
@for_head
def d2t_missing(case: Case, head: Head) -> Findings:
    """A head with a reduced vocabulary but no d2t, which maps its tokens to the target's.

    Without d2t vLLM uses the drafted ids as the target's first tokens, without a warning: the
    endpoint becomes healthy, and nearly no draft is accepted.
    """
    drafted, vocabulary = head.config.draft_vocab_size, case.architecture.vocab_size
    if drafted is None or drafted >= vocabulary or "lm_head.weight" not in head.tensors:
        return
    if head.named("d2t") is None:
        message = f"{drafted:,} of {vocabulary:,} tokens are drafted, but no d2t maps them"
        yield error("drafter", message, "copy the head again, or export it with d2t")


@rule("d2t-size", about="head", vllm_notices="at start")
@for_head
def d2t_size(case: Case, head: Head) -> Findings:
    """A d2t, which maps drafted tokens to the target's, without one entry per drafted token.

    vLLM rejects it when it loads the weights.
    """
    name = head.named("d2t")
    config, vocabulary = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size or vocabulary
    if name is not None and head.shape(name) != (drafted,):
        shape = list(head.tensors[name].shape)
        message = f"{name} has shape {shape}, but the head drafts {drafted:,} tokens"
        yield error("drafter", message, COPY_AGAIN)


@rule("t2d-size", about="head", vllm_notices="never")
@for_head
def t2d_size(case: Case, head: Head) -> Findings:
    """A t2d, which marks the target's tokens that are drafted, without one entry per token.

    vLLM does not read t2d, but a head reduced for a different vocabulary has a wrong d2t too.
    """
    name, vocabulary = head.named("t2d"), case.architecture.vocab_size
    if name is None or head.config.vocab_size not in (None, vocabulary):
        return
    if head.shape(name) != (vocabulary,):
        shape = list(head.tensors[name].shape)
        message = f"{name} has shape {shape}; {case.target.id} has {vocabulary:,} tokens"
        fix = "compare acceptance with the published value, or export the head again"
        yield warning("drafter", message, fix)


_SPECULATORS_FIX = "copy the head again, or set mask_token_id to the token it was trained with"


@rule("placeholder-missing", about="head", vllm_notices="at start")
@for_head
def placeholder_missing(case: Case, head: Head) -> Findings:
    """A P-EAGLE head that does not name the placeholder token of its masked slots.

    The key in config.json depends on the vLLM version. vLLM rejects a head without one at
    start.
    """
    if not case.is_parallel or head.config.speculators == "eagle3":
        return
    if not (head.config.parallel_drafting or head.has_mask):
        return
    for entry in placeholder_missing.entries(case):
        if found_placeholder(head, entry) is None:
            fix = _SPECULATORS_FIX if head.config.speculators_format else ""
            yield placeholder_missing.of_entry(entry, "drafter", head.location, fix)


def found_placeholder(head: Head, entry: VersionRule) -> tuple[str, Any] | None:
    """The first key that this vLLM version reads, and its value; the speculators format has a
    single key."""
    names = ("mask_token_id",) if head.config.speculators_format else entry.names
    return placeholder(head.document, names)


@rule("placeholder-outside-vocabulary", about="head", vllm_notices="on a request")
@for_head
def placeholder_outside_vocabulary(case: Case, head: Head) -> Findings:
    """A placeholder token outside the vocabulary.

    vLLM looks up its embedding with the first drafts: the GPU reads other memory, or the engine
    crashes, after the endpoint is healthy.
    """
    vocabulary = case.architecture.vocab_size
    if not case.is_parallel or head.config.vocab_size not in (None, vocabulary):
        return
    for entry in placeholder_missing.entries(case):
        key, token = found_placeholder(head, entry) or ("", 0)
        if type(token) is not int or not 0 <= token < vocabulary:
            message = f"{key} is {token!r}; the vocabulary has the ids 0 to {vocabulary - 1:,}"
            fix = "copy the head again, or set the token it was trained with"
            yield error("drafter", message, fix)


_ROLES = {"eos": "EOS", "pad": "padding", "unk": "unknown"}


@rule("mask-token-used", about="head", vllm_notices="never")
@for_head
def mask_token_used(case: Case, head: Head) -> Findings:
    """A P-EAGLE head whose mask token is the target's end, padding or unknown token.

    The masked slots get the embedding of that token. It occurs in text and is trained for
    another purpose: with its EOS token, the tiny head has an acceptance length of 2.01 instead
    of 2.34.
    """
    if not case.is_parallel:
        return
    reserved: dict[str, set[int]] = {
        role: set(tokens) for role, tokens in case.target.special_tokens.items()
    }
    for role, tokens in reserved_tokens(case.target_read).items() if case.target_read else ():
        reserved.setdefault(role, set()).update(tokens)
    for entry in placeholder_missing.entries(case):
        key, token = found_placeholder(head, entry) or ("", None)
        is_id = type(token) is int
        roles = [name for role, name in _ROLES.items() if is_id and token in reserved.get(role, ())]
        if roles:
            message = f"{key} is {token}, the {' and '.join(roles)} token of {case.target.id}"
            fix = (
                f"set {key} to the token that the head was trained with; if it was trained with "
                f"{token}, measure acceptance"
            )
            yield warning("drafter", message, fix)


_FILE_BESIDE = (
    f"put {VOCABULARY_FILE} next to the weights (weights sync does, where it finds the file)"
)


@rule("vocabulary-download", about="target", vllm_notices="at start")
def vocabulary_download(case: Case) -> Findings:
    """A target whose vocabulary the engine downloads at start, next to its weights.

    GPT-OSS needs openaipublic.blob.core.windows.net then; without egress the engine does not
    start.
    """
    model = case.environment.get(MODEL, "")
    if (
        not (needs_vocabulary(case.target.architecture) and model)
        or case.on_cpu
        or VOCABULARY_VARIABLE in case.environment
    ):
        return
    message = (
        "the engine downloads GPT-OSS's vocabulary from openaipublic.blob.core.windows.net at start"
    )
    image = parse_ecr_image(case.image)
    is_own = case.image is not None and not (
        image and image.account in case.runtimes.accounts.values()
    )
    if HUB_ID.fullmatch(model):
        unless = ", unless the image has it" if is_own else ""
        yield note("target", f"{message}{unless}", "allow that host in addition to the hub's")
    elif is_s3_uri(model):
        fix = "mount the weights with weights_by mount, or build an image with weights"
        yield warning("target", f"{message}: weights that are streamed cannot carry it", fix)
    elif is_own:
        unless = f"unless {VOCABULARY_FILE} is next to the weights"
        report = warning if case.network_isolation else note
        yield report("target", f"{message}, {unless}", f"without egress {_FILE_BESIDE}")
    else:
        fix = f"{_FILE_BESIDE} and add --env {VOCABULARY_VARIABLE}={model}"
        yield warning("target", message, f"without egress {fix}")
