"""Facts of a case that several rules use, and the parts of an image's name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.catalog.tables import VersionRule, applicable_rules
from peagle.checkpoints.architecture import read_architecture
from peagle.checkpoints.heads import HeadConfig, has_mask, is_head, read_head
from peagle.checkpoints.models import Checkpoint, Tensor
from peagle.checks.head_layout import plain_name, required
from peagle.errors import CheckpointError
from peagle.findings import Finding
from peagle.vllm.environment import Value

OTHER_HEAD = "use a head trained for this target"
MIXED_FILES = "copy the head again: config.json and weights are from different heads"
"""Fixes of several rules."""

_KEYS = {"attention-backend": ("attention-config", "backend")}
"""Arguments of vLLM that can also be given as a key of another one."""

_NORMS = ("norm.weight", "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")
"""Tensors of every head whose shape is its width and nothing else."""


def head_checkpoint(case: Case) -> Checkpoint | None:
    """The head's checkpoint, when one was read and it holds an EAGLE-3 or P-EAGLE head."""
    checkpoint, drafter = case.drafter_checkpoint, case.drafter
    if checkpoint is None or drafter is None or drafter.method != "eagle3":
        return None
    return checkpoint if is_head(checkpoint.config) else None


def head_of(case: Case) -> HeadConfig | None:
    """The head that was read, else ``None``."""
    checkpoint = head_checkpoint(case)
    return read_head(checkpoint.config) if checkpoint else None


def tensors_of(case: Case) -> Mapping[str, Tensor]:
    """The tensors of the head by their names; empty when no header was read."""
    checkpoint = head_checkpoint(case)
    return (checkpoint.tensors if checkpoint else None) or {}


def masked(case: Case) -> bool | None:
    """Whether the head has the tensor of the masked slots; ``None``: its headers were not read."""
    tensors = tensors_of(case)
    return has_mask(tensors) if tensors else None


def shape_of(case: Case) -> Architecture:
    """The target's numbers: those of its own config.json when it was read, else the catalogue's."""
    checkpoint = case.target_checkpoint
    if checkpoint is None or is_head(checkpoint.config):
        return case.target.architecture
    try:
        return read_architecture(checkpoint.config)
    except CheckpointError as bad:
        raise CheckpointError(f"{checkpoint.location}/{bad.message}", bad.fix) from bad


def auxiliary_layers(case: Case) -> tuple[int, ...] | None:
    """The target's layers that vLLM reads for the head, named or taken by default; ``None``: it
    reads none, or the head is not known."""
    head = head_of(case)
    if head is None or not head.uses_auxiliary:
        return None
    return head.auxiliary_layers or default_layers(shape_of(case).layers)


def default_layers(depth: int) -> tuple[int, int, int]:
    """The layers that vLLM takes of a target of ``depth`` layers when the head names none."""
    return (2, depth // 2, depth - 3)


def wrong_target(case: Case) -> bool:
    """Whether the target that was read has other sizes than the catalogue's target."""
    real, known = shape_of(case), case.target.architecture
    return (real.hidden_size, real.vocab_size) != (known.hidden_size, known.vocab_size)


def is_eagle(case: Case) -> bool:
    """Whether the target is to run with an EAGLE-3 or P-EAGLE head."""
    return case.drafter is not None and case.drafter.method == "eagle3"


def is_parallel(case: Case) -> bool:
    """Whether the target is to run with P-EAGLE."""
    return case.drafter is not None and is_eagle(case) and case.drafter.parallel_drafting


def speculative_settings(case: Case) -> dict[str, Any]:
    """Keys of ``--speculative-config`` beside method, model, K and parallel_drafting."""
    own = case.drafter.speculative_settings if case.drafter else {}
    return {**own, **case.speculative_settings}


def entries(case: Case, code: str) -> tuple[VersionRule, ...]:
    """The version rules with this code for the case's vLLM version."""
    return applicable_rules(case.version_rules, code, case.runtime.vllm)


def setting(case: Case, name: str) -> Value | None:
    """The value of vLLM's argument ``name``, also where it is given as a key of another argument;
    ``False`` where ``no-<name>`` is set."""
    if name in case.settings:
        return case.settings[name]
    if case.settings.get(f"no-{name}") is True:
        return False
    holder, key = _KEYS.get(name, ("", ""))
    return case.settings.get(f"{holder}.{key}", _key_of(case.settings.get(holder), key))


def _key_of(value: Value | None, key: str) -> Value | None:
    """The value of ``key`` in an argument that is a JSON object."""
    try:
        document = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, Value) else None


def stored_width(case: Case) -> int | None:
    """The width that all of the head's weights have, if its config.json has another one.

    Then config.json alone is wrong, and what else is derived from its number is no fault of its
    own. ``None`` where they agree, or neither is known.
    """
    head = head_of(case)
    if head is None or required(head) is None:
        return None
    shapes = {plain_name(name): tensor.shape for name, tensor in tensors_of(case).items()}
    found = {shapes.get(name) for name in _NORMS}
    width = found.pop() if len(found) == 1 else None
    return width[0] if width and width != (head.hidden_size,) else None


def location_of(case: Case) -> str:
    """The location of the head, for messages."""
    checkpoint = head_checkpoint(case)
    return checkpoint.location if checkpoint else "the head"


def config_of(case: Case) -> Mapping[str, Any]:
    """The head's config.json; empty when none was read."""
    checkpoint = head_checkpoint(case)
    return checkpoint.config if checkpoint else {}


def version_finding(entry: VersionRule, where: str, who: str) -> Finding:
    """An entry of the version rules as a finding about ``who``."""
    return Finding(
        code=entry.code,
        level=entry.level,
        where=where,
        message=f"{who}: {entry.summary} ({entry.source})",
        fix=entry.fix,
    )


def sibling_pair(case: Case, *, parallel: bool) -> str:
    """The name of this target's pair with a P-EAGLE (``parallel``) or EAGLE-3 drafter."""
    for drafter in case.target.drafters:
        if drafter.method == "eagle3" and drafter.parallel_drafting == parallel:
            return f"{case.target.short_name}+{drafter.name}"
    kind = "a P-EAGLE" if parallel else "an EAGLE-3"
    return f"{case.target.short_name} with {kind} drafter"


_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9\-]+)\.[a-z0-9.\-]+/"
    r"(?P<repository>[^:@\s]+)(?::(?P<tag>[^@\s]+))?(?:@\S+)?"
)
_TAG = re.compile(r":v?(?P<vllm>\d+\.\d+\.\d+)(?![\d.])(?:\S*?[.\-]cu(?P<cuda>\d{3}))?")


@dataclass(frozen=True)
class InEcr:
    """An image in ECR; ``tag`` is ``None`` where only a digest names it."""

    account: str
    region: str
    repository: str
    tag: str | None


@dataclass(frozen=True)
class InTag:
    """The versions in a tag; ``cuda`` as ``13.0``, ``None`` if absent."""

    vllm: str
    cuda: str | None


def in_ecr(image: str) -> InEcr | None:
    """The parts of the name, or ``None`` for an image of another registry."""
    found = _ECR.fullmatch(image)
    return InEcr(**found.groupdict()) if found else None


def in_tag(image: str) -> InTag | None:
    """The versions in the tag, or ``None`` unless it begins with a version such as ``0.28.0``."""
    found = _TAG.search(image)
    if found is None:
        return None
    cuda = found["cuda"]
    return InTag(found["vllm"], f"{cuda[:2]}.{cuda[2]}" if cuda else None)
