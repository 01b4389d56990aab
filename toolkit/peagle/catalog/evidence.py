"""Measured results, from the JSON files under ``evidence/`` of the catalogue's folders.

A file with ``results`` holds acceptance lengths of one target on one device and vLLM version; a
pair without one is ``unverified``:

    {"pair": "peagle/tiny", "date": "2026-11-20", "device": "...", "engine": {"version": "0.28.0"},
     "results": [{"drafter": "p-eagle", "k": 5, "acceptance_length": 2.4}]}

A file with ``speeds`` holds speeds of one run: one target, GPU, number of GPUs and vLLM version, so
that the speeds can be compared:

    {"pair": "openai/gpt-oss-20b", "date": "2026-11-20", "engine": {"version": "0.28.0"},
     "gpu": "H200", "tensor_parallel_size": 1, "synthetic": true,
     "speeds": [{"drafter": "p-eagle", "k": 7, "concurrency": 1, "acceptance_length": 3.38,
                 "output_tokens_per_second": 773.0, "prompt_tokens": 128, "output_tokens": 400},
                {"drafter": null, "k": 0, "concurrency": 1, "output_tokens_per_second": 334.0}]}

``gpu`` is a name of the table of instances; ``synthetic`` is whether acceptance was set by hand.
Further keys are ignored, as are files with neither key.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peagle.catalog.documents import (
    BadFile,
    Problem,
    catalog_error,
    display_path,
    dotted,
    evidence_files,
)
from peagle.catalog.schema import NamedDrafter, NamedTarget, SpeedRun


@dataclass(frozen=True)
class Evidence:
    """A measured acceptance length, and the file that has the details."""

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
    """The evidence of this pair."""
    names = {drafter.name, drafter.weights}
    return tuple(e for e in evidence if e.target == target.id and e.drafter in names)


def read_evidence(path: Path) -> list[Evidence]:
    """The evidence in one file; raises BadFile if a key is missing or invalid."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(Problem(display_path(path), None, "", f"is not JSON: {error}", "")) from error
    if not isinstance(document, dict) or "results" not in document:
        return []
    return list(_results(document, display_path(path)))


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
        raise BadFile(Problem(file, None, key, f"missing key {name!r}", "add the key")) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise BadFile(Problem(file, None, key, f"is not evidence: {error}", "")) from error


_KEY = b'"speeds"'
_KEYS = {"target": "pair", "vllm": "engine.version"}
"""Field of a run -> key of the file."""


class Speeds(Mapping[str, tuple[SpeedRun, ...]]):
    """Runs by the target's id, each read at first use, which raises CatalogError for a wrong file.

    The content of files with speeds is loaded at the first use of any target; only files that
    mention a target are parsed for it.
    """

    def __init__(self, own: Path | None) -> None:
        self._own = own
        self._texts: dict[Path, bytes] | None = None
        self._read: dict[str, tuple[SpeedRun, ...]] = {}

    def __getitem__(self, target_id: str) -> tuple[SpeedRun, ...]:
        if target_id not in self._read:
            self._read[target_id] = self._runs_of(target_id)
        if not self._read[target_id]:
            raise KeyError(target_id)
        return self._read[target_id]

    def __iter__(self) -> Iterator[str]:
        runs = (_run(path, text) for path, text in self._candidates().items())
        return iter(dict.fromkeys(run.target for run in runs if run is not None))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _runs_of(self, target_id: str) -> tuple[SpeedRun, ...]:
        name = target_id.rpartition("/")[2].encode()  # the slash may be escaped
        near = {path: text for path, text in self._candidates().items() if name in text}
        runs = (_run(path, text) for path, text in near.items())
        return tuple(run for run in runs if run is not None and run.target == target_id)

    def _candidates(self) -> dict[Path, bytes]:
        if self._texts is None:
            texts = ((path, _text(path)) for path in evidence_files(self._own))
            self._texts = {path: text for path, text in texts if _KEY in text}
        return self._texts


def read_speeds(path: Path, text: bytes | None = None) -> SpeedRun | None:
    """The run in one file, ``None`` if it has no speeds; ``text`` is its content, if known already.

    Raises BadFile, with the key, if a key is missing or invalid.
    """
    try:
        document = json.loads(path.read_bytes() if text is None else text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(Problem(display_path(path), None, "", f"is not JSON: {error}", "")) from error
    if not isinstance(document, dict) or "speeds" not in document:
        return None
    return _checked(document, path)


def _run(path: Path, text: bytes) -> SpeedRun | None:
    try:
        return read_speeds(path, text)
    except BadFile as bad:
        raise catalog_error([bad.problem]) from bad


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        problem = Problem(display_path(path), None, "", f"cannot be read: {error.strerror}", "")
        raise catalog_error([problem]) from error


def _checked(document: dict[str, Any], path: Path) -> SpeedRun:
    engine = document.get("engine")
    fields = {key: document[key] for key in SpeedRun.model_fields if key in document}
    fields["file"] = path.name
    if "pair" in document:
        fields["target"] = _target(document["pair"])
    if isinstance(engine, dict) and "version" in engine:
        fields["vllm"] = engine["version"]
    try:
        run = SpeedRun.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise BadFile(_problem(error, path)) from error
    for key, message, fix in _broken(run):
        raise BadFile(Problem(display_path(path), None, key, message, fix))
    return run


def _target(pair: Any) -> Any:
    return pair.partition("+")[0] if isinstance(pair, str) else pair


def _problem(error: ValidationError, path: Path) -> Problem:
    """pydantic's first error, with the keys of the file."""
    detail = error.errors(include_url=False)[0]
    first, *rest = detail["loc"]
    key = dotted((_KEYS.get(str(first), first), *rest))
    if detail["type"] == "missing":
        return Problem(display_path(path), None, key, "missing key", "add the key")
    found = json.dumps(detail["input"])[:60]
    return Problem(display_path(path), None, key, f"is {found}: {detail['msg'].lower()}", "")


def _broken(run: SpeedRun) -> Iterator[tuple[str, str, str]]:
    """Problems between the rows: key, message and fix."""
    if not run.speeds:
        yield "speeds", "is empty", "remove the file, or add the measured speeds"
    seen: Counter[tuple[Any, ...]] = Counter()
    for number, row in enumerate(run.speeds):
        key = f"speeds[{number}]"
        if (row.drafter is None) != (row.k == 0):
            fix = "the target alone has drafter null and k 0; with a drafter, k is at least 1"
            yield key, f"drafter {json.dumps(row.drafter)} with k {row.k}", fix
        seen[at := (row.drafter, row.k, row.concurrency, row.prompt_tokens, row.output_tokens)] += 1
        if seen[at] > 1:
            message = f"duplicate row: k {row.k} with concurrency {row.concurrency}"
            yield key, message, "keep one of them"
