"""Whether a folder of this machine holds a complete, undamaged model.

A safetensors file is 8 bytes with the length of the header, little-endian; the header, a JSON
object from tensor names to ``dtype``, ``shape`` and ``data_offsets``; and the bytes of the tensors,
which are never read here. What an interrupted copy leaves is refused here; a header that
contradicts itself in other ways is refused by the safetensors library, which loads it.

vLLM loads the safetensors files at the top level of a checkpoint
(``vllm/model_executor/model_loader/default_loader.py``, vLLM 0.28.0): ``consolidated*`` files if
there are any, else all, and of these only the ones that an index names. It ignores subfolders
such as ``original/`` and ``metal/``.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from peagle_serve.contract import InvalidEnvironment
from peagle_serve.json_reader import InvalidJson, open_regular, read, read_regular

LARGEST_HEADER = 10_000_000
"""Bytes. The library takes 100 million, for which Python needs seconds and a gigabyte; files of
50,000 tensors, more than known checkpoints have in one, need 7 million."""
LARGEST_INDEX = 32_000_000
"""Bytes. The largest indexes have about 20 million, that of GPT-OSS-120B has 60,000."""
CONFIG_LIMIT = 1_000_000
"""Bytes of a model's configuration."""

_LENGTH = struct.Struct("<Q")
_COPY_AGAIN = "copy or upload it again"
_COPY_INDEX = "copy the index again, or save the weights again"
_OTHER_FORMATS = (
    ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".h5", ".msgpack", ".tensors",
)  # fmt: skip
_CONSOLIDATED = "consolidated*.safetensors"


class DamagedFile(Exception):
    """A file that is damaged, incomplete, or of another kind. ``message`` names the file."""

    def __init__(self, message: str, fix: str = _COPY_AGAIN) -> None:
        self.message, self.fix = message, fix
        super().__init__(message)


class Tensor(NamedTuple):
    """A tensor of a header: ``dtype`` as it is written (``BF16``), ``size`` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int


def header_bytes(start: bytes, file_size: int, file: str) -> int:
    """The bytes that the header takes, including the 8 bytes of its length. ``start`` is the
    beginning of the file, 8 bytes or more. Raises DamagedFile when the file cannot hold such a
    header, or the header is larger than ``LARGEST_HEADER``."""
    if start.startswith(b"version https://git-lfs"):
        raise DamagedFile(f"{file} is a Git LFS pointer, not the weights", "run `git lfs pull`")
    length: int = _LENGTH.unpack_from(start.ljust(_LENGTH.size, b"\xff"))[0]
    if length > LARGEST_HEADER or _LENGTH.size + length > file_size:
        raise DamagedFile(
            f"{file} is truncated, or not a safetensors file: it has {file_size:,} bytes, "
            f"without a header of at most {LARGEST_HEADER:,}"
        )
    return _LENGTH.size + length


def parse_header(head: bytes, file_size: int, file: str) -> dict[str, Tensor]:
    """The tensors of the file named ``file``, in the order of their bytes. ``head`` is its first
    ``header_bytes()`` bytes or more. Raises DamagedFile when the file is cut short or is not a
    safetensors file."""
    size = header_bytes(head, file_size, file)
    try:
        document = read(head[_LENGTH.size : size], "its header", limit=LARGEST_HEADER)
    except InvalidJson as error:
        raise DamagedFile(f"{file} is damaged, or not a safetensors file: {error}") from None
    if not isinstance(document, dict):
        raise DamagedFile(f"{file} is not a safetensors file: its header is not a JSON object")
    document.pop("__metadata__", None)
    tensors: list[tuple[int, int, str, Tensor]] = []
    for name, entry in document.items():
        fields: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not (
            isinstance(dtype, str)
            and _are_counts(shape)
            and _are_counts(offsets)
            and len(offsets) == 2
            and offsets[0] <= offsets[1]
        ):
            raise DamagedFile(f"{file} is damaged: its header does not describe {_shown(name)}")
        begin, end = offsets
        tensors.append((begin, end, name, Tensor(dtype, tuple(shape), end - begin)))
    end = size + max((end for _, end, _, _ in tensors), default=0)
    if end != file_size:
        problem = "truncated" if end > file_size else "damaged"
        raise DamagedFile(
            f"{file} is {problem}: it has {file_size:,} bytes, and its tensors end at {end:,}"
        )
    return {name: tensor for _, _, name, tensor in sorted(tensors)}


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**64 for n in value)


def _shown(value: Any) -> str:
    """A value of the file for a message: short and printable."""
    return ascii(value)[:80]


def index_name(names: Iterable[str]) -> str:
    """The file name that the index of these files has, if there is one."""
    is_consolidated = any(fnmatchcase(name, _CONSOLIDATED) for name in names)
    return f"{'consolidated' if is_consolidated else 'model'}.safetensors.index.json"


def parse_index(content: bytes, file: str) -> dict[str, str]:
    """The file of each tensor, by tensor name. Raises DamagedFile when the index named ``file`` is
    damaged, or names files of other folders."""
    try:
        document: Any = read(content, file, limit=LARGEST_INDEX)
    except InvalidJson as error:
        raise DamagedFile(str(error), _COPY_INDEX) from None
    files = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(files, dict) or not files:
        raise DamagedFile(f"{file} has no weight_map, so vLLM loads nothing", _COPY_INDEX)
    for tensor, name in files.items():
        if not isinstance(name, str) or not name:
            raise DamagedFile(f"{file} names no file for {_shown(tensor)}", _COPY_INDEX)
    for name in sorted(set(files.values())):
        if "/" in name or "\\" in name or name in (".", ".."):
            raise DamagedFile(
                f"{file} names {_shown(name)}, which is not in the same folder",
                "correct the index: vLLM loads weights of the same folder only",
            )
    return files


def weight_files(names: Iterable[str], index: Mapping[str, str] | None) -> tuple[str, ...]:
    """The safetensors files that vLLM loads, of the files ``names``, sorted. Raises DamagedFile
    when a file is missing that the index names."""
    names = tuple(names)
    kind = index_name(names)
    pattern = _CONSOLIDATED if kind.startswith("consolidated") else "*.safetensors"
    # vLLM uses glob, which skips hidden files such as the ._model.safetensors of macOS.
    files = sorted(n for n in names if fnmatchcase(n, pattern) and not n.startswith("."))
    if index is None:
        return tuple(files)
    named = set(index.values())
    if missing := sorted(named.difference(files)):
        raise DamagedFile(
            f"{first_names(missing)}: missing",
            "copy the missing files too; a folder or a broken link does not count",
        )
    return tuple(name for name in files if name in named)


def other_weights(names: Iterable[str]) -> tuple[str, ...]:
    """Files that look like weights in another format than safetensors."""
    return tuple(sorted(name for name in names if name.endswith(_OTHER_FORMATS)))


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first names for a message, printable, and the number of the others."""
    shown = ", ".join(ascii(name)[1:-1][:80] for name in names[:most])
    return f"{shown}, and {len(names) - most} more" if len(names) > most else shown


MOST_LAYERS = 1_000
"""The deepest known models have about 200 layers. Rules and readers make a list of the layers, so
a damaged or hostile number must not reach them."""
_LAYER_COUNTS = frozenset({
    "num_aux_hidden_states", "num_hidden_layers", "num_kv_shared_layers",
    "num_nextn_predict_layers",
})  # fmt: skip


def largest_value(key: str) -> int:
    """The largest number that a config.json may have under this key."""
    return MOST_LAYERS if key in _LAYER_COUNTS else 2**31 - 1


CONFIGURATIONS = ("config.json", "params.json")


def is_folder_path(path: str) -> bool:
    """Whether ``path`` names a folder of this machine, not a model of the Hub."""
    return path.startswith(("/", "./", "../")) and not os.path.isfile(path)


def check_folder(variable: str, path: str, needs_weights: bool) -> None:
    """Raise InvalidEnvironment if ``path`` does not hold a complete model. ``variable`` names the
    folder in messages."""
    folder, here = Path(path), f"{variable} is {path}, which"
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidEnvironment(
            f"{here} cannot be read: {why}", "mount or upload the weights there, readable for all"
        ) from None
    if not has_any(folder, CONFIGURATIONS):
        raise InvalidEnvironment(
            f"{here} has no config.json (it holds {first_names(names) or 'nothing'})",
            "name the folder that holds the model itself",
        )
    for name in CONFIGURATIONS:
        if name in names:
            read_json(variable, folder / name)
    if needs_weights and not read_tensors(variable, folder):
        others = first_names(other_weights(names))
        raise InvalidEnvironment(
            f"{here} has no safetensors files (it holds {others or first_names(names)})",
            "upload the *.safetensors files; other formats may run code when they are loaded",
        )


def read_json(variable: str, file: Path) -> dict[str, Any]:
    """The object in a JSON file of the model. Raises InvalidEnvironment if there is none."""
    try:
        document = read(read_regular(file, CONFIG_LIMIT), str(file), CONFIG_LIMIT, constants=True)
    except OSError as error:
        message = f"{variable}: {file} cannot be read: {error.strerror}"
        raise InvalidEnvironment(message, _COPY_AGAIN) from None
    except InvalidJson as error:
        raise InvalidEnvironment(f"{variable}: {error}", _COPY_AGAIN) from None
    if not isinstance(document, dict):
        raise InvalidEnvironment(f"{variable}: {file} is not a JSON object", _COPY_AGAIN)
    return document


def read_tensors(variable: str, folder: Path) -> dict[str, Tensor]:
    """The tensors in the files that vLLM loads of ``folder``, which ``variable`` names; empty
    without safetensors files. Raises InvalidEnvironment if they are damaged or incomplete."""
    names = names_in(folder)
    index = index_name(names)
    tensors: dict[str, Tensor] = {}
    try:
        content = read_regular(folder / index, LARGEST_INDEX) if index in names else None
        parsed = None if content is None else parse_index(content, index)
        for name in weight_files(names, parsed):
            with open_regular(folder / name) as stream:
                size = os.fstat(stream.fileno()).st_size
                head = stream.read(64)
                head += stream.read(max(0, header_bytes(head, size, name) - len(head)))
            tensors.update(parse_header(head, size, name))
    except DamagedFile as error:
        raise InvalidEnvironment(f"{variable} is {folder}: {error.message}", error.fix) from None
    except OSError as error:
        raise InvalidEnvironment(f"{variable} is {folder}: {error}", _COPY_AGAIN) from None
    return tensors


def has_any(folder: Path, names: Iterable[str]) -> bool:
    """Whether the folder has a file of one of these names."""
    return any(os.path.isfile(folder / name) for name in names)


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return sorted(os.listdir(folder))
    return []
