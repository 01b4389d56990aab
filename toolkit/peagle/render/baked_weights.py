"""Weights in an image: what is copied or downloaded while it is built, and where it lies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

BAKED_ROOT = "/opt/peagle/ml"
"""Where baked weights lie. ``/opt/ml`` itself is SageMaker's to mount over."""

_HUB = f"{BAKED_ROOT}/hub"

ENVIRONMENT = {"PEAGLE_ML_ROOT": BAKED_ROOT, "HF_HUB_CACHE": _HUB, "HF_HUB_OFFLINE": "1"}
"""With it the engine finds them."""

_DOWNLOAD = """\
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from huggingface_hub import hf_hub_download
repo, commit, name, cache, *files = sys.argv[1:]
def fetched(file):
    return hf_hub_download(repo, file, revision=commit, cache_dir=cache)
with ThreadPoolExecutor(8) as workers:
    paths = list(workers.map(fetched, files))
ref = Path(paths[0]).parents[2] / "refs" / name
ref.parent.mkdir(parents=True, exist_ok=True)
ref.write_text(commit)
"""
"""Brings these files of one commit into the hub's cache; offline, ``name`` then leads to it. File
by file: of a whole snapshot the hub's library keeps the list, and misses what was left out."""


@dataclass(frozen=True)
class Download:
    """Weights that are fetched from the hub while an image is built: these ``files`` of ``commit``.
    The engine will ask for them as ``name``: a branch, a tag or that commit."""

    repo: str
    name: str
    commit: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Copied:
    """Weights that are copied into an image: these ``files`` of a ``folder`` of this machine, as
    the folder ``path`` of the build context. ``digest`` is that of their contents."""

    path: str
    folder: str
    files: tuple[str, ...]
    digest: str


Baked = Download | Copied


def instructions(weights: Sequence[Baked]) -> str:
    """The Dockerfile's lines that bring them in; empty without weights."""
    if not weights:
        return ""
    lines = ["", "# Weights of the plan, where other images have them mounted or download them."]
    if any(isinstance(one, Copied) for one in weights):
        lines.append(f"COPY weights {BAKED_ROOT}")
    for one in weights:
        if isinstance(one, Download):
            argv = ["python3", "-c", _DOWNLOAD, one.repo, one.commit, one.name, _HUB, *one.files]
            lines.append(f"RUN {json.dumps(argv)}")
    return "\n".join([*lines, ""])
