"""A plan as a file: written the same way every time, and read with suspicion.

The document holds the Plan's fields and the requests made from them, so that a person or a program
can read what would be sent. Reading makes the requests, the environment and the engine's
arguments again; a file whose parts no longer say the same is refused, and so is one whose digest
is not that of the rest: an edit that nothing else in the file contradicts.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from toolkit.errors import PlanFileError, nearest
from toolkit.planning.models import PLAN_FORMAT, Plan
from toolkit.rendering.agreement import check_agreement
from toolkit.rendering.requests import requests

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
