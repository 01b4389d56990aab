"""Validates a document against a model, and the rules between its keys, beyond the type of each.

A problem has the key, and what is expected and found; a rule yields (location, message, fix).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from peagle.catalog.documents import Document, Location, Problem, dotted
from peagle.catalog.schema import DRAFTLESS, Drafter, Target
from peagle.catalog.speed_model import SpeedModel
from peagle.catalog.tables import InstanceTable, RuntimeTable, StorageTable, VersionRuleTable
from peagle.errors import nearest
from peagle.vllm import versions
from peagle_serve.contract import HUB_ID

Model = TypeVar("Model", bound=BaseModel)

Violation = tuple[Location, str, str]
"""Where, message and fix."""


def validate(document: Document, model: type[Model]) -> tuple[Model | None, list[Problem]]:
    """The document as ``model``, or ``None`` and all problems, in pydantic's words."""
    try:
        return cast(Model, _entry(document, model)), []
    except ValidationError as error:
        # A value that may have several types has one error for each; they become one problem.
        by_location: dict[Location, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            by_location.setdefault(_existing(document, detail), []).append(detail)
        # A misspelt key is also a missing key; its own line helps more, so it comes first.
        ordered = sorted(
            by_location.items(),
            key=lambda item: (item[1][0]["type"] == "missing", document.line(item[0]) or 0),
        )
        return None, [
            problem_at(document, location, *_message(details, location, model))
            for location, details in ordered
        ]


@lru_cache(maxsize=64)
def _entry(document: Document, model: type[BaseModel]) -> BaseModel:
    return model.model_validate_json(json.dumps(document.data))


def problem_at(document: Document, location: Location, message: str, fix: str) -> Problem:
    """A problem with its file, line and key."""
    return Problem(document.file, document.line(location), dotted(location), message, fix)


def _existing(document: Document, detail: ErrorDetails) -> Location:
    """The error's location without what pydantic adds to it, such as the member of a union."""
    location: Location = detail["loc"]
    while location and detail["type"] != "missing" and document.node(location) is None:
        location = location[:-1]
    return location


def _message(
    details: list[ErrorDetails], location: Location, model: type[BaseModel]
) -> tuple[str, str]:
    """The message and the fix."""
    if details[0]["type"] == "missing":
        return "missing key", "add the key"
    if details[0]["type"] == "extra_forbidden":
        return "unknown key", nearest(str(location[-1]), _keys_at(model, location[:-1]))
    expected = dict.fromkeys(detail["msg"].removeprefix("Input ") for detail in details)
    return f"{' or '.join(expected)}, and is {json.dumps(details[0]['input'])[:60]}", ""


def _keys_at(model: type[BaseModel], location: Location) -> Iterable[str]:
    for step in location:
        if field := model.model_fields.get(str(step)):
            model = _model_in(field.annotation) or model
    return model.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``Thing``, ``Thing | None``, ``tuple[Thing, ...]`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def target_violations(target: Target, path: Path) -> Iterator[Violation]:
    """Problems of the target in the file ``path``."""
    expected = f"{path.parent.name}/{path.stem}"
    if target.id != expected:
        fix = f"rename the file to {target.id}.yaml, or write `id: {expected}`"
        yield ("id",), f"expected {expected}, the path of the file, found {target.id}", fix
    yield from _architecture(target)
    yield from _weights(("weights",), target.weights, path)
    names = [drafter.name for drafter in target.drafters]
    public = [drafter.name for drafter in target.drafters if drafter.public]
    if target.default_drafter is not None:
        yield from _unknown(("default_drafter",), "drafter", target.default_drafter, names)
    yield from _duplicates(names, ("drafters",), "name")
    weights = [drafter.weights for drafter in target.drafters]
    yield from _duplicates(weights, ("drafters",), "weights")
    for number, drafter in enumerate(target.drafters):
        here = ("drafters", number)
        yield from _method(here, drafter)
        if drafter.fallback is not None:
            yield from _unknown((*here, "fallback"), "public drafter", drafter.fallback, public)
        if (longer := drafter.long_context) is not None:
            at = (*here, "long_context", "drafter")
            yield from _unknown(at, "public drafter", longer.drafter, public)
        if drafter.weights:
            yield from _weights((*here, "weights"), drafter.weights, path)


def runtime_violations(table: RuntimeTable, _path: Path) -> Iterator[Violation]:
    """Problems of the table of runtimes."""
    versions = [runtime.vllm for runtime in table.runtimes]
    if table.default not in versions:
        yield ("default",), f"there is no runtime {table.default}", nearest(table.default, versions)
    yield from _duplicates(versions, ("runtimes",), "vllm")
    amis = [ami.name for ami in table.amis]
    yield from _duplicates(amis, ("amis",), "name")
    for number, runtime in enumerate(table.runtimes):
        if amis and runtime.ami not in amis:
            hint = nearest(runtime.ami, amis) or "add the AMI to `amis`"
            yield ("runtimes", number, "ami"), f"there is no AMI {runtime.ami!r}", hint
        for region in runtime.regions:
            if region not in table.accounts:
                hint = nearest(region, table.accounts) or "add the account to `accounts`"
                yield ("runtimes", number, "regions"), f"no account is known for {region!r}", hint


def instance_violations(table: InstanceTable, _path: Path) -> Iterator[Violation]:
    """Problems of the table of instances."""
    yield from _duplicates([instance.type for instance in table.instances], ("instances",), "type")


def _architecture(target: Target) -> Iterator[Violation]:
    shape, here = target.architecture, ("architecture",)
    layers = sum(group.layers for group in shape.attention)
    # Hybrids have layers without a cache or with two; Gemma 3n shares caches among layers, and
    # Nemotron's NAS models lack some.
    one_each = not shape.recurrent and shape.latent is None and not shape.per_layer_embeddings
    one_each = one_each and shape.feed_forward_layers is None
    if one_each and layers != shape.layers:
        message = f"the groups have {layers} layers in total, the model has {shape.layers}"
        yield (*here, "attention"), message, "correct the number of layers"
    for number, group in enumerate(shape.attention):
        if (group.kind == "sliding") != (group.window is not None):
            has = "needs a" if group.window is None else "has no"
            fix = "set `window` for sliding groups only"
            yield (*here, "attention", number), f"a group of kind {group.kind} {has} window", fix
    if (shape.experts is None) != (shape.experts_per_token is None):
        yield here, "experts and experts_per_token must both be set", "set both or neither"
    if target.default_max_model_len > shape.max_positions:
        message = f"{target.default_max_model_len} exceeds max_positions {shape.max_positions}"
        yield ("default_max_model_len",), message, f"at most {shape.max_positions}"


def _weights(where: Location, weights: str, path: Path) -> Iterator[Violation]:
    if weights.startswith("./"):
        folder = path.parent / weights
        if ".." in Path(weights).parts:
            yield where, f"{weights} is outside the catalogue", "put the folder next to the file"
        elif not folder.is_dir():
            yield (
                where,
                f"there is no folder {weights} next to the file",
                "create it, or use a Hugging Face id",
            )
    elif not HUB_ID.fullmatch(weights):
        fix = "write a Hugging Face id such as openai/gpt-oss-20b, or ./folder next to the file"
        yield where, f"{weights!r} is not a weights location", fix


def _method(here: Location, drafter: Drafter) -> Iterator[Violation]:
    draftless = drafter.method in DRAFTLESS
    if draftless and drafter.weights:
        yield (*here, "weights"), f"the method {drafter.method} has no weights", "remove the key"
    if not draftless and drafter.public != bool(drafter.weights):
        message = (
            "a public head needs weights" if drafter.public else "a private head has no weights"
        )
        yield (*here, "weights"), message, "set either `weights` or `public: false`"
    if drafter.parallel_drafting and drafter.method != "eagle3":
        fix = "remove the key: only P-EAGLE has it, with method eagle3"
        yield (*here, "parallel_drafting"), f"the method {drafter.method} does not support it", fix
    if drafter.k_trained and drafter.k_recommended > drafter.k_trained:
        message = f"{drafter.k_recommended} exceeds k_trained {drafter.k_trained}"
        yield (*here, "k_recommended"), message, f"at most {drafter.k_trained}"


def _unknown(where: Location, kind: str, name: str, names: list[str]) -> Iterator[Violation]:
    if name not in names:
        hint = nearest(name, names) or f"known: {', '.join(names)}"
        yield where, f"there is no {kind} {name!r}", hint


def _duplicates(values: Iterable[str | None], where: Location, key: str) -> Iterator[Violation]:
    listed = list(values)
    counts = Counter(value.lower() for value in listed if value)
    for number, value in enumerate(listed):
        if value and counts[value.lower()] > 1:
            counts[value.lower()] = 0
            yield (*where, number, key), f"duplicate {key} {value}", "keep one of them"


def version_rule_violations(table: VersionRuleTable, _path: Path) -> Iterator[Violation]:
    """Problems of the version rules: duplicate entries and empty ranges."""
    seen: set[tuple[object, ...]] = set()
    for number, rule in enumerate(table.rules):
        here = ("rules", number)
        key = (rule.code, rule.vllm, rule.value, rule.names)
        if key in seen:
            yield here, f"duplicate {rule.code} for the same versions", "keep one of the two"
        seen.add(key)
        if rule.vllm is not None and _empty(rule.vllm):
            fix = "make the lower bound smaller than the upper bound"
            yield (*here, "vllm"), f"no version is in the range {rule.vllm}", fix


def _empty(versions_in: str) -> bool:
    """Whether the range is empty: neither a bound nor a version next to one is in it."""
    bounds = [versions.parse(part.lstrip("<>=")) for part in versions_in.split(",")]
    near = {
        (major, minor, max(0, patch + step)) for major, minor, patch in bounds for step in (0, 1)
    }
    return not any(
        versions.in_range(".".join(map(str, version)), versions_in)
        for version in {(0, 0, 0), *near}
    )


def storage_violations(table: StorageTable, _path: Path) -> Iterator[Violation]:
    """Problems of the storage prices: duplicate regions."""
    yield from _duplicates(
        [price.region for price in table.s3_standard], ("s3_standard",), "region"
    )


def speed_model_violations(model: SpeedModel, _path: Path) -> Iterator[Violation]:
    """Problems of the performance model: duplicate GPUs, and ranges that do not widen."""
    yield from _duplicates(
        [f"{gpu.gpu} {gpu.memory_gib or ''}".strip() for gpu in model.gpus], ("gpus",), "gpu"
    )
    if not model.ranges.both <= model.ranges.one <= model.ranges.none:
        fix = "less evidence has a wider range: both <= one <= none"
        yield ("ranges",), "the ranges do not ascend", fix
