"""Where artefacts lie, and where what they hold is put."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from serve.model import MODEL_FOLDER, WARM_FOLDER, ml_root, real_path

FOLDER_VARIABLE = "PEAGLE_WARM_FOLDER"
CACHE_VARIABLE = "PEAGLE_CACHE"
LARGER_DISK = f"free some space there, or set {CACHE_VARIABLE} to a folder of a larger disk"


def artefact_folder(environment: Mapping[str, str]) -> Path:
    """The folder of artefacts: beside the weights, unless the user says where."""
    named = environment.get(FOLDER_VARIABLE) or f"{MODEL_FOLDER}/{WARM_FOLDER}"
    return Path(real_path(named, ml_root(environment)))


def has_artefact_folder(environment: Mapping[str, str]) -> bool:
    """Whether there is such a folder, as far as this process may see."""
    return os.path.isdir(artefact_folder(environment))


def is_folder_named(environment: Mapping[str, str]) -> bool:
    """Whether the user says where artefacts lie."""
    return bool(environment.get(FOLDER_VARIABLE))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder below which every key has one of its own."""
    named = environment.get(CACHE_VARIABLE)
    if not named:
        base = environment.get("XDG_CACHE_HOME")
        if not base:
            base = f"{environment.get('HOME') or '/tmp'}/.cache"
        named = f"{base}/peagle"
    return Path(named).absolute() / WARM_FOLDER


def archive_of(place: Path) -> Path:
    """Where what was collected in ``place``, a key's folder, is packed."""
    return place.with_name(f"{place.name}.collected.tar.gz")
