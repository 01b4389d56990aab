"""Which weights a plan means: what it pins of the mounted folder, and the hash of local folders.

The container gets the pins as variables, so every form of a plan has them. ``peagle.weights.pins``
reads them from S3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath

from peagle.errors import UserError
from peagle.planning.options import Options
from peagle.planning.plan import MODEL_BUCKET, Pins, Plan, Weights
from peagle.s3uri import S3Uri
from peagle_serve.contract import (
    ANY,
    SHA256,
    WARM_PINS_VARIABLE,
    WEIGHTS_PIN_VARIABLE,
    InvalidEnvironment,
    pins_in,
)

PIN_VARIABLES = (WARM_PINS_VARIABLE, WEIGHTS_PIN_VARIABLE)

MAX_ARCHIVES = 15
"""How many SHA-256s fit into one of SageMaker's environment variables (1,024 characters)."""

UPLOAD_FOLDER = "peagle-toolkit/"
"""Prefix of uploaded weights in a bucket; one folder per endpoint and its weights is below it."""


def upload_prefix(name: str) -> str:
    """Where directories of the endpoint ``name`` are uploaded: an ``s3://`` prefix."""
    return str(S3Uri(MODEL_BUCKET, f"{UPLOAD_FOLDER}{name}/"))


def local_weights(plan: Plan) -> tuple[Weights, ...]:
    """The plan's weights in folders of this machine, which are uploaded."""
    drafter = plan.drafter.weights if plan.drafter else None
    return tuple(w for w in (plan.target.weights, drafter) if w and w.kind == "directory")


def portable_pair(pair: str) -> str:
    """The pair with the name of a head's folder in place of its path, which differs between
    machines."""
    target, plus, drafter = pair.partition("+")
    return f"{target}{plus}{PurePath(drafter).name if drafter.startswith('/') else drafter}"


def with_contents(plan: Plan, contents: str) -> Plan:
    """The plan with the hash of its folders in their destination in S3, and so in the model's
    identity in every format: other weights are another model, and those that serve stay."""
    old = upload_prefix(plan.name)
    new = f"{old.removesuffix('/')}.{contents}/"
    parts = {
        part: model.model_copy(update={"weights": _moved(model.weights, old, new)})
        for part, model in (("target", plan.target), ("drafter", plan.drafter))
        if model is not None and model.weights is not None
    }
    mounts = tuple(
        one.model_copy(update={"s3_uri": one.s3_uri.replace(old, new)}) for one in plan.mounts
    )
    return plan.model_copy(update={**parts, "mounts": mounts})


def planned_contents(plan: Plan) -> str | None:
    """The hash of the folders that the plan was made of; ``None`` for a plan without it."""
    start = f"{upload_prefix(plan.name).removesuffix('/')}."
    found = [w.s3_uri.removeprefix(start) for w in local_weights(plan)
             if w.s3_uri and w.s3_uri.startswith(start)]  # fmt: skip
    return found[0].partition("/")[0] if found else None


def _moved(weights: Weights, old: str, new: str) -> Weights:
    uri = weights.s3_uri.replace(old, new) if weights.s3_uri else None
    return weights.model_copy(update={"s3_uri": uri})


def choose_pins(options: Options) -> Pins:
    """The pins that the user sets. Raises UserError for an invalid SHA-256, and for too many."""
    given = tuple(dict.fromkeys(one.strip().lower() for one in options.warm_sha256))
    for one in given:
        if not SHA256.fullmatch(one):
            raise UserError(
                f"--warm-sha256 {one[:80]!r} is not a SHA-256",
                "use the 64 digits that were printed when it was collected",
            )
    if given and options.allow_unpinned_warm:
        raise UserError(
            "--warm-sha256 and --allow-unpinned-warm are mutually exclusive", "omit one of them"
        )
    if len(given) > MAX_ARCHIVES:
        raise UserError(f"--warm-sha256 is given more than {MAX_ARCHIVES} times", "give fewer")
    return Pins(warm=given, any_warm=options.allow_unpinned_warm)


def pin_variables(pins: Pins) -> dict[str, str]:
    """The container's variables for these pins."""
    warm = ANY if pins.any_warm else ",".join(pins.warm)
    found = {WARM_PINS_VARIABLE: warm, WEIGHTS_PIN_VARIABLE: pins.weights or ""}
    return {name: value for name, value in found.items() if value}


def pins_of(environment: Mapping[str, str]) -> Pins:
    """The pins in a container's variables, without invalid ones."""
    weights = environment.get(WEIGHTS_PIN_VARIABLE, "")
    try:
        warm = pins_in(environment)
    except InvalidEnvironment:
        warm = frozenset()
    return Pins(
        weights=weights if SHA256.fullmatch(weights) else None,
        warm=tuple(sorted(warm - {ANY})),
        any_warm=ANY in warm,
    )


def with_pins(plan: Plan, pins: Pins) -> Plan:
    """The plan with these pins in place of its own."""
    others = {name: text for name, text in plan.environment.items() if name not in PIN_VARIABLES}
    environment = dict(sorted((others | pin_variables(pins)).items()))
    return plan.model_copy(update={"pins": pins, "environment": environment})


def pin_arguments(pins: Pins) -> list[str]:
    """The options that set these pins."""
    given: Iterable[str] = (word for one in pins.warm for word in ("--warm-sha256", one))
    return [*given, *(["--allow-unpinned-warm"] if pins.any_warm else [])]
