"""The files of a checkpoint that vLLM reads, and a folder of this machine with them.

The parsers of weight files are the container's (``peagle_serve.checkpoint``). Without safetensors
files vLLM loads ``*.bin`` or else ``*.pt``, but not the files of a training. It also reads the
config, the tokenizer, templates and the code of custom models.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle import store
from peagle.checkpoints.models import Source
from peagle.errors import CheckpointError, DamagedCheckpoint, UserError
from peagle.text import json_object
from peagle_serve import checkpoint as parser
from peagle_serve import json_reader
from peagle_serve.checkpoint import CONFIG_LIMIT, LARGEST_INDEX, index_name
from peagle_serve.contract import VOCABULARY_FILE, VOCABULARY_VARIABLE
from peagle_serve.json_reader import InvalidJson

CONFIG = "config.json"
LONGEST_CONFIG = CONFIG_LIMIT
"""Bytes; a typical file has a few thousand."""


@contextmanager
def located(location: str) -> Iterator[None]:
    """Raise DamagedCheckpoint, with the location, where the container's parsers raise DamagedFile.
    Prefix the message of a CheckpointError with it too."""
    try:
        yield
    except parser.DamagedFile as error:
        message = f"{location}/{error.message}"
        raise DamagedCheckpoint(message, error.fix, code=_WEIGHTS_DAMAGED) from error
    except CheckpointError as error:
        raise type(error)(f"{location}/{error.message}", error.fix, error.code) from error


_FIX = "correct config.json, or copy it again"

_WEIGHTS_DAMAGED = "weights-damaged"
"""A weights file or its index is truncated, contradicts itself, or names files that are missing.

Fix: copy the weights again
"""


def parse_config(content: bytes) -> dict[str, Any]:
    """The object in config.json. Raises DamagedCheckpoint for other content. Infinity and NaN are
    accepted: valid configs have them, and transformers reads them."""
    try:
        document = json_reader.read(content, CONFIG, limit=CONFIG_LIMIT, constants=True)
    except InvalidJson as error:
        raise DamagedCheckpoint(str(error), _FIX, code="config-damaged") from error
    if not isinstance(document, dict):
        raise DamagedCheckpoint(f"{CONFIG} is not a JSON object", _FIX, code="config-damaged")
    if not isinstance(document.get("quantization_config") or {}, dict):
        message = f"{CONFIG}: quantization_config is not an object"
        raise DamagedCheckpoint(message, _FIX, code="config-damaged")
    return document


_SMALL_FILES = (".jinja", ".json", ".model", ".py", ".tiktoken", ".txt")
_OF_TRAINING = frozenset({
    "all_results.json", "dtypes.json", "eval_results.json", "train_results.json",
    "trainer_state.json",
})  # fmt: skip


def files_read(
    location: str, sizes: Mapping[str, int], read: Callable[[str], bytes]
) -> tuple[str, ...]:
    """The names of the files that vLLM reads, of those at ``location``; ``read`` returns a small
    one.

    Raises CheckpointError for an empty checkpoint, DamagedCheckpoint for an incomplete one.
    """
    names = [name for name in sizes if not name.startswith(".") and "/" not in name]
    if not {CONFIG, "params.json"} & {*names}:
        fix = "specify the folder that holds the model itself, or copy it again if it is incomplete"
        raise CheckpointError(f"{location} has no config.json", fix, code="config-missing")
    index = index_name(names)
    with located(location):
        if sizes.get(index, 0) > LARGEST_INDEX:
            raise DamagedCheckpoint(
                f"{index} has {sizes[index]:,} bytes", "copy it again", code="file-too-large"
            )
        parsed = parser.parse_index(read(index), index) if index in names else None
        shards = parser.weight_files(names, parsed)
    if not shards:
        if others := parser.other_weights(names):
            raise CheckpointError(
                f"{location} has weights in another format than safetensors: "
                f"{parser.first_names(others)}",
                "convert them: other formats may run code when they are loaded",
                "weights-not-safetensors",
            )
        raise DamagedCheckpoint(
            f"{location} holds no weights",
            "copy the *.safetensors files too",
            code="weights-missing",
        )
    small = {
        name
        for name in names
        if name.endswith(_SMALL_FILES)
        and name not in _OF_TRAINING
        and not name.startswith("README")
        and not name.endswith(".index.json")
    }
    return tuple(sorted({*shards, *small, *{index}.intersection(names)}))


class FolderSource:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        text = str(self._folder)  # without the ``./`` that tells a folder from a pair
        return text if "/" in text or text.startswith((".", "~")) else f"./{text}"

    def names(self) -> dict[str, int]:
        """The regular files of the folder with their sizes in bytes, following links: reading a
        pipe named model.safetensors would block. Raises CheckpointError without a folder."""
        if not self._folder.is_dir():
            if self._folder.is_file():
                is_inside = (self._folder.parent / CONFIG).is_file()
                fix = f"specify {self._folder.parent if is_inside else f'a folder with {CONFIG}'}"
                message = f"{self._folder} is a file, not a folder"
                raise CheckpointError(message, fix, code="not-a-folder")
            message = f"there is no folder {self._folder.absolute()}"
            raise CheckpointError(message, "use a folder with a config.json", "no-such-folder")
        with _as_checkpoint_error(self._folder):
            files = [path for path in self._folder.iterdir() if path.is_file()]
            return {path.name: path.stat().st_size for path in files}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._folder / name
        with _as_checkpoint_error(path), path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def digests(self, name: str) -> Mapping[str, str]:
        """None: they would have to be computed."""
        return {}


@contextmanager
def _as_checkpoint_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path} cannot be read: {error.strerror}",
            "check the file and its permissions",
            code="unreadable-file",
        ) from error


_UNUSABLE_LINK = "unusable-link"
"""A symbolic link that leads out of the folder of a model, or nowhere.

Fix: replace the link by a copy of its file
"""


def link_homes(folder: Path) -> tuple[Path, ...]:
    """Where links in a model's folder may lead: the folder itself and, for a snapshot of the Hub's
    cache, the ``blobs`` folder next to the snapshots."""
    home = folder.resolve()
    return (home, home.parents[1] / "blobs") if home.parent.name == "snapshots" else (home,)


def follow_link(path: Path, homes: Sequence[Path]) -> Path:
    """The file or folder that ``path`` is or leads to. Raises UserError for a broken link, and for
    one that leads out of ``homes``."""
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(home) for home in homes):
        message = f"{path} is a symbolic link out of its folder, to {real}"
        raise UserError(message, "replace the link by a copy of the file", _UNUSABLE_LINK)
    if not os.path.exists(real):
        fix = "copy the file there, or remove the link"
        raise UserError(f"{path} is a broken link", fix, _UNUSABLE_LINK)
    return real


def check_links(folder: Path) -> None:
    """Raise UserError if a link at the folder's top level is broken or leads out of the folder: a
    copy would publish an unintended file, or miss one. An unreadable folder passes."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    homes = link_homes(folder)
    for path in paths:
        follow_link(path, homes)


# The vocabulary that GPT-OSS needs next to its weights. openai_harmony, with which vLLM reads and
# writes its format, downloads it when the engine starts, unless TIKTOKEN_ENCODINGS_BASE names a
# folder that holds it, and accepts no other file than this one.
VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""As openai_harmony 0.0.8 checks it."""

_MODEL_TYPE = "gpt_oss"
"""``model_type`` in config.json with which vLLM uses the harmony format."""


def vocabulary_folder() -> Path:
    """Where a user puts the file, and where the toolkit keeps it."""
    return store.home() / "vocabulary"


def find_vocabulary() -> Path | None:
    """The vocabulary on this machine: where openai_harmony looks, or in ``vocabulary_folder``;
    ``None`` without one."""
    named = os.environ.get(VOCABULARY_VARIABLE)
    for folder in (*([Path(named)] if named else []), vocabulary_folder()):
        path = folder / VOCABULARY_FILE
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == VOCABULARY_SHA256:
            return path
    return None


def needs_vocabulary(source: Source) -> bool:
    """Whether the model at ``source`` uses the harmony format, by its config.json."""
    if CONFIG not in source.names():
        return False
    config = json_object(source.read(CONFIG, 0, LONGEST_CONFIG))
    return config.get("model_type") == _MODEL_TYPE


def with_vocabulary(source: Source) -> Source:
    """``source`` with the vocabulary, if its model needs it, lacks it, and this machine has it."""
    if VOCABULARY_FILE in source.names() or not needs_vocabulary(source):
        return source
    vocabulary = find_vocabulary()
    return _WithVocabulary(source, vocabulary) if vocabulary else source


@dataclass(frozen=True)
class _WithVocabulary:
    """A source with one more file, which is on this machine."""

    source: Source
    vocabulary: Path

    @property
    def location(self) -> str:
        return self.source.location

    def names(self) -> Mapping[str, int]:
        return {**self.source.names(), VOCABULARY_FILE: self.vocabulary.stat().st_size}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name != VOCABULARY_FILE:
            return self.source.read(name, start, length)
        end = None if length is None else start + length
        return self.vocabulary.read_bytes()[start:end]

    def digests(self, name: str) -> Mapping[str, str]:
        return (
            {"sha256": VOCABULARY_SHA256} if name == VOCABULARY_FILE else self.source.digests(name)
        )
