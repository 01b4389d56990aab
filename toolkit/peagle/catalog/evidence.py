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

A file with ``runs`` holds measured starts of the container (`measurements/gpu/warm.py`):

    {"device": "NVIDIA H200", "engine": {"version": "0.26.0"},
     "runs": {"first": {"starts": [{"pair": "gpt-oss-20b", "kind": "cold",
                                    "green_seconds": 296.61}]}}}

``green_seconds`` are from the start of the entrypoint until ``/ping`` answers 200, which needs a
draft. Weights are dummies, which the engine makes itself.

Further keys are ignored, as are files with none of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from peagle.catalog.documents import (
    LARGEST_EVIDENCE,
    BadFile,
    catalog_error,
    display_path,
    dotted,
    evidence_files,
    read_bytes,
)
from peagle.catalog.schema import NO_GPU, Drafter, EngineStart, Measurement, SpeedRun, Target
from peagle.catalog.tables import Positive, Version
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson, Limits

Model = TypeVar("Model", bound=BaseModel)

ENGINE = "vllm"
"""The only engine whose results can be evidence."""
_KEYS = {
    "target": "pair",
    "vllm": "engine.version",
    "on_text": "results",
    "seconds": "green_seconds",
}
"""Field of SpeedRun -> key of the file."""
_LIMITS = Limits(size=LARGEST_EVIDENCE)


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


def read_evidence(path: Path) -> list[Evidence]:
    """The evidence in one file. Raises BadFile, with the key, if one is missing or invalid."""
    run = read_run(path)
    if run is None or run.speeds:
        return []
    return [
        Evidence(
            target=run.target,
            vllm=run.vllm,
            device=run.device,
            date=str(run.date),
            file=display_path(path),
            **row.model_dump(),
        )
        for row in run.on_text
    ]


def read_run(path: Path, text: bytes | None = None, is_own: bool = False) -> SpeedRun | None:
    """The run in one file, ``None`` if it has neither speeds nor results; ``text`` is its content,
    if known already. ``is_own`` is whether the file is in the user's catalogue.

    Raises BadFile, with the key, if a key is missing or invalid.
    """
    document = _document(path, text)
    results = document.get("results")
    if "speeds" not in document and not results:
        return None
    engine, pair = document.get("engine"), document.get("pair")
    fields = {**document, "file": path.name, "own": is_own}
    if isinstance(engine, dict):
        if engine.get("name", ENGINE) != ENGINE:
            message = f"is {json.dumps(engine['name'])[:60]}, and plans are for {ENGINE}"
            raise _bad(path, "engine.name", message, "remove the file")
        fields["vllm"] = engine.get("version")
    fields["target"] = pair.partition("+")[0] if isinstance(pair, str) else pair
    if "speeds" not in document:
        no_speeds = {"gpu": NO_GPU, "tensor_parallel_size": 1, "synthetic": False, "speeds": []}
        fields |= {"on_text": results, **no_speeds}
    run = _validated(SpeedRun, fields, path)
    if "speeds" in document and not run.speeds:
        raise _bad(path, "speeds", "is empty", "remove the file, or add the measured speeds")
    seen = set()
    for number, row in enumerate(run.speeds):
        load = (row.drafter, row.k, row.concurrency, row.prompt_tokens, row.output_tokens)
        problem = ""
        if (row.drafter is None) != (row.k == 0):
            problem = f"drafter {json.dumps(row.drafter)} with k {row.k}"
        elif row.acceptance_length and row.acceptance_length > row.k + 1:
            problem = f"acceptance_length {row.acceptance_length} with k {row.k}"
        elif load in seen:
            problem = f"duplicate row: k {row.k} with concurrency {row.concurrency}"
        if problem:
            raise _bad(path, f"speeds[{number}]", problem, "correct the row")
        seen.add(load)
    return run


def best_first(runs: Iterable[SpeedRun]) -> tuple[SpeedRun, ...]:
    """The runs in the order in which they answer: trained heads before imposed acceptance, then
    those of the user's catalogue, then the newest."""
    return tuple(sorted(runs, key=lambda run: (run.synthetic, not run.own, -run.date.toordinal())))


class Speeds(Mapping[str, tuple[SpeedRun, ...]]):
    """Runs by the target's id, in the order in which they answer; each is read at first use, which
    raises CatalogError for a wrong file.

    The content of files with runs is loaded at the first use of any target; only files that mention
    a target are parsed for it.
    """

    def __init__(self, user_folder: Path | None) -> None:
        self._user_folder = user_folder
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
                if mentioned.encode() in text and (run := _run(path, text, is_own)):
                    yield run
        except BadFile as bad:
            raise catalog_error([bad.problem]) from bad


_HAS_RUN = re.compile(rb'"(?:speeds|results)"').search
# A process that loads the catalogue again parses only what has changed.
_run = lru_cache(maxsize=64)(read_run)


def read_starts(path: Path, text: bytes | None = None) -> tuple[EngineStart, ...]:
    """The starts in one file, none if it has no runs with starts; ``text`` is its content, if known
    already. Raises BadFile, with the key, if a key is missing or invalid."""
    document = _document(path, text)
    runs, engine = document.get("runs"), document.get("engine")
    common = {
        "device": document.get("device"),
        "vllm": engine.get("version") if isinstance(engine, dict) else None,
        "file": path.name,
    }
    starts = [
        start
        for run in (runs.values() if isinstance(runs, dict) else ())
        if isinstance(run, dict)
        for start in run.get("starts") or ()
    ]
    return tuple(
        _validated(
            EngineStart,
            {**common, **start, "target": start.get("pair"), "seconds": start.get("green_seconds")},
            path,
        )
        for start in starts
        if isinstance(start, dict)
    )


def load_starts(user_folder: Path | None) -> tuple[EngineStart, ...]:
    """All measured starts. Raises CatalogError for a wrong file."""
    starts: list[EngineStart] = []
    try:
        for path in evidence_files(user_folder):
            if b'"green_seconds"' in (text := read_bytes(path)):
                starts += read_starts(path, text)
    except BadFile as bad:
        raise catalog_error([bad.problem]) from bad
    return tuple(starts)


def _document(path: Path, text: bytes | None) -> dict[str, Any]:
    """The file's JSON object; empty for other JSON, which holds no evidence."""
    try:
        content = read_bytes(path) if text is None else text
        document = json_reader.read(content, display_path(path), limits=_LIMITS)
    except InvalidJson as error:
        fix = "measure again, or remove the file"
        raise BadFile(error.what, error.why, fix, error.line) from error
    return document if isinstance(document, dict) else {}


def _validated(model: type[Model], fields: dict[str, Any], path: Path) -> Model:
    """The fields as ``model``; else BadFile with pydantic's first error and the key of the file."""
    try:
        values = {name: value for name, value in fields.items() if name in model.model_fields}
        return model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    first, *rest = detail["loc"]
    key = dotted((_KEYS.get(str(first), first), *rest))
    if detail["type"] == "missing" or detail["input"] is None:
        raise _bad(path, key, "missing key", "add the key")
    raise _bad(path, key, f"is {json.dumps(detail['input'])[:60]}: {detail['msg'].lower()}")


def _bad(path: Path, key: str, message: str, fix: str = "") -> BadFile:
    return BadFile(display_path(path), message, fix, key=key)
