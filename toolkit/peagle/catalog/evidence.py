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

``gpu`` is a name of the table of instances; ``synthetic`` is whether acceptance was set by hand. A
row may also have ``low`` and ``high`` (slowest and fastest of its ``repetitions``), and latencies:
``ttft_seconds``, ``itl_seconds``, ``tpot_seconds``, each with ``mean``, ``p50``, ``p90``, ``p99``.
``caveat`` is what the speeds do not show of real requests; plans and verdicts print it.
Further keys are ignored, as are files with neither key; ``device`` must name the GPU
(``consistency``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from peagle.catalog.consistency import above_trained, rows_of, wrong_engine, wrong_rows
from peagle.catalog.documents import (
    LARGEST_EVIDENCE,
    BadFile,
    catalog_error,
    display_path,
    dotted,
    evidence_files,
    read_bytes,
)
from peagle.catalog.schema import NO_GPU, Drafter, Measurement, SpeedRun, Target
from peagle.catalog.tables import Positive, Version
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits

Model = TypeVar("Model", bound=BaseModel)


class Evidence(Measurement):
    """A measured acceptance length, and the file that has the details."""

    target: str
    drafter: str
    k: Positive
    acceptance_length: float = Field(ge=1)
    vllm: Version
    device: str
    date: str
    file: str


_KEYS = {"target": "pair", "vllm": "engine.version"}
"""Field of Evidence and SpeedRun -> key of the file."""

_LIMITS = Limits(size=LARGEST_EVIDENCE)
_OF_RESULT = ("drafter", "k", "acceptance_length")


def load_evidence(user_folder: Path | None = None) -> tuple[Evidence, ...]:
    """All evidence of the bundled catalogue and of ``user_folder``; raises CatalogError."""
    evidence: list[Evidence] = []
    for path in evidence_files(user_folder):
        try:
            evidence += read_evidence(path)
        except BadFile as bad:
            raise catalog_error([bad.problem]) from bad
    return tuple(evidence)


def evidence_for(
    evidence: tuple[Evidence, ...], target: Target, drafter: Drafter
) -> tuple[Evidence, ...]:
    """The evidence of this pair."""
    names = {drafter.name, drafter.weights}
    return tuple(e for e in evidence if e.target == target.id and e.drafter in names)


def read_evidence(path: Path, text: bytes | None = None) -> list[Evidence]:
    """The evidence in one file; ``text`` is its content, if known already.

    Raises BadFile, with the key, if one is missing or invalid.
    """
    document = document_of(path, text)
    results = document.get("results", [])
    if not isinstance(results, list):
        raise _bad(path, "results", f"is {json.dumps(results)[:60]}: expected a list")
    for problem in wrong_engine(document) if results else ():
        raise _bad(path, *problem)
    common = _common(document, display_path(path))
    return [
        validated(Evidence, common | (row if isinstance(row, dict) else {}), path, number)
        for number, row in enumerate(results)
    ]


def read_speeds(path: Path, text: bytes | None = None, is_own: bool = False) -> SpeedRun | None:
    """The run in one file, ``None`` if it has no speeds; ``text`` is its content, if known already.
    ``is_own`` is whether the file is in the user's catalogue.

    Raises BadFile, with the key, if a key is missing or invalid.
    """
    document = document_of(path, text)
    if "speeds" not in document:
        return None
    for problem in wrong_engine(document):
        raise _bad(path, *problem)
    run = validated(SpeedRun, _common(document, path.name) | {"own": is_own}, path)
    for problem in wrong_rows(run, document):
        raise _bad(path, *problem)
    return run


def best_first(runs: Iterable[SpeedRun]) -> tuple[SpeedRun, ...]:
    """The runs in the order in which they answer: trained heads before imposed acceptance, then
    those of the user's catalogue, then the newest."""
    return tuple(sorted(runs, key=lambda run: (run.synthetic, not run.own, -run.date.toordinal())))


class Speeds(Mapping[str, tuple[SpeedRun, ...]]):
    """Runs by the target's id, in the order in which they answer; each is read at first use, which
    raises CatalogError for a wrong file.

    A file that has only acceptance lengths is a run without speeds. The content of files with
    either is loaded at the first use of any target; only files that mention a target are parsed
    for it.
    """

    def __init__(self, user_folder: Path | None, targets: Mapping[str, Target]) -> None:
        self._user_folder, self._targets = user_folder, targets
        self._texts: dict[Path, bytes] | None = None
        self._read: dict[str, tuple[SpeedRun, ...]] = {}

    def __getitem__(self, target_id: str) -> tuple[SpeedRun, ...]:
        if target_id not in self._read:
            name = target_id.rpartition("/")[2]  # the slash may be escaped
            runs = (run for run in self._runs(name) if run.target == target_id)
            self._read[target_id] = best_first(runs)
        if not self._read[target_id]:
            raise KeyError(target_id)
        return self._read[target_id]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(run.target for run in self._runs()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _runs(self, mentioned: str = "") -> Iterator[SpeedRun]:
        """The runs of all files that mention this name."""
        try:
            if self._texts is None:
                texts = {path: read_bytes(path) for path in evidence_files(self._user_folder)}
                self._texts = {path: text for path, text in texts.items() if _HAS_RUN(text)}
            for path, text in self._texts.items():
                is_own = self._user_folder is not None and path.is_relative_to(self._user_folder)
                if mentioned.encode() not in text:
                    continue
                run = _run(path, text, is_own)
                if run is None:
                    continue
                # Bundled evidence may be of a target that the user's catalogue replaces.
                target = self._targets.get(run.target) if run.own else None
                for problem in above_trained(rows_of(run), target.drafters) if target else ():
                    raise _bad(path, *problem)
                yield run
        except BadFile as bad:
            raise catalog_error([bad.problem]) from bad


_HAS_RUN = re.compile(rb'"(?:speeds|results)"').search


@lru_cache(maxsize=64)  # a process that loads the catalogue again parses only what has changed
def _run(path: Path, text: bytes, is_own: bool) -> SpeedRun | None:
    """The run in one file, with or without speeds."""
    return read_speeds(path, text, is_own) or _without_speeds(path, text)


def _without_speeds(path: Path, text: bytes) -> SpeedRun | None:
    """The acceptance lengths of a file without speeds as a run; ``None`` without any."""
    if not (evidence := read_evidence(path, text)):
        return None
    common = _common(document_of(path, text), path.name)
    rows = [row.model_dump(include=set(_OF_RESULT)) for row in evidence]
    no_speeds = {"gpu": NO_GPU, "tensor_parallel_size": 1, "synthetic": False, "speeds": []}
    return validated(SpeedRun, {**common, **no_speeds, "on_text": rows}, path)


def document_of(path: Path, text: bytes | None = None) -> dict[str, Any]:
    """The file's JSON object; empty for other JSON, which holds no evidence."""
    try:
        content = read_bytes(path) if text is None else text
        document = json_reader.read(content, display_path(path), limits=_LIMITS)
    except InvalidJson as error:
        fix = "measure again, or remove the file"
        raise BadFile(error.what, error.why, fix, error.line) from error
    return document if isinstance(document, dict) else {}


def _common(document: dict[str, Any], file: str) -> dict[str, Any]:
    """The document with the fields that are named otherwise in Evidence and SpeedRun."""
    pair, engine = document.get("pair"), document.get("engine")
    fields = {**document, "file": file}
    if "pair" in document:
        fields["target"] = pair.partition("+")[0] if isinstance(pair, str) else pair
    if isinstance(engine, dict) and "version" in engine:
        fields["vllm"] = engine["version"]
    return fields


def validated(
    model: type[Model], fields: dict[str, Any], path: Path, number: int | None = None
) -> Model:
    """The fields as ``model``; else BadFile with pydantic's first error and the key of the file.

    ``number`` is that of the result that the fields describe.
    """
    try:
        values = {name: value for name, value in fields.items() if name in model.model_fields}
        return model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    first, *rest = detail["loc"]
    key = dotted((_KEYS.get(str(first), first), *rest))
    if number is not None and first in _OF_RESULT:
        key = f"results[{number}].{key}"
    if detail["type"] == "missing":
        raise _bad(path, key, "missing key", "add the key")
    raise _bad(path, key, f"is {json.dumps(detail['input'])[:60]}: {detail['msg'].lower()}")


def _bad(path: Path, key: str, message: str, fix: str = "") -> BadFile:
    return BadFile(display_path(path), message, fix, key=key)
