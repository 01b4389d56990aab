"""The files of a checkpoint: config.json, its weight files, and a folder of this machine with them.

The parsers of weight files are the container's (``peagle_serve.checkpoint``); they reject
everything that the safetensors library rejects. Without safetensors files vLLM loads ``*.bin`` or
else ``*.pt``, but not the files of a training. It also reads the config, the tokenizer, templates
and the code of custom models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from peagle.checkpoints.models import Tensor
from peagle.errors import CheckpointError, DamagedCheckpoint, NotAFolder, UserError
from peagle_serve import checkpoint as parser
from peagle_serve import json_reader
from peagle_serve.checkpoint import CONFIG_LIMITS, FIX, LARGEST_INDEX, index_name, wrong_value
from peagle_serve.json_reader import InvalidJson

CONFIG = "config.json"

LONGEST_CONFIG = CONFIG_LIMITS.size
"""Bytes; a typical file has a few thousand."""


def parse_config(content: bytes) -> dict[str, Any]:
    """The object in config.json. Raises DamagedCheckpoint for other content and invalid numbers.

    Infinity and NaN are rejected in numbers that planning reads. Other keys of valid configs have
    them, and transformers reads them.
    """
    if not content.strip():
        raise DamagedCheckpoint(f"{CONFIG} is empty", "copy it again", code="config-damaged")
    try:
        document = json_reader.read(content, CONFIG, limits=CONFIG_LIMITS)
    except InvalidJson as error:
        raise DamagedCheckpoint(
            str(error), "copy it again" if error.is_syntax else FIX, code="config-damaged"
        ) from error
    if not isinstance(document, dict):
        raise DamagedCheckpoint(
            f"{CONFIG} is not a JSON object", "copy it again", code="config-damaged"
        )
    problem = wrong_value(document)
    if problem:
        raise DamagedCheckpoint(f"{CONFIG}: {problem}", FIX, code="config-damaged")
    return document


_WEIGHTS_DAMAGED = "weights-damaged"
"""A weights file or its index is truncated, contradicts itself, or names files that are missing.

Fix: copy the weights again
"""


@contextmanager
def _as_damaged_checkpoint() -> Iterator[None]:
    """Raise DamagedCheckpoint where the container's parsers raise DamagedFile."""
    try:
        yield
    except parser.DamagedFile as error:
        raise DamagedCheckpoint(error.message, error.fix, code=_WEIGHTS_DAMAGED) from error


parse_index = _as_damaged_checkpoint()(parser.parse_index)
"""The file of each tensor, from the content of an index and its name.

Raises DamagedCheckpoint for a damaged index, and for one that names files of other folders."""

weight_files = _as_damaged_checkpoint()(parser.weight_files)
"""The safetensors files that vLLM loads, from the names that exist and the parsed index, if any.

Raises DamagedCheckpoint when one is missing that the index names or, without an index, one of a
numbered set."""


def header_bytes(start: bytes, file_size: int, file: str) -> int:
    """The bytes that the header takes, including the 8 bytes of its length.

    ``start`` is the beginning of the file, 8 bytes or more. Raises DamagedCheckpoint when the file
    cannot hold such a header, or the header is too large.
    """
    with _as_damaged_checkpoint():
        return parser.header_bytes(start, file_size, file)


def parse_header(head: bytes, file_size: int, file: str) -> dict[str, Tensor]:
    """The tensors of the file named ``file``, in the order of their bytes.

    ``head`` is its first ``header_bytes()`` bytes or more. Raises DamagedCheckpoint when the file
    is cut short, is not a safetensors file, or its header contradicts itself.
    """
    with _as_damaged_checkpoint():
        tensors = parser.parse_header(head, file_size, file)
    return {
        name: Tensor(tensor.dtype, tensor.shape, tensor.size, file)
        for name, tensor in tensors.items()
    }


def check_tensors(index: Mapping[str, str], tensors: Iterable[str], file: str) -> None:
    """Raise DamagedCheckpoint when the index called ``file`` names tensors that no file holds."""
    missing = sorted(set(index).difference(tensors))
    if missing:
        count = f"{len(missing):,} tensor{'s' if len(missing) > 1 else ''}"
        message = f"{file} names {count} that no file holds: {parser.first_names(missing)}"
        raise DamagedCheckpoint(message, "copy index and weights again", code="weights-incomplete")


_SMALL_FILES = (".jinja", ".json", ".model", ".py", ".tiktoken", ".txt")
_OF_TRAINING = frozenset({
    "all_results.json", "dtypes.json", "eval_results.json", "train_results.json",
    "trainer_state.json",
})  # fmt: skip
_CONFIGS = {"config.json", "params.json"}


def files_read(
    location: str, sizes: Mapping[str, int], read: Callable[[str], bytes]
) -> tuple[str, ...]:
    """The names of the files that vLLM reads, of those at ``location``; ``read`` returns a small
    one.

    Raises CheckpointError for an empty checkpoint, DamagedCheckpoint for an incomplete one.
    """
    names = [name for name in sizes if not name.startswith(".") and "/" not in name]
    if _CONFIGS.isdisjoint(names):
        fix = "specify the folder that holds the model itself, or copy it again if it is incomplete"
        raise CheckpointError(f"{location} has no config.json", fix, code="config-missing")
    index = index_name(names)
    try:
        if sizes.get(index, 0) > LARGEST_INDEX:
            raise DamagedCheckpoint(
                f"{index} has {sizes[index]:,} bytes", "copy it again", code="file-too-large"
            )
        shards = weight_files(names, parse_index(read(index), index) if index in names else None)
    except CheckpointError as error:
        raise type(error)(f"{location}: {error.message}", error.fix, error.code) from error
    if not shards and (others := parser.other_weights(names)):
        raise CheckpointError(
            f"{location} has weights in another format than safetensors: "
            f"{parser.first_names(others)}",
            "convert them: other formats may run code when they are loaded",
            "weights-not-safetensors",
        )
    if not shards:
        raise DamagedCheckpoint(
            f"{location} holds no weights",
            "copy the *.safetensors files too",
            code="weights-missing",
        )
    small = {name for name in names if _is_read(name) and not name.endswith(".index.json")}
    return tuple(sorted({*shards, *small, *{index}.intersection(names)}))


def _is_read(name: str) -> bool:
    return (
        name.endswith(_SMALL_FILES) and name not in _OF_TRAINING and not name.startswith("README")
    )


_LONGEST_HASHED = 100_000_000
"""Bytes. The largest tokenizers have 30 MB; hashing 100 takes a quarter of a second."""

_INDEX = ".safetensors.index.json"


class FolderSource:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        return str(self._folder)

    def names(self) -> dict[str, int]:
        """The files of the folder with their sizes in bytes, following links.

        Raises DamagedCheckpoint for weights or a config.json that are no readable file, as an
        aborted download leaves them, and CheckpointError without a folder.
        """
        if not self._folder.is_dir():
            if self._folder.is_file():
                raise NotAFolder(self._folder, (self._folder.parent / CONFIG).is_file())
            raise CheckpointError(
                f"there is no folder {self._folder.absolute()}",
                "use a folder with a config.json",
                "no-such-folder",
            )
        with _as_checkpoint_error(self._folder):
            return _regular_files(self._folder)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._folder / name
        with _as_checkpoint_error(path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def digests(self, name: str) -> Mapping[str, str]:
        """Digests of a file of at most 100 MB."""
        path = self._folder / name
        with _as_checkpoint_error(path):
            if path.stat().st_size > _LONGEST_HASHED:
                return {}
            content = path.read_bytes()
        return {
            "sha256": hashlib.sha256(content).hexdigest(),
            "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "git": hashlib.sha1(
                b"blob %d\0" % len(content) + content, usedforsecurity=False
            ).hexdigest(),
        }


def _regular_files(folder: Path) -> dict[str, int]:
    """The regular files; reading a pipe named model.safetensors would block."""
    sizes: dict[str, int] = {}
    problems: dict[str, str] = {}
    for path in folder.iterdir():
        try:
            status = path.stat()
        except FileNotFoundError:
            problems[path.name] = "is a broken link"
        except OSError as error:
            problems[path.name] = f"cannot be opened ({error.strerror})"
        else:
            if S_ISREG(status.st_mode):
                sizes[path.name] = status.st_size
            else:
                is_folder = S_ISDIR(status.st_mode)
                problems[path.name] = "is a folder" if is_folder else "is not a regular file"
    # Of weights that an index names, the error about the index lists all that are missing.
    indexed = any(name.endswith(_INDEX) for name in sizes)
    for name, problem in sorted(problems.items()):
        weights = name.endswith(".safetensors") and not name.startswith(".") and not indexed
        if weights or name == CONFIG:
            message = f"{folder}/{name} {problem}, so it cannot be read"
            raise DamagedCheckpoint(
                message,
                "copy it again; an aborted download may have left it",
                code="unreadable-file",
            )
    return sizes


@contextmanager
def _as_checkpoint_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise CheckpointError(
            f"{where} cannot be read: {error.strerror}",
            "check the file and its permissions",
            code="unreadable-file",
        ) from error


def follow_link(path: Path, homes: Sequence[Path]) -> Path:
    """The file or folder that ``path`` is or leads to.

    Raises UserError for a broken link, and for one that leads out of ``homes``
    (``peagle_serve.checkpoint.link_homes``).
    """
    try:
        return parser.follow_link(path, homes)
    except parser.DamagedFile as error:
        raise UserError(error.message, error.fix, _UNUSABLE_LINK) from error


_UNUSABLE_LINK = "unusable-link"
"""A symbolic link that leads out of the folder of a model, or nowhere.

Fix: replace the link by a copy of its file
"""


def check_links(folder: Path) -> None:
    """Raise UserError if a link at the folder's top level is broken or leads out of the folder: a
    copy would publish an unintended file, or miss one. An unreadable folder passes."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    homes = parser.link_homes(folder)
    for path in paths:
        follow_link(path, homes)
