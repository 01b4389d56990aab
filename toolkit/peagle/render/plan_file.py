"""Plans as files: written deterministically, and checked when read.

A plan's document has the Plan's fields, the requests made from them, for people and programs, and a
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

from peagle.catalog.documents import first_problem
from peagle.errors import Fix, PeagleError, PlanFileError, UserError
from peagle.options import Overrides, arguments, select_file_keys
from peagle.planning.company import NO_COMPANY, check_company
from peagle.planning.plan import PLAN_FORMAT, Pins, Plan, parse_plan
from peagle.planning.runtime import check_name
from peagle.render.requests import reproduce_options, requests
from peagle.text import json_digest
from peagle.vllm.environment import check_environment
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

_COMPUTED = ("requests", "digest")


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan with its requests, as plain data."""
    document = {
        **plan.model_dump(mode="json"),
        "requests": [asdict(request) for request in requests(plan)],
    }
    for key, default in (("overrides", Overrides()), ("pins", Pins()), ("company", NO_COMPANY)):
        if getattr(plan, key) == default:
            del document[key]
    for entry in (document, document["without_speculation"], *document["alternatives"]):
        if entry is not None and entry["copies"] is None:
            del entry["copies"]
    return {**document, "digest": digest(document)}


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of the document without its digest, independent of key order and whitespace."""
    return json_digest({key: value for key, value in document.items() if key != "digest"})


def plan_bytes(plan: Plan) -> bytes:
    """The document as a file; equal plans give equal bytes."""
    return (json.dumps(plan_document(plan), indent=2, ensure_ascii=False) + "\n").encode()


def read_plan(path: Path) -> Plan:
    """The plan in the file ``path``. Raises PlanFileError, naming the file, for one that is
    truncated, not a plan of this format, or was edited."""
    again = recreate_fix({}, str(path))
    return plan_from(read_document(path, PlanFileError, again), str(path))


def plan_from(document: Any, file: str) -> Plan:
    """The plan in a document; ``file`` is its name in messages. Raises PlanFileError."""
    if isinstance(document, dict) and "workloads" in document:
        use = Fix("plan with it", ("peagle", "plan", "PAIR", "--verdict", file))
        raise PlanFileError(f"{file} is a verdict, not a plan", use, code="not-a-plan")
    if not isinstance(document, dict) or "format" not in document:
        raise PlanFileError(f"{file} is not a plan", recreate_fix({}, file), code="not-a-plan")
    again = recreate_fix(document, file)
    if (version := document["format"]) != PLAN_FORMAT:
        message = f"{file} has plan format {version!r}; this version reads format {PLAN_FORMAT}"
        raise PlanFileError(message, again, code="plan-format")
    if missing := [key for key in _COMPUTED if key not in document]:
        raise PlanFileError(f"{file}: the key {missing[0]!r} is missing", again)
    try:
        plan = parse_plan({key: value for key, value in document.items() if key not in _COMPUTED})
        # They become names of files and of resources, also those of a plan from someone else.
        check_name(plan.name)
        check_company(plan.company)
        check_environment(plan.environment)
    except ValidationError as error:
        raise PlanFileError(f"{file}: {first_problem(error, Plan)}", again) from error
    except UserError as error:
        raise PlanFileError(f"{file}: {error.message}", error.fix) from error
    made = [asdict(request) for request in requests(plan)]
    if document["digest"] != digest(document) or document["requests"] != made:
        message = f"{file} was edited, or another version of the toolkit made it"
        raise PlanFileError(message, again, code="plan-edited")
    refuse_unpinned_warm(plan, file)
    return plan


def refuse_unpinned_warm(plan: Plan, file: str) -> None:
    """Raise PlanFileError where a file would let anyone who may write next to the weights run code,
    for as long as the file is used."""
    if plan.pins.any_warm:
        message = f"{file} cannot allow unpinned warm starts, as no file may"
        raise PlanFileError(message, "plan again, and pass --allow-unpinned-warm to peagle deploy")


def recreate_fix(document: Mapping[str, Any], file: str) -> Fix:
    """The fix for a plan file that cannot be read: the command that creates it again, with the
    options of the plan if they are intact. Its reasons, which differ by version, are not read."""
    fields = {key: value for key, value in document.items() if key in Plan.model_fields}
    words, keys = ["PAIR"], ""
    with suppress(ValidationError):
        options = reproduce_options(parse_plan({**fields, "reasons": (), "format": PLAN_FORMAT}))
        words = [options.pair, *arguments(options)]
        keys = ", ".join(select_file_keys(options))
    # Commands recognize a plan by the suffix.
    name = file if file.endswith(".json") else f"{file}.json"
    text = f"create the plan again{f', with {keys} in peagle.yaml' if keys else ''}"
    return Fix(text, ("peagle", "plan", *words, "--output", name))


def read_document(path: Path, kind: type[PeagleError], again: Fix) -> Any:
    """The JSON in the file ``path``. Raises ``kind`` with the fix for a file that is missing,
    truncated or not JSON."""
    try:
        with path.open("rb") as stream:
            return json_reader.read(stream.read(json_reader.LIMIT + 1), str(path))
    except FileNotFoundError:
        raise kind(f"there is no file {path}", again) from None
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}", again) from error
    except InvalidJson as error:
        raise kind(str(error), again) from error
