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

Further keys are ignored, as are files with neither.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from peagle.catalog.documents import (
    BadFile,
    display_path,
    dotted,
    evidence_files,
    explain,
    read_bytes,
)
from peagle.catalog.schema import SpeedRun


def read_run(path: Path, text: bytes | None = None, is_own: bool = False) -> SpeedRun | None:
    """The run in one file, ``None`` if it has neither speeds nor results; ``text`` is its content,
    if known already. ``is_own`` is whether the file is in the user's catalogue.

    Raises BadFile, with the key, if a key is missing or invalid.
    """
    text = read_bytes(path) if text is None else text
    try:
        run = SpeedRun.model_validate_json(text)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        shown = display_path(path)
        if detail["type"] == "json_invalid":
            message = f"is not valid JSON: {detail['msg']}"
            raise BadFile(shown, message, "measure again, or remove the file") from None
        document = from_json(text)
        if not isinstance(document, dict) or not any(map(document.get, ("speeds", "results"))):
            return None
        message, fix = explain(detail, SpeedRun)
        raise BadFile(shown, message, fix, key=dotted(detail["loc"])) from None
    if not (run.speeds or run.on_text):
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
        texts = ((path, read_bytes(path)) for path in evidence_files(self._user_folder))
        return {path: text for path, text in texts if re.search(rb'"(?:speeds|results)"', text)}

    def _runs(self, name: str) -> Iterator[SpeedRun]:
        """The runs of all files that mention this name."""
        for path, text in self._texts.items():
            is_own = self._user_folder is not None and path.is_relative_to(self._user_folder)
            if name.encode() in text and (run := _run(path, text, is_own)):
                yield run


# A process that loads the catalogue again parses only what has changed.
_run = lru_cache(maxsize=64)(read_run)
