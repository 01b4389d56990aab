"""A plan as a file: written deterministically, and checked when read.

The document has the Plan's fields, the requests made from them, for people and programs, and a
digest of both: a file that was edited is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peagle.errors import Fix, PlanFileError, UserError
from peagle.options import Options, Overrides, arguments, keys_of_file
from peagle.planning.company import NO_COMPANY, check_company
from peagle.planning.plan import PLAN_FORMAT, Pins, Plan, plan_of
from peagle.planning.runtime import check_name
from peagle.render.documents import first_problem, json_name, read_document
from peagle.render.requests import reproduce_options, requests
from peagle.text import json_digest
from peagle.vllm.environment import check_environment

_CREATE = ("peagle", "plan", "PAIR", "--output")
"""The command that writes the file named after it."""

_COMPUTED = ("requests", "digest")
"""Keys computed from the Plan's fields."""


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan with its requests, as plain data."""
    document = {**plan.model_dump(mode="json"), "requests": _requests(plan)}
    for key, default in (("overrides", Overrides()), ("pins", Pins()), ("company", NO_COMPANY)):
        if getattr(plan, key) == default:
            del document[key]
    for entry in (document, document["without_speculation"], *document["alternatives"]):
        if entry is not None and entry["copies"] is None:
            del entry["copies"]
    return {**document, "digest": digest(document)}


def _requests(plan: Plan) -> list[dict[str, Any]]:
    return [asdict(request) for request in requests(plan)]


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of the document without its digest, independent of key order and whitespace."""
    return json_digest({key: value for key, value in document.items() if key != "digest"})


def plan_bytes(plan: Plan) -> bytes:
    """The document as a file; equal plans give equal bytes."""
    text = json.dumps(plan_document(plan), indent=2, ensure_ascii=False)
    return (text + "\n").encode()


def read_plan(path: Path) -> Plan:
    """The plan in the file ``path``.

    Raises PlanFileError, naming the file, for one that is truncated, not a plan of this format, or
    was edited.
    """
    again = recreate_fix({}, str(path))
    return plan_from(read_document(path, PlanFileError, _CREATE, again), str(path))


def plan_from(document: Any, file: str) -> Plan:
    """The plan in a document; ``file`` is its name in messages. Raises PlanFileError."""
    if not isinstance(document, dict) or "format" not in document:
        why = "the key 'format' is missing" if isinstance(document, dict) else "not a JSON object"
        message = f"{file} is not a plan: {why}"
        raise PlanFileError(message, recreate_fix({}, file), code="not-a-plan")
    again = recreate_fix(document, file)
    if document["format"] != PLAN_FORMAT:
        version = document["format"]
        message = f"{file} has plan format {version!r}; this version reads format {PLAN_FORMAT}"
        raise PlanFileError(message, again, code="plan-format")
    if "workloads" in document and "requests" not in document:
        use = Fix("plan with it", ("peagle", "plan", "PAIR", "--verdict", file))
        raise PlanFileError(f"{file} is a verdict, not a plan", use, code="not-a-plan")
    if missing := [key for key in _COMPUTED if key not in document]:
        raise PlanFileError(f"{file}: the key {missing[0]!r} is missing", again)
    try:
        plan = plan_of({key: value for key, value in document.items() if key not in _COMPUTED})
        # They become names of files and of resources, also those of a plan from someone else.
        check_name(plan.name)
        check_company(plan.company)
        check_environment(plan.environment)
    except ValidationError as error:
        raise PlanFileError(f"{file}: {first_problem(error, Plan)}", again) from error
    except UserError as error:
        raise PlanFileError(f"{file}: {error.message}", error.fix) from error
    if document["digest"] != digest(document) or document["requests"] != _requests(plan):
        message = f"{file} was edited, or another version of the toolkit made it"
        raise PlanFileError(message, again, code="plan-edited")
    return plan


_CHOSEN = (
    "name", "region", "instance_type", "instance_count", "max_model_len", "concurrency",
    "prompt_tokens", "cached_prompt_tokens", "output_tokens",
)  # fmt: skip
"""Keys of a plan that are options too."""


def recreate_fix(document: Mapping[str, Any], file: str) -> Fix:
    """The fix for a plan file that cannot be read: the command that creates it again, with the
    options of the plan, else with those that are intact."""
    fields = {key: value for key, value in document.items() if key in Plan.model_fields}
    words, keys, pair = ["PAIR"], "", document.get("pair")
    if isinstance(pair, str) and pair:
        target, _, drafter = pair.partition("+")
        options = Options(pair=target, drafter=drafter or None, speculation=bool(drafter))
        for key in _CHOSEN:
            with suppress(ValidationError):  # any of them may be the damaged one
                chosen = Options.model_validate({"pair": target, key: document.get(key) or None})
                options = options.model_copy(update={key: getattr(chosen, key)})
        words = [target, *arguments(options)]
    with suppress(ValidationError):
        options = reproduce_options(plan_of({**fields, "format": PLAN_FORMAT}))
        words = [options.pair, *arguments(options)]
        keys = ", ".join(keys_of_file(options))
    command = ("peagle", "plan", *words, "--output", json_name(file))
    return Fix(f"create the plan again{f', with {keys} in peagle.yaml' if keys else ''}", command)
