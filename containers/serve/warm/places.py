"""Where artefacts lie, and where what they hold is put."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve.model import MODEL_FOLDER, WARM_FOLDER, ml_root, real_path

FOLDER_VARIABLE = "PEAGLE_WARM_FOLDER"
CACHE_VARIABLE = "PEAGLE_CACHE"


def artefact_folder(environment: Mapping[str, str]) -> Path:
    """The folder of artefacts: beside the weights, unless the user says where."""
    named = environment.get(FOLDER_VARIABLE) or f"{MODEL_FOLDER}/{WARM_FOLDER}"
    return Path(real_path(named, ml_root(environment)))


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
