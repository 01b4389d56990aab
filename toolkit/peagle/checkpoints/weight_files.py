"""The weight files of a checkpoint: which ones vLLM reads, and headers and index of safetensors.

The parsers are the container's (``peagle_serve.safetensors``); they reject everything that the
safetensors library rejects. Without safetensors files vLLM loads ``*.bin`` or else ``*.pt``, but
not the files of a training. It also reads the config, the tokenizer, templates and the code of
custom models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

from peagle.checkpoints.models import Tensor
from peagle.errors import CheckpointError, DamagedCheckpoint
from peagle_serve import safetensors as parser
from peagle_serve.safetensors import LARGEST_INDEX, index_name

LONGEST_HEADER = 25_000_000
"""Bytes that the toolkit reads, since it may download them. A model of 120 billion parameters has
less than 1 MB; the library's limit is 100 MB."""


@contextmanager
def _as_damaged_checkpoint() -> Iterator[None]:
    """Raise DamagedCheckpoint where the container's parsers raise DamagedFile."""
    try:
        yield
    except parser.DamagedFile as error:
        raise DamagedCheckpoint(error.message, error.fix) from error


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
        return parser.header_bytes(start, file_size, file, LONGEST_HEADER)


def parse_header(head: bytes, file_size: int, file: str) -> dict[str, Tensor]:
    """The tensors of the file named ``file``, in the order of their bytes.

    ``head`` is its first ``header_bytes()`` bytes or more. Raises DamagedCheckpoint when the file
    is cut short, is not a safetensors file, or its header contradicts itself.
    """
    with _as_damaged_checkpoint():
        found = parser.parse_header(head, file_size, file, limit=LONGEST_HEADER)
    return {name: Tensor(one.dtype, one.shape, one.size, file) for name, one in found.items()}


def check_tensors(index: Mapping[str, str], tensors: Iterable[str], file: str) -> None:
    """Raise DamagedCheckpoint when the index called ``file`` names tensors that no file holds."""
    missing = sorted(set(index).difference(tensors))
    if missing:
        count = f"{len(missing):,} tensor{'s' if len(missing) > 1 else ''}"
        message = f"{file} names {count} that no file holds: {parser.first_names(missing)}"
        raise DamagedCheckpoint(message, "copy index and weights again")


_SMALL_FILES = (".jinja", ".json", ".model", ".py", ".tiktoken", ".txt")
_OF_TRAINING = frozenset({
    "all_results.json", "dtypes.json", "eval_results.json", "train_results.json",
    "trainer_state.json",
})  # fmt: skip
_NOT_WEIGHTS = frozenset({
    "training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt",
})  # fmt: skip
_OLDER = ("*.bin", "*.pt")
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
        raise CheckpointError(f"{location} has no config.json", fix)
    index = index_name(names)
    try:
        if sizes.get(index, 0) > LARGEST_INDEX:
            raise DamagedCheckpoint(f"{index} has {sizes[index]:,} bytes", "copy it again")
        shards = weight_files(names, parse_index(read(index), index) if index in names else None)
    except CheckpointError as error:
        raise type(error)(f"{location}: {error.message}", error.fix, error.code) from error
    weights = shards or _older(names)
    if not weights:
        raise DamagedCheckpoint(f"{location} holds no weights", "copy the *.safetensors files too")
    small = {name for name in names if _is_read(name) and not name.endswith(".index.json")}
    return tuple(sorted({*weights, *small, *{index}.intersection(names)}))


def _older(names: Iterable[str]) -> list[str]:
    """The weights in the first older format that has any."""
    candidates = [name for name in names if name not in _NOT_WEIGHTS]
    by_format = ([n for n in candidates if fnmatchcase(n, pattern)] for pattern in _OLDER)
    return next(filter(None, by_format), [])


def _is_read(name: str) -> bool:
    return (
        name.endswith(_SMALL_FILES) and name not in _OF_TRAINING and not name.startswith("README")
    )
