"""Whether the parts of a plan file still say the same.

The plan says many things twice, for different readers: K in ``speculation`` and in vLLM's
arguments, the arguments again as an environment, the environment again in a request. An edit of
one of them would be a plan that shows one thing and does another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.errors import PlanFileError, UserError
from toolkit.planning.environment import check_environment, engine_part, to_environment
from toolkit.planning.models import Plan
from toolkit.planning.names import check_name
from toolkit.planning.speculation import speculative_config
from toolkit.planning.streaming import LOADER
from toolkit.planning.weights import mounts_of
from toolkit.rendering.requests import requests

_FIX = "a plan is changed as a whole: `peagle plan PAIR ... --out FILE`"

_HASHED = re.compile(r"\.(ModelName|EndpointConfigName|Tags\b.*)$")

_KEYS = {
    r"\.InstanceType$": "instance_type",
    r"\.InitialInstanceCount$": "instance_count",
    r"\.RoutingConfig\b": "instance_count",
    r"\.ContainerStartupHealthCheckTimeoutInSeconds$": "startup_timeout_seconds",
    r"\.ModelDataDownloadTimeoutInSeconds$": "download_timeout_seconds",
    r"\.InferenceAmiVersion$": "runtime.ami",
    r"\.Image$": "runtime.image",
    r"\.Environment\.": "environment",
    r"\.EndpointName$": "name",
}
"""Where the requests repeat a key of the plan -> that key."""


def check_agreement(plan: Plan, document: Mapping[str, Any], file: str) -> None:
    """Raise PlanFileError, naming the key, when two parts of the document disagree."""
    try:
        check_name(plan.name)
        check_environment(plan.environment)
        from_arguments = to_environment(plan.engine_arguments)
    except UserError as error:
        raise PlanFileError(f"{file}: {error.message}", error.fix) from error
    for key, agrees in _arguments(plan, from_arguments):
        if not agrees:
            message = f"{file}: 'engine_arguments' and {key!r} do not say the same"
            raise PlanFileError(message, _FIX)
    if plan.mounts != mounts_of(plan.target.weights, _drafter_weights(plan)):
        message = f"{file}: 'mounts' are not those of the weights of 'target' and 'drafter'"
        raise PlanFileError(message, _FIX)
    _check_requests(plan, document["requests"], file)


def _arguments(plan: Plan, said: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """Each key that ``engine_arguments`` repeat, and whether they repeat it right."""
    yield "environment", said == engine_part(plan.environment)
    weights = plan.target.weights
    yield "target", said.get("SM_VLLM_MODEL") == weights.engine_path
    yield "target", said.get("SM_VLLM_REVISION") == weights.revision
    if weights.streamed:
        yield "target", said.get("SM_VLLM_LOAD_FORMAT") == LOADER
    yield "target", said.get("SM_VLLM_SERVED_MODEL_NAME") == plan.target.id
    yield "max_model_len", said.get("SM_VLLM_MAX_MODEL_LEN") == str(plan.max_model_len)
    yield "concurrency", said.get("SM_VLLM_MAX_NUM_SEQS") == str(plan.concurrency)
    parallel = str(plan.fit.tensor_parallel_size)
    yield "fit", said.get("SM_VLLM_TENSOR_PARALLEL_SIZE") == parallel
    yield "drafter", (plan.drafter is None) == (plan.speculation is None)
    drafter = f"+{plan.drafter.id}" if plan.drafter else ""
    yield "pair", plan.pair == plan.target.id + drafter
    config = said.get("SM_VLLM_SPECULATIVE_CONFIG")
    if plan.speculation is None:
        yield "speculation", config is None
    else:
        planned = speculative_config(plan.speculation, _drafter_weights(plan))
        yield "speculation", config is not None and _same_json(config, planned)


def _drafter_weights(plan: Plan) -> Any:
    return plan.drafter.weights if plan.drafter else None


def _same_json(left: str, right: str) -> bool:
    try:
        return bool(json.loads(left) == json.loads(right))
    except ValueError:
        return False


def _check_requests(plan: Plan, found: Any, file: str) -> None:
    made = requests(plan)
    if not isinstance(found, list) or len(found) != len(made):
        raise PlanFileError(f"{file}: 'requests' must be {len(made)} calls", _FIX)
    expected = [
        {"service": r.service, "operation": r.operation, "parameters": r.parameters} for r in made
    ]
    differences = list(_differences(expected, found, "requests"))
    # Names and tags hold a hash of everything, so they differ whatever was edited: told last.
    differences.sort(key=lambda where: _HASHED.search(where) is not None)
    for where in differences[:1]:
        key = next((key for pattern, key in _KEYS.items() if re.search(pattern, where)), None)
        if key is None:
            message = f"{file}: {where!r} is not what the rest of the plan says"
        else:
            message = f"{file}: {key!r} and {where!r} do not say the same"
        raise PlanFileError(message, _FIX)


def _differences(expected: Any, found: Any, key: str) -> Iterator[str]:
    """The paths at which the two differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            if name not in found or name not in expected:
                yield f"{key}.{name}"
            else:
                yield from _differences(expected[name], found[name], f"{key}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _differences(one, other, f"{key}[{number}]")
    elif type(expected) is not type(found) or expected != found:
        yield key
