"""A plan as a file: written deterministically, and checked when read.

The document has the Plan's fields and the requests made from them, for people and programs. A
plan states many facts twice: K in ``speculation`` and in vLLM's arguments, the arguments again as
an environment, the environment again in a request. Reading computes these again and rejects a file
whose parts disagree, or whose digest does not match.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peagle.errors import Fix, PlanFileError, UserError
from peagle.planning.company import NO_COMPANY, check_company
from peagle.planning.options import Options, Overrides, arguments, keys_of_file
from peagle.planning.pins import PIN_VARIABLES, pin_variables
from peagle.planning.plan import PLAN_FORMAT, Pins, Plan, plan_of
from peagle.planning.runtime import check_name
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, mounts_of
from peagle.render.documents import first_problem, json_name, read_document
from peagle.render.requests import (
    reproduce_options,
    requests,
)
from peagle.text import json_digest
from peagle.vllm.environment import check_environment, engine_part, to_environment
from peagle_serve import json_reader
from peagle_serve.contract import LOAD_FORMAT, PREFIX, SPECULATION
from peagle_serve.environment import variable_of
from peagle_serve.json_reader import InvalidJson

_PLAN = ("peagle", "plan", "PAIR", "--output")
"""The command that writes the file named after it."""


def _again(file: str) -> Fix:
    return Fix("create the plan again", (*_PLAN, json_name(file)))


def _unedited(file: str) -> Fix:
    return Fix("create a new plan instead of editing the file", (*_PLAN, file))


_HASHED = re.compile(r"\.(ModelName|EndpointConfigName|Tags\b.*)$")

_KEYS = {
    r"\.InstanceType$": "instance_type",
    r"\.InitialInstanceCount$": "instance_count",
    r"\.ManagedInstanceScaling\b": "instance_count",
    r"\.(CopyCount|ComputeResourceRequirements)\b": "copies",
    r"\.RoutingConfig\b": "instance_count",
    r"\.ContainerStartupHealthCheckTimeoutInSeconds$": "startup_timeout_seconds",
    r"\.ModelDataDownloadTimeoutInSeconds$": "download_timeout_seconds",
    r"\.InferenceAmiVersion$": "runtime.ami",
    r"\.Image$": "runtime.image",
    r"\.Environment\.": "environment",
    r"\.EndpointName$": "name",
    r"\.(VpcConfig\b|EnableNetworkIsolation$|KmsKeyId$)": "company",
}
"""Where the requests repeat a key of the plan -> that key."""


def check_agreement(plan: Plan, document: Mapping[str, Any], file: str) -> None:
    """Raise PlanFileError, naming the key, when two parts of the document disagree."""
    try:
        check_name(plan.name)
        check_company(plan.company)
        check_environment(plan.environment)
        from_arguments = to_environment(plan.engine_arguments)
    except UserError as error:
        raise PlanFileError(f"{file}: {error.message}", error.fix) from error
    for key, agrees in _arguments(plan, from_arguments):
        if not agrees:
            message = f"{file}: 'engine_arguments' and {key!r} disagree"
            raise PlanFileError(message, _unedited(file), code="plan-edited")
    if plan.mounts != mounts_of(plan.target.weights, _drafter_weights(plan)):
        message = f"{file}: 'mounts' and the weights of 'target' and 'drafter' disagree"
        raise PlanFileError(message, _unedited(file), code="plan-edited")
    _check_requests(plan, document["requests"], file)


def _arguments(plan: Plan, found: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """Each key that ``engine_arguments`` repeats, and whether the two agree."""
    yield "environment", found == engine_part(plan.environment)
    weights = plan.target.weights
    repeated = (
        ("target", "MODEL", weights.engine_path),
        ("target", "REVISION", weights.revision),
        ("target", "SERVED_MODEL_NAME", plan.target.id),
        ("max_model_len", "MAX_MODEL_LEN", str(plan.max_model_len)),
        ("concurrency", "MAX_NUM_SEQS", str(plan.concurrency)),
        ("fit", "TENSOR_PARALLEL_SIZE", str(plan.fit.tensor_parallel_size)),
    )
    for key, flag, value in repeated:
        yield key, found.get(f"{PREFIX}{flag}") == value
    if weights.streamed:
        yield "target", found.get(LOAD_FORMAT) == LOADER
    yield "overrides", _keeps_overrides(plan, found)
    pinned = {key: plan.environment[key] for key in PIN_VARIABLES if key in plan.environment}
    yield "pins", pinned == pin_variables(plan.pins)
    yield "drafter", (plan.drafter is None) == (plan.speculation is None)
    drafter = f"+{plan.drafter.id}" if plan.drafter else ""
    yield "pair", plan.pair == plan.target.id + drafter
    config = found.get(SPECULATION)
    if plan.speculation is None:
        yield "speculation", config is None
    else:
        planned = speculative_config(plan.speculation, _drafter_weights(plan))
        yield "speculation", config is not None and _same_json(config, planned)


def _keeps_overrides(plan: Plan, found: dict[str, str]) -> bool:
    """Whether the plan has the arguments and variables that the user set."""
    own = plan.overrides
    no = ("", "false")
    arguments = all(
        (variable_of(f"--{name}") in found) is (text.strip().lower() not in no)
        for name, text in own.settings.items()
    )
    return arguments and all(
        plan.environment.get(name) == (value or None) for name, value in own.environment.items()
    )


def _drafter_weights(plan: Plan) -> Any:
    return plan.drafter.weights if plan.drafter else None


def _same_json(left: str, right: str) -> bool:
    try:
        return bool(json_reader.read(left, "one") == json_reader.read(right, "the other"))
    except InvalidJson:
        return False


def _check_requests(plan: Plan, found: Any, file: str) -> None:
    expected = [asdict(request) for request in requests(plan)]
    if not isinstance(found, list) or len(found) != len(expected):
        message = f"{file}: 'requests' must be {len(expected)} calls"
        raise PlanFileError(message, _unedited(file), code="plan-edited")
    differences = list(_differences(expected, found, "requests"))
    # Names and tags contain a hash of everything, so they always differ; they come last.
    differences.sort(key=lambda where: _HASHED.search(where) is not None)
    for where in differences[:1]:
        key = next((key for pattern, key in _KEYS.items() if re.search(pattern, where)), None)
        which = (
            f"{key!r} and {where!r} disagree"
            if key
            else (f"{where!r} disagrees with the rest of the plan")
        )
        raise PlanFileError(f"{file}: {which}", _unedited(file), code="plan-edited")


def _differences(expected: Any, found: Any, key: str) -> Iterator[str]:
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


_MADE = ("requests", "digest")
"""Keys computed from the Plan's fields."""


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan with its requests, as plain data."""
    made = [asdict(request) for request in requests(plan)]
    document = {**plan.model_dump(mode="json"), "requests": made}
    for key, default in (("overrides", Overrides()), ("pins", Pins()), ("company", NO_COMPANY)):
        if getattr(plan, key) == default:
            del document[key]
    for one in (document, document["without_speculation"], *document["alternatives"]):
        if one is not None and one["copies"] is None:
            del one["copies"]
    return {**document, "digest": digest(document)}


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of the document without its digest, independent of key order and whitespace."""
    return json_digest({key: value for key, value in document.items() if key != "digest"})


def plan_bytes(plan: Plan) -> bytes:
    """The document as a file; equal plans give equal bytes."""
    text = json.dumps(plan_document(plan), indent=2, ensure_ascii=False)
    return (text + "\n").encode()


def read_plan(path: Path) -> Plan:
    """The plan in the file ``path``.

    Raises PlanFileError, naming file and key, for a file that is truncated, not a plan of this
    format, or inconsistent.
    """
    document = read_document(path, PlanFileError, _PLAN, _again(str(path)))
    return plan_from(document, str(path))


def plan_from(document: Any, file: str) -> Plan:
    """The plan in a document; ``file`` is its name in messages. Raises PlanFileError."""
    if not isinstance(document, dict):
        message = f"{file} is not a plan: not a JSON object"
        raise PlanFileError(message, _again(file), code="not-a-plan")
    if "format" not in document:
        message = f"{file} is not a plan: the key 'format' is missing"
        raise PlanFileError(message, _again(file), code="not-a-plan")
    if document["format"] != PLAN_FORMAT:
        found = document["format"]
        message = f"{file} has plan format {found!r}; this version reads format {PLAN_FORMAT}"
        raise PlanFileError(message, recreate_fix(document, file), code="plan-format")
    if "workloads" in document and "requests" not in document:
        use = Fix("plan with it", ("peagle", "plan", "PAIR", "--verdict", file))
        raise PlanFileError(f"{file} is a verdict, not a plan", use, code="not-a-plan")
    if missing := [key for key in _MADE if key not in document]:
        message = f"{file}: the key {missing[0]!r} is missing"
        raise PlanFileError(message, recreate_fix(document, file))
    fields = {key: value for key, value in document.items() if key not in _MADE}
    try:
        plan = plan_of(fields)
    except ValidationError as error:
        raise PlanFileError(
            f"{file}: {first_problem(error, Plan)}", recreate_fix(document, file)
        ) from error
    check_agreement(plan, document, file)
    _check_numbers(plan, file)
    if document["digest"] != digest(document):
        message = f"{file} was edited after it was created (its digest does not match)"
        raise PlanFileError(message, recreate_fix(document, file), code="plan-edited")
    return _without_stale_finding(plan)


_MOST_USD_PER_HOUR = 100_000.0
"""More than any number of instances that a quota of SageMaker allows."""


def _check_numbers(plan: Plan, file: str) -> None:
    """Raise PlanFileError for a number that no plan has: someone would pay or wait for it."""
    speculation, most = plan.speculation, _MOST_USD_PER_HOUR
    limits: list[tuple[str, float | None, float, float]] = [
        ("price_per_hour_usd", plan.price_per_hour_usd, 0, most),
        ("instance_count", plan.instance_count, 1, 10_000),
        ("concurrency", plan.concurrency, 1, 100_000),
        ("max_model_len", plan.max_model_len, 1, 100_000_000),
        ("prompt_tokens", plan.prompt_tokens, 1, plan.max_model_len),
        ("output_tokens", plan.output_tokens, 1, plan.max_model_len),
    ]
    if speculation:
        limits.append(("speculation.k", speculation.k, 1, 1_000))
        floor = speculation.acceptance_floor
        limits.append(("speculation.acceptance_floor", floor, 1, speculation.k + 1))
    if plan.limit:
        limits.append(("limit.budget_usd", plan.limit.budget_usd, 0, most * 24 * 366))
        limits.append(("limit.ttl_seconds", plan.limit.ttl_seconds, 0, 366 * 86_400))
    speeds = {"speed": plan.speed, "without_speculation": plan.without_speculation}
    speeds |= {f"alternatives[{place}]": one for place, one in enumerate(plan.alternatives)}
    for key, speed in speeds.items():
        for name in speed.__class__.model_fields if speed else ():
            value = getattr(speed, name)
            if isinstance(value, int | float):
                limits.append((f"{key}.{name}", value, 0, math.inf))
    for key, value, least, largest in limits:
        if value is not None and not (math.isfinite(value) and least <= value <= largest):
            allowed = (
                f"{least:,g} or more" if largest == math.inf else f"{least:,g} to {largest:,g}"
            )
            message = f"{file}: {key!r} is {value:,g}; it must be {allowed}"
            raise PlanFileError(message, _again(file), code="plan-number")


def _without_stale_finding(plan: Plan) -> Plan:
    """A plan of the previous version, which could not be proved with AWS's image: the log proves
    it now."""
    kept = tuple(one for one in plan.findings if one.code != _STALE_FINDING)
    if len(kept) == len(plan.findings):
        return plan
    proof = plan.proof.model_copy(update={"source": "log"})
    return plan.model_copy(update={"proof": proof, "findings": kept})


_STALE_FINDING = "image-without-counters"

_CHOSEN = (
    "name", "region", "instance_type", "instance_count", "max_model_len", "concurrency",
    "prompt_tokens", "cached_prompt_tokens", "shared_prompt_tokens", "output_tokens",
)  # fmt: skip
"""Keys of a plan that are options too."""


def recreate_fix(document: Mapping[str, Any], file: str) -> Fix:
    """The fix for a plan file that cannot be read: the command that creates it again, with all
    options of the plan, else with those that the document still has. Without a pair there is no
    command."""
    known = {key: value for key, value in document.items() if key in Plan.model_fields}
    with suppress(ValidationError):
        return _create_again(reproduce_options(plan_of({**known, "format": PLAN_FORMAT})), file)
    pair = document.get("pair")
    if not isinstance(pair, str) or not pair:
        return _again(file)
    options = _options_of({**_mapping(document, "options"), "pair": pair}) or Options(pair=pair)
    target, _, drafter = pair.partition("+")
    fields: dict[str, Any] = {key: document[key] for key in _CHOSEN if document.get(key)}
    fields |= {"pair": target, "drafter": drafter or None, "speculation": bool(drafter)}
    fields |= {"k": _mapping(document, "speculation").get("k")}
    fields |= {"copies": _mapping(document, "copies").get("per_instance")}
    for key, value in fields.items():  # one by one: any of them may be damaged
        options = _options_of({**options.model_dump(mode="json"), key: value}) or options
    return _create_again(options, file)


def _options_of(fields: Mapping[str, Any]) -> Options | None:
    """The options with these fields, as JSON has them; ``None`` where one is wrong."""
    with suppress(ValidationError, TypeError):
        return Options.model_validate_json(json.dumps(fields))
    return None


def _mapping(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _create_again(options: Options, file: str) -> Fix:
    command = ("peagle", "plan", options.pair, *arguments(options), "--output", file)
    keys = ", ".join(keys_of_file(options))
    return Fix(f"create the plan again{f', with {keys} in peagle.yaml' if keys else ''}", command)
