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

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from peagle.catalog.documents import BadFile, display_path, dotted, evidence_files, read_bytes
from peagle.catalog.schema import EngineStart, Measurement, SpeedRun, StartsFile

Measured = TypeVar("Measured", bound=Measurement)


def read_run(path: Path, text: bytes | None = None, is_own: bool = False) -> SpeedRun | None:
    """The run in one file, ``None`` if it has neither speeds nor results; ``text`` is its content,
    if known already. ``is_own`` is whether the file is in the user's catalogue.

    Raises BadFile, with the key, if a key is missing or invalid.
    """
    run = _read(SpeedRun, path, text, ("speeds", "results"))
    if run is None or not (run.speeds or run.on_text):
        return None
    return run.model_copy(update={"file": path.name, "is_own": is_own})


def best_first(runs: Iterable[SpeedRun]) -> tuple[SpeedRun, ...]:
    """The runs in the order in which they answer: trained heads before imposed acceptance, then
    those of the user's catalogue, then the newest."""
    return tuple(
        sorted(runs, key=lambda run: (run.synthetic, not run.is_own, -run.date.toordinal()))
    )


class Speeds(Mapping[str, tuple[SpeedRun, ...]]):
    """Runs by the target's id, in the order in which they answer. Only files that mention a target
    are parsed for it, at its first use, which raises CatalogError for a wrong file."""

    def __init__(self, user_folder: Path | None) -> None:
        self._user_folder = user_folder
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
        return iter(dict.fromkeys(run.target for run in self._runs("")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _texts(self) -> dict[Path, bytes]:
        return _files_with(rb'"(?:speeds|results)"', self._user_folder)

    def _runs(self, name: str) -> Iterator[SpeedRun]:
        """The runs of all files that mention this name."""
        for path, text in self._texts.items():
            is_own = self._user_folder is not None and path.is_relative_to(self._user_folder)
            if name.encode() in text and (run := _run(path, text, is_own)):
                yield run


# A process that loads the catalogue again parses only what has changed.
_run = lru_cache(maxsize=64)(read_run)


def read_starts(path: Path, text: bytes | None = None) -> tuple[EngineStart, ...]:
    """The starts in one file, none if it has no runs with starts; ``text`` is its content, if known
    already. Raises BadFile, with the key, if a key is missing or invalid."""
    file = _read(StartsFile, path, text, ("runs",))
    if file is None:
        return ()
    update = {"device": file.device, "vllm": file.vllm, "file": path.name}
    return tuple(
        start.model_copy(update=update) for run in file.runs.values() for start in run.starts
    )


def load_starts(user_folder: Path | None) -> tuple[EngineStart, ...]:
    """All measured starts. Raises CatalogError for a wrong file."""
    files = _files_with(rb'"green_seconds"', user_folder)
    return tuple(start for path, text in files.items() for start in read_starts(path, text))


def _files_with(pattern: bytes, user_folder: Path | None) -> dict[Path, bytes]:
    """The files of evidence in which ``pattern`` occurs, with their content."""
    texts = ((path, read_bytes(path)) for path in evidence_files(user_folder))
    return {path: text for path, text in texts if re.search(pattern, text)}


def _read(
    model: type[Measured], path: Path, text: bytes | None, keys: tuple[str, ...]
) -> Measured | None:
    """The file as ``model``; ``None`` for an invalid one without any of ``keys``, which holds
    something else. Else BadFile with pydantic's first error and the key."""
    text = read_bytes(path) if text is None else text
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    shown = display_path(path)
    if detail["type"] == "json_invalid":
        raise BadFile(
            shown, f"is not valid JSON: {detail['msg']}", "measure again, or remove the file"
        )
    document = from_json(text)
    if not isinstance(document, dict) or not any(map(document.get, keys)):
        return None
    key = dotted(detail["loc"])
    if detail["type"] == "missing" or detail["input"] is None:
        raise BadFile(shown, "missing key", "add the key", key=key)
    if detail["type"] == "value_error":  # a rule over several keys
        raise BadFile(shown, str(detail["ctx"]["error"]), "correct the row", key=key)
    message = f"is {json.dumps(detail['input'])[:60]}: {detail['msg'].lower()}"
    raise BadFile(shown, message, key=key)
