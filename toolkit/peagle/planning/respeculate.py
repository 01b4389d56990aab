"""Change the speculation of a finished plan, for example its K, without planning again."""

from __future__ import annotations

from typing import Any

from peagle.errors import UserError
from peagle.planning.plan import Plan, Speculation
from peagle.planning.speculation import speculative_config
from peagle_serve.contract import SPECULATION

_FLAG = "--speculative-config"


def with_speculation(plan: Plan, speculation: Speculation | None) -> Plan:
    """The plan with this speculation of its drafter, or of its target alone, in the engine's
    arguments and environment too.

    Instance, memory and speeds stay those of ``plan``. Raises UserError for a plan without a
    drafter.
    """
    if plan.speculation is None:
        raise UserError(f"{plan.pair} has no drafter", "choose a pair with one", "no-plan")
    arguments = list(plan.engine_arguments)
    at = arguments.index(_FLAG)
    environment = {name: value for name, value in plan.environment.items() if name != SPECULATION}
    changed: dict[str, Any] = {"speculation": speculation}
    if speculation is None:
        changed |= {"drafter": None, "pair": plan.target.id}
        del arguments[at : at + 2]
    else:
        config = speculative_config(speculation, plan.drafter.weights if plan.drafter else None)
        arguments[at + 1] = environment[SPECULATION] = config
    return plan.model_copy(
        update={**changed, "environment": environment, "engine_arguments": tuple(arguments)}
    )


def without_floor(plan: Plan) -> Plan:
    """The plan without an acceptance floor, for a measurement: a low acceptance is a result."""
    if plan.speculation is None:
        return plan
    none = {"acceptance_floor": None, "acceptance_floor_source": None}
    return plan.model_copy(update={"speculation": plan.speculation.model_copy(update=none)})
