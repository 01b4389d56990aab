"""Whether a folder of this machine holds a complete model, before an engine starts on it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peagle_serve.config_numbers import FIX, wrong_value
from peagle_serve.contract import ADDITIONAL, InvalidEnvironment
from peagle_serve.json_reader import InvalidJson, Limits, read, read_regular
from peagle_serve.safetensors import (
    LARGEST_INDEX,
    DamagedFile,
    TensorInfo,
    first_names,
    index_name,
    other_weights,
    parse_index,
    read_header,
    weight_files,
)

CONFIGURATIONS = ("config.json", "params.json")
CONFIG_LIMITS = Limits(size=1_000_000, constants=True)
"""Of a model's configuration; transformers writes Infinity into that of some models."""
_COPY_AGAIN = "copy or upload it again"
_MOST_NAMED = 5


def is_folder_path(path: str) -> bool:
    """Whether ``path`` names a folder of this machine, not a model of the Hub."""
    return path.startswith(("/", "./", "../")) and not os.path.isfile(path)


def check_folder(
    variable: str, path: str, ml_root: str, needs_weights: bool, linked: bool = False
) -> None:
    """Raise InvalidEnvironment if ``path`` does not hold a complete model.

    ``variable`` names the folder in messages. Below ``ml_root``, whose content is not trusted, no
    link may lead out; with ``linked`` the folder itself may be a link, as on a developer's machine.
    """
    folder = Path(path)
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise InvalidEnvironment(f"{variable} is {path}, which does not exist",
                               _models_near(folder)) from None  # fmt: skip
    except OSError as error:
        raise InvalidEnvironment(
            f"{variable} is {path}, which cannot be read: {error.strerror}",
            "make the folder readable, or name another one",
        ) from None
    if not names:
        raise InvalidEnvironment(f"{variable} is {path}, which is empty", "upload the weights")
    if _is_inside(folder.absolute(), Path(ml_root).absolute()):
        _check_links(variable, folder, Path(ml_root), linked)
    if not has_any(folder, CONFIGURATIONS):
        raise InvalidEnvironment(
            f"{variable} is {path}, which has no config.json (it holds {first_names(names)})",
            _models_near(folder / "*"),
        )
    for name in CONFIGURATIONS:
        if name in names:
            problem = wrong_value(read_json(variable, folder / name))
            if problem:
                raise InvalidEnvironment(f"{variable}: {folder / name}: {problem}", FIX)
    if needs_weights:
        _check_weights(variable, folder, names)


def read_json(variable: str, file: Path) -> dict[str, Any]:
    """The object in a JSON file of the model. Raises InvalidEnvironment if there is none."""
    try:
        content = read_regular(file, CONFIG_LIMITS.size)
        if not content:
            raise InvalidEnvironment(f"{variable}: {file} is empty", _COPY_AGAIN)
        document = read(content, str(file), limits=CONFIG_LIMITS)
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise InvalidEnvironment(f"{variable}: {problem}", _fix_of(error)) from None
    except InvalidJson as error:
        raise InvalidEnvironment(f"{variable}: {error}", _COPY_AGAIN) from None
    if not isinstance(document, dict):
        raise InvalidEnvironment(f"{variable}: {file} is not a JSON object", _COPY_AGAIN)
    return document


def has_any(folder: Path, names: Iterable[str]) -> bool:
    return any(os.path.isfile(folder / name) for name in names)


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def read_tensors(variable: str, folder: Path) -> dict[str, TensorInfo]:
    """The tensors in the files that vLLM loads of ``folder``, which ``variable`` names; empty
    without safetensors files. Raises InvalidEnvironment if they are damaged or incomplete."""
    found: dict[str, TensorInfo] = {}
    with _reported(variable, folder):
        for name in _loaded(folder, names_in(folder)):
            found.update(read_header(folder / name))
    return found


def _loaded(folder: Path, names: list[str]) -> tuple[str, ...]:
    """The safetensors files that vLLM loads. Raises DamagedFile, OSError."""
    index = index_name(names)
    content = read_regular(folder / index, LARGEST_INDEX) if index in names else None
    return weight_files(names, None if content is None else parse_index(content, index))


def _check_weights(variable: str, folder: Path, names: list[str]) -> None:
    with _reported(variable, folder):
        tensors = _loaded(folder, names)
        others = other_weights(names)
        if not tensors and others:
            raise InvalidEnvironment(
                f"{variable} is {folder}, whose weights are not safetensors: {first_names(others)}",
                "convert them: other formats may run code when they are loaded",
            )
        if not tensors:
            raise InvalidEnvironment(
                f"{variable} is {folder}, which has no weights (it holds {first_names(names)})",
                "upload the *.safetensors files too",
            )
        for name in tensors:
            read_header(folder / name)


@contextlib.contextmanager
def _reported(variable: str, folder: Path) -> Iterator[None]:
    """Raise InvalidEnvironment for a file in ``folder`` that is damaged or cannot be read."""
    try:
        yield
    except DamagedFile as error:
        raise InvalidEnvironment(f"{variable} is {folder}: {error.message}", error.fix) from None
    except OSError as error:
        raise InvalidEnvironment(f"{variable} is {folder}: {error}", _fix_of(error)) from None


def _fix_of(error: OSError) -> str:
    is_closed = isinstance(error, PermissionError)
    return "let the container's user read it" if is_closed else _COPY_AGAIN


def link_homes(folder: Path) -> tuple[Path, ...]:
    """Where links in a model's folder may lead: the folder itself and, for a snapshot of the Hub's
    cache, the ``blobs`` folder next to the snapshots."""
    home = folder.resolve()
    return (home, home.parents[1] / "blobs") if home.parent.name == "snapshots" else (home,)


def follow_link(path: Path, homes: Sequence[Path]) -> Path:
    """The file or folder that ``path`` is or leads to.

    Raises DamagedFile for a link that leads out of ``homes``, and for a broken one.
    """
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    if not any(_is_inside(real, home) for home in homes):
        raise DamagedFile(f"{path} is a symbolic link out of its folder, to {real}",
                          "replace the link by a copy of the file")  # fmt: skip
    if not os.path.exists(real):
        raise DamagedFile(f"{path} is a broken link", "copy the file there, or remove the link")
    return real


def _check_links(variable: str, folder: Path, ml_root: Path, linked: bool) -> None:
    """Neither a folder below ``ml_root`` nor anything in it may be a link to another place."""
    mounted = folder.absolute().relative_to(ml_root.absolute()).parts
    mount = ml_root.joinpath(*mounted[: 2 if mounted[:1] == (ADDITIONAL,) else 1])
    homes = [Path(os.path.realpath(path)) for path in (ml_root, mount)]
    homes += link_homes(folder) if linked else ()
    try:
        for entry in (folder, *_links_in(folder)):
            follow_link(entry, homes)
    except DamagedFile as error:
        raise InvalidEnvironment(f"{variable}: {error.message}", error.fix) from None


def _links_in(folder: Path) -> Iterator[Path]:
    """All links below the folder; none is followed."""
    for parent, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            entry = Path(parent, name)
            if entry.is_symlink():
                yield entry


def _is_inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _models_near(missing: Path) -> str:
    """The fix, with the folders nearby that hold a model."""
    bases = (missing.parent, missing.parent.parent)
    near = {base / name for base in bases for name in names_in(base)}
    models = sorted(str(path) for path in near if has_any(path, CONFIGURATIONS))
    found = ", ".join(models[:_MOST_NAMED])
    return f"there is a model in {found}" if models else "mount or upload the weights there"
