"""A verdict as a file: written deterministically, and checked when read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peagle.errors import Fix, VerdictFileError
from peagle.render.documents import first_problem, read_document
from peagle.speed.verdict import VERDICT_FORMAT, Verdict

_CREATE = ("peagle", "verdict", "PAIR", "--gpu", "GPU", "-o")
"""The command that writes the file named after it."""

_AGAIN = Fix("create the verdict again", (*_CREATE, "FILE"))


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data."""
    return verdict.model_dump(mode="json")


def verdict_bytes(verdict: Verdict) -> bytes:
    """The document as a file; equal verdicts give equal bytes."""
    return (json.dumps(verdict_document(verdict), indent=1, ensure_ascii=False) + "\n").encode()


def read_verdict(path: Path) -> Verdict:
    """The verdict in the file ``path``.

    Raises VerdictFileError, naming file and key, for a file that is truncated, not a verdict of
    this format, or inconsistent.
    """
    return verdict_from(read_document(path, VerdictFileError, _CREATE, _AGAIN), str(path))


def verdict_from(document: Any, file: str) -> Verdict:
    """The verdict in a document; ``file`` is its name in messages. Raises VerdictFileError."""
    if isinstance(document, dict) and "requests" in document and "workloads" not in document:
        use = Fix("use the plan in place of the pair", ("peagle", "plan", file))
        raise VerdictFileError(f"{file} is a plan, not a verdict", use, code="not-a-verdict")
    if not isinstance(document, dict) or not {"format", "workloads"} <= set(document):
        raise VerdictFileError(f"{file} is not a verdict", _AGAIN, code="not-a-verdict")
    if document["format"] != VERDICT_FORMAT:
        version = repr(document["format"])[:40]
        message = f"{file} has verdict format {version}; this version reads format {VERDICT_FORMAT}"
        raise VerdictFileError(message, _AGAIN, code="verdict-format")
    try:
        return Verdict.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise VerdictFileError(f"{file}: {first_problem(error, Verdict)}", _AGAIN) from error
