"""The header of a safetensors file: which tensors it holds, in which shape, and how long it is.

Whether a folder of this machine holds a whole model, before an engine is started on it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from peagle_serve.settings import WrongEnvironment

_LARGEST_HEADER = 100_000_000
"""Bytes; safetensors' own limit."""


class DamagedFile(Exception):
    """A file that is not safetensors, or not all of one. The text says which."""


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """The shape of every tensor, by name. Reads the header only. Raises DamagedFile, OSError."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        begin = stream.read(8)
        length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else 0
        if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
            raise DamagedFile(_what_else(begin + stream.read(100), size))
        header = _parsed(stream.read(length))
    whole = 8 + length + max((int(one["data_offsets"][1]) for one in header.values()), default=0)
    if size < whole:
        raise DamagedFile(f"is cut short: {size:,} bytes of {whole:,}")
    return {name: [int(n) for n in one["shape"]] for name, one in header.items()}


def _parsed(header: bytes) -> dict[str, Any]:
    try:
        document = json.loads(header)
        document.pop("__metadata__", None)
        for tensor in document.values():
            if not (tensor["shape"] is not None and tensor["data_offsets"][1] >= 0):
                raise ValueError
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise DamagedFile("is no safetensors file: its header cannot be read") from None
    return dict(document)


def _what_else(begin: bytes, size: int) -> str:
    if not size:
        return "is empty"
    if begin.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the weights"
    return f"is no safetensors file, or cut short ({size:,} bytes)"


CONFIGURATIONS = ("config.json", "params.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_ADDITIONAL = "additional-model-data-sources"
"""Below ``/opt/ml`` SageMaker mounts every folder of this one for itself, and ``model``."""
_FETCH = "copy or upload it again"
_SHOWN = 5


def is_folder_path(path: str) -> bool:
    """Whether ``path`` names a place of this machine and not a model of the hub."""
    return path.startswith(("/", "./", "../")) and not os.path.isfile(path)


def check_folder(
    where: str, path: str, ml_root: str, needs_weights: bool, linked: bool = False
) -> None:
    """Raise WrongEnvironment if ``path`` does not hold all of a model.

    ``where`` is what named it. Below ``ml_root``, which others have filled, no link may lead out;
    but where ``linked`` is said the folder itself may be one: on a developer's machine it is.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise WrongEnvironment(
            f"{where} is {path}, and there is no such folder", _elsewhere(folder)
        )
    held = names_in(folder)
    if not held:
        raise WrongEnvironment(f"{where} is {path}, and that folder is empty", "upload the weights")
    if _inside(folder.absolute(), Path(ml_root).absolute()):
        _check_links(where, folder, Path(ml_root), linked)
    if not has_any(folder, CONFIGURATIONS):
        raise WrongEnvironment(
            f"{where} is {path}, which has no config.json (it holds {_some(held)})",
            _elsewhere(folder / "*"),
        )
    for name in CONFIGURATIONS:
        if name in held:
            read_json(where, folder / name)
    if needs_weights:
        _check_weights(where, folder, held)


def read_json(where: str, file: Path) -> dict[str, Any]:
    """The object that a file of the model holds. Raises WrongEnvironment if it holds none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        empty = file.is_file() and file.stat().st_size == 0
        problem = "it is empty" if empty else f"it cannot be read: {error}"
        raise WrongEnvironment(f"{where}: {file}: {problem}", _FETCH) from None
    if not isinstance(document, dict):
        raise WrongEnvironment(f"{where}: {file} is no JSON object", _FETCH)
    return document


def has_any(folder: Path, names: Iterable[str]) -> bool:
    """Whether one of the files is there."""
    return any((folder / name).is_file() for name in names)


def names_in(folder: Path) -> list[str]:
    """What the folder holds; nothing if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _check_weights(where: str, folder: Path, held: list[str]) -> None:
    weights = [name for name in held if name.endswith(_WEIGHTS)]
    if not weights and not any(name in held for name in _INDEXES):
        raise WrongEnvironment(
            f"{where} is {folder}, which has no weights (it holds {_some(held)})",
            "upload the *.safetensors files too",
        )
    _check_index(where, folder, held)
    for name in weights:
        try:
            if name.endswith(".safetensors"):
                tensor_shapes(folder / name)
            elif (folder / name).stat().st_size == 0:
                raise DamagedFile("is empty")
        except (DamagedFile, OSError) as error:
            raise WrongEnvironment(f"{where}: {folder / name} {error}", _FETCH) from None


def _check_index(where: str, folder: Path, held: list[str]) -> None:
    """All files that an index of shards names must be there."""
    for index in _INDEXES:
        if index not in held:
            continue
        of = read_json(where, folder / index).get("weight_map")
        named = sorted({str(name) for name in of.values()}) if isinstance(of, dict) else []
        missing = [name for name in named if name not in held]
        if missing:
            raise WrongEnvironment(
                f"{where} is {folder}, which lacks {len(missing)} of {len(named)} files of "
                f"weights that {index} names: {_some(missing)}",
                "copy or upload the rest",
            )


def _check_links(where: str, folder: Path, ml_root: Path, linked: bool) -> None:
    """Neither a folder that others filled nor anything in it may be a link to somewhere else."""
    homes = list(_homes(folder, ml_root, linked))
    for entry in (folder, *_links_in(folder)):
        leads_to = _real(entry)
        if not leads_to.exists():
            raise WrongEnvironment(f"{where}: {entry} is a link to nothing", _FETCH)
        if not any(_inside(leads_to, home) for home in homes):
            raise WrongEnvironment(
                f"{where}: {entry} is a link that leaves its folder, to {leads_to}",
                "put there what it leads to",
            )


def _homes(folder: Path, ml_root: Path, linked: bool) -> Iterator[Path]:
    """Where links may lead. What is mounted may be mounted by a link: those are not others'."""
    below = folder.absolute().relative_to(ml_root.absolute()).parts
    yield _real(ml_root)
    yield _real(ml_root.joinpath(*below[: 2 if below[:1] == (_ADDITIONAL,) else 1]))
    if linked:
        home = _real(folder)
        yield home
        # The hub's cache keeps contents in blobs/, and links to them in snapshots/REVISION/.
        yield from home.parents[1:2] if home.parent.name == "snapshots" else ()


def _links_in(folder: Path) -> Iterator[Path]:
    """All links below the folder; none is followed."""
    for place, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            entry = Path(place, name)
            if entry.is_symlink():
                yield entry


def _real(path: Path) -> Path:
    """Where it leads; itself where it leads round in a circle."""
    return Path(os.path.realpath(path))


def _inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _elsewhere(missing: Path) -> str:
    """Names the folders nearby that do hold a model."""
    near = {path for base in (missing.parent, missing.parent.parent) for path in base.glob("*")}
    models = sorted(str(path) for path in near if has_any(path, CONFIGURATIONS))
    return f"there is a model in {_some(models)}" if models else "mount or upload the weights there"


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
