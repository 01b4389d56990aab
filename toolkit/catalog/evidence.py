"""Measured acceptance, from the files under ``evidence/`` of the catalogue's folders.

What no file there shows is ``unverified``. A file says of one target, on one device and vLLM
version, what each drafter got accepted:

    {"pair": "peagle/tiny", "date": "2026-11-20", "device": "...", "engine": {"version": "0.28.0"},
     "results": [{"drafter": "p-eagle", "k": 5, "acceptance_length": 2.4}]}

It may hold more, and so may the folder: a JSON file without ``results`` is raw material of
another kind, or says how fast a pair is (speeds.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.catalog.models import NamedDrafter, NamedTarget
from toolkit.catalog.places import evidence_files, shown
from toolkit.catalog.problems import BadFile, Problem, catalog_error


@dataclass(frozen=True)
class Evidence:
    """A measured acceptance length: of what, on what, when, and the file that holds the rest."""

    target: str
    drafter: str
    k: int
    acceptance_length: float
    vllm: str
    device: str
    date: str
    file: str


def load_evidence(own: Path | None = None) -> tuple[Evidence, ...]:
    """All evidence of the bundled catalogue and of the folder ``own``; raises CatalogError."""
    found: list[Evidence] = []
    for path in evidence_files(own):
        try:
            found += read_evidence(path)
        except BadFile as bad:
            raise catalog_error([bad.problem]) from bad
    return tuple(found)


def evidence_for(
    evidence: tuple[Evidence, ...], target: NamedTarget, drafter: NamedDrafter
) -> tuple[Evidence, ...]:
    """What was measured of this pair."""
    names = {drafter.name, drafter.weights}
    return tuple(e for e in evidence if e.target == target.id and e.drafter in names)


def read_evidence(path: Path) -> list[Evidence]:
    """The evidence in one file; raises BadFile when it does not say all that it must."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(Problem(shown(path), None, "", f"is not JSON: {error}", "")) from error
    if not isinstance(document, dict) or "results" not in document:
        return []
    return list(_results(document, shown(path)))


def _results(document: dict[str, Any], file: str) -> Iterator[Evidence]:
    key = "results"
    try:
        for number, result in enumerate(document["results"]):
            key = f"results[{number}]"
            yield Evidence(
                target=document["pair"].partition("+")[0],
                drafter=result["drafter"],
                k=int(result["k"]),
                acceptance_length=float(result["acceptance_length"]),
                vllm=document["engine"]["version"],
                device=document["device"],
                date=document["date"],
                file=file,
            )
    except KeyError as error:
        name = str(error.args[0])
        raise BadFile(Problem(file, None, key, f"the key {name!r} is missing", "add it")) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise BadFile(Problem(file, None, key, f"is not evidence: {error}", "")) from error
