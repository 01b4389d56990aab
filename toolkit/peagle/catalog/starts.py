"""Measured starts of the container, from the JSON files under ``evidence/`` of the catalogue.

A file of `measurements/gpu/warm.py` has the starts of each of its runs:

    {"device": "NVIDIA H200", "engine": {"version": "0.26.0"},
     "runs": {"first": {"starts": [{"pair": "gpt-oss-20b", "kind": "cold",
                                    "green_seconds": 296.61}]}}}

``green_seconds`` are from the start of the entrypoint until ``/ping`` answers 200, which needs a
draft. ``kind`` is ``cold``, ``kept`` (with the caches of an earlier start) or ``restored`` (from an
archive of compiled code). Weights are dummies, which the engine makes itself: what reading them
takes is not in the numbers.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Literal

from pydantic import Field

from peagle.catalog.documents import BadFile, catalog_error, evidence_files, read_bytes
from peagle.catalog.evidence import document_of, validated
from peagle.catalog.schema import EngineStart, Measurement
from peagle.catalog.tables import Version

_KEY = b'"green_seconds"'


class _Start(Measurement):
    """One start; ``pair`` is the target's short name."""

    pair: str
    kind: Literal["cold", "kept", "restored"]
    green_seconds: float = Field(gt=0, allow_inf_nan=False)


class _Run(Measurement):
    """The starts of one step on one machine."""

    starts: tuple[_Start, ...] = ()


class _StartedEngine(Measurement):
    """The engine that started."""

    version: Version


class _StartFile(Measurement):
    """The keys that are read."""

    device: str
    engine: _StartedEngine
    runs: dict[str, _Run]


def read_starts(path: Path, text: bytes | None = None) -> tuple[EngineStart, ...]:
    """The starts in one file, none if it has no runs with starts; ``text`` is its content, if known
    already. Raises BadFile, with the key, if a key is missing or invalid."""
    document = document_of(path, text)
    runs = document.get("runs")
    if not isinstance(runs, dict):
        return ()
    if not any(isinstance(run, dict) and "starts" in run for run in runs.values()):
        return ()
    file = validated(_StartFile, document, path)
    return tuple(
        EngineStart(
            target=start.pair,
            kind=start.kind,
            seconds=start.green_seconds,
            device=file.device,
            vllm=file.engine.version,
            file=path.name,
        )
        for run in file.runs.values()
        for start in run.starts
    )


def load_starts(user_folder: Path | None) -> tuple[EngineStart, ...]:
    """All measured starts. Raises CatalogError for a wrong file."""
    try:
        texts = {path: read_bytes(path) for path in evidence_files(user_folder)}
        starts = (read_starts(path, text) for path, text in texts.items() if _KEY in text)
        return tuple(chain.from_iterable(starts))
    except BadFile as bad:
        raise catalog_error([bad.problem]) from bad
