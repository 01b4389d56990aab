"""Whether the parts of a plan file still say the same.

The plan says many things twice, for different readers: K in ``speculation`` and in vLLM's
arguments, the arguments again as an environment, the environment again in a request. An edit of
one of them would be a plan that shows one thing and does another.

A plan as a file: written the same way every time, and read with suspicion.

The document holds the Plan's fields and the requests made from them, so that a person or a program
can read what would be sent. Reading makes the requests, the environment and the engine's
arguments again; a file whose parts no longer say the same is refused, and so is one whose digest
is not that of the rest: an edit that nothing else in the file contradicts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from peagle.errors import PlanFileError, UserError, nearest
from peagle.planning.plan import PLAN_FORMAT, Plan
from peagle.planning.runtime import check_name
from peagle.planning.speculation import speculative_config
from peagle.planning.weights import LOADER, mounts_of
from peagle.render.requests import requests
from peagle.vllm.environment import check_environment, engine_part, to_environment

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


_AGAIN = "make it again with `peagle plan PAIR --out FILE`"
_MADE = ("requests", "digest")
"""Keys that are made from the Plan's fields."""

_LAST_WORD = re.compile(r"[\w.+\-]*,?\s*")


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan with its requests, as plain data."""
    made = [
        {"service": r.service, "operation": r.operation, "parameters": r.parameters}
        for r in requests(plan)
    ]
    document = {**plan.model_dump(mode="json"), "requests": made}
    return {**document, "digest": digest(document)}


def digest(document: dict[str, Any]) -> str:
    """SHA-256 over the document without its digest, however its keys are ordered and set out."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def plan_bytes(plan: Plan) -> bytes:
    """The document as a file: the same plan gives the same bytes."""
    text = json.dumps(plan_document(plan), indent=2, ensure_ascii=False)
    return (text + "\n").encode()


def read_plan(path: Path) -> Plan:
    """The plan in the file ``path``.

    Raises PlanFileError, naming file and key, for a file that is cut short, that is not a plan of
    this format, or whose parts do not say the same.
    """
    return plan_from(_read(path), str(path))


def plan_from(document: Any, file: str) -> Plan:
    """The plan in a document; ``file`` is how messages name it. Raises PlanFileError."""
    if not isinstance(document, dict):
        raise PlanFileError(f"{file} is not a plan: it holds no JSON object", _AGAIN)
    if "format" not in document:
        raise PlanFileError(f"{file} is not a plan: the key 'format' is missing", _AGAIN)
    if document["format"] != PLAN_FORMAT:
        found = document["format"]
        message = f"{file}: format {found!r}, and this toolkit reads format {PLAN_FORMAT}"
        raise PlanFileError(message, _AGAIN)
    for key in _MADE:
        if key not in document:
            raise PlanFileError(f"{file}: the key {key!r} is missing", _AGAIN)
    fields = {key: value for key, value in document.items() if key not in _MADE}
    try:
        plan = Plan.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise PlanFileError(f"{file}: {_first(error)}", _AGAIN) from error
    check_agreement(plan, document, file)
    if document["digest"] != digest(document):
        fix = "make a new plan with `peagle plan PAIR ... --out FILE`"
        raise PlanFileError(f"{file} was edited after it was made", fix)
    return plan


def _read(path: Path) -> Any:
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise PlanFileError(
            f"there is no file {path}", "write one: peagle plan PAIR --out FILE"
        ) from None
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        wrong = "is cut short" if error.reason == "unexpected end of data" else "is not UTF-8"
        raise PlanFileError(f"{path} {wrong} (byte {error.start})", _AGAIN) from error
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        wrong = "is cut short" if _ends_early(error) else "is not JSON"
        message = f"{path} {wrong}: line {error.lineno}, {error.msg}"
        raise PlanFileError(message, _AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{path} is not JSON: {error}", _AGAIN) from error


def _ends_early(error: json.JSONDecodeError) -> bool:
    """Whether nothing is wrong but that the text ends: in a string, in a word, or between two.

    A string that is not closed is told where it begins. A file with other text than JSON has more
    after its first wrong word, or does not begin as JSON does.
    """
    if error.doc.lstrip()[:1] not in ("", "{", "["):
        return False
    rest = error.doc[error.pos :]
    return error.msg.startswith("Unterminated string") or _LAST_WORD.fullmatch(rest) is not None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice"
        )
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _first(error: ValidationError) -> str:
    """pydantic's first complaint, in the words of the file."""
    detail = error.errors(include_url=False)[0]
    key = ""
    for step in detail["loc"]:
        key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else step
    if detail["type"] == "missing":
        return f"the key {key!r} is missing"
    if detail["type"] == "extra_forbidden":
        known = list(Plan.model_fields) if len(detail["loc"]) == 1 else []
        return f"there is no key {key!r} in a plan; {nearest(key, known)}".rstrip("; ")
    return f"{key}: {detail['msg']}"
