"""What a plan pins of the weights and warm starts that it mounts.

The container gets the pins as variables, so every form of a plan has them. ``peagle.weights.pins``
reads them from S3.
"""

from __future__ import annotations

from collections.abc import Mapping

from peagle.errors import OptionsConflict, UserError
from peagle.options import Options
from peagle.planning.plan import Pins, Plan
from peagle_serve.contract import (
    ANY,
    SHA256,
    WARM_PINS_VARIABLE,
    WEIGHTS_PIN_VARIABLE,
    InvalidEnvironment,
    read_pins,
)

PIN_VARIABLES = (WARM_PINS_VARIABLE, WEIGHTS_PIN_VARIABLE)

MAX_ARCHIVES = 15
"""How many SHA-256s fit into one of SageMaker's environment variables (1,024 characters)."""


def choose_pins(options: Options) -> Pins:
    """The pins that the user sets. Raises UserError for an invalid SHA-256, and for too many."""
    digests = tuple(dict.fromkeys(text.strip().lower() for text in options.warm_sha256))
    for digest in digests:
        if not SHA256.fullmatch(digest):
            raise UserError(
                f"warm_sha256 {digest[:80]!r} is not a SHA-256",
                "use the 64 digits that were printed when it was collected",
                code="invalid-pin",
            )
    if digests and options.allow_unpinned_warm:
        raise OptionsConflict(
            "warm_sha256 and --allow-unpinned-warm are mutually exclusive", "omit one of them"
        )
    if len(digests) > MAX_ARCHIVES:
        raise UserError(
            f"warm_sha256 is given more than {MAX_ARCHIVES} times",
            "give fewer",
            code="invalid-pin",
        )
    return Pins(warm=digests, any_warm=options.allow_unpinned_warm)


def pin_variables(pins: Pins) -> dict[str, str]:
    """The container's variables for these pins."""
    warm = ANY if pins.any_warm else ",".join(pins.warm)
    variables = {WARM_PINS_VARIABLE: warm, WEIGHTS_PIN_VARIABLE: pins.weights or ""}
    return {name: value for name, value in variables.items() if value}


def pins_of(environment: Mapping[str, str]) -> Pins:
    """The pins in a container's variables, without invalid ones."""
    weights = environment.get(WEIGHTS_PIN_VARIABLE, "")
    try:
        warm = read_pins(environment)
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
