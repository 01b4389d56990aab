"""Verdicts as files: written deterministically, and checked when read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peagle.catalog.documents import first_problem
from peagle.errors import Fix, VerdictFileError
from peagle.render.plan_file import read_document
from peagle.speed.verdict import VERDICT_FORMAT, Verdict
from peagle.text import plain

_AGAIN = Fix(
    "create the verdict again", ("peagle", "verdict", "PAIR", "--gpu", "GPU", "-o", "FILE")
)


def verdict_bytes(verdict: Verdict) -> bytes:
    """The document as a file; equal verdicts give equal bytes."""
    return (json.dumps(plain(verdict), indent=1, ensure_ascii=False) + "\n").encode()


def read_verdict(path: Path) -> Verdict:
    """The verdict in the file ``path``. Raises VerdictFileError for a file that is truncated, not a
    verdict of this format, or inconsistent."""
    return verdict_from(read_document(path, VerdictFileError, _AGAIN), str(path))


def verdict_from(document: Any, file: str) -> Verdict:
    """The verdict in a document; ``file`` is its name in messages. Raises VerdictFileError."""
    if not isinstance(document, dict) or not {"format", "workloads"} <= set(document):
        raise VerdictFileError(f"{file} is not a verdict", _AGAIN, code="not-a-verdict")
    if document["format"] != VERDICT_FORMAT:
        version = repr(document["format"])[:40]
        message = f"{file} has verdict format {version}; this version reads format {VERDICT_FORMAT}"
        raise VerdictFileError(message, _AGAIN, code="verdict-format")
    try:
        return Verdict.model_validate_json(json.dumps(document))
    except ValidationError as error:
        problem = first_problem(error, Verdict)
        raise VerdictFileError(f"{file}: {problem}", _AGAIN) from error
