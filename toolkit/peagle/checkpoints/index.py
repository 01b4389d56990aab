"""Which files of a checkpoint vLLM reads, and what the index of a sharded one says.

The rules for safetensors files are the container's (``peagle_serve.safetensors``). Where there are
none, vLLM loads ``*.bin`` or else ``*.pt``, without the files of a training. It also reads the
config, the tokenizer, templates and the code of custom models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from peagle.checkpoints.safetensors import as_checkpoint_error
from peagle.errors import CheckpointError
from peagle_serve import safetensors as parser
from peagle_serve.safetensors import LARGEST_INDEX, index_name, other_weights

__all__ = ["LARGEST_INDEX", "check_tensors", "files_read", "index_name", "other_weights",
           "parse_index", "weight_files"]  # fmt: skip


def parse_index(content: bytes, file: str) -> dict[str, str]:
    """The file of each tensor. Raises CheckpointError when the index named ``file`` is damaged, or
    names files of other folders."""
    with as_checkpoint_error():
        return parser.parse_index(content, file)


def weight_files(names: Iterable[str], index: Mapping[str, str] | None) -> tuple[str, ...]:
    """The safetensors files that vLLM loads, of those that are there.

    Raises CheckpointError when one is missing that the index names or, without an index, one of a
    numbered set.
    """
    with as_checkpoint_error():
        return parser.weight_files(names, index)


def check_tensors(index: Mapping[str, str], tensors: Iterable[str], file: str) -> None:
    """Raise CheckpointError when the index called ``file`` names tensors that no file holds."""
    missing = sorted(set(index).difference(tensors))
    if missing:
        count = f"{len(missing):,} tensor{'s' if len(missing) > 1 else ''}"
        message = f"{file} names {count} that no file holds: {parser.first_names(missing)}"
        raise CheckpointError(message, "copy index and weights again")


_BESIDE = (".jinja", ".json", ".model", ".py", ".tiktoken", ".txt")
_OF_TRAINING = frozenset({
    "all_results.json", "dtypes.json", "eval_results.json", "train_results.json",
    "trainer_state.json",
})  # fmt: skip
_NOT_WEIGHTS = frozenset({
    "training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt",
})  # fmt: skip
_OLDER = ("*.bin", "*.pt")
_CONFIGS = ("config.json", "params.json")


def files_read(
    location: str, sizes: Mapping[str, int], read: Callable[[str], bytes]
) -> tuple[str, ...]:
    """The names of the files that vLLM reads, of those at ``location``; ``read`` gives a small one.

    Raises CheckpointError for an empty or incomplete checkpoint.
    """
    names = [name for name in sizes if not name.startswith(".") and "/" not in name]
    if not any(config in names for config in _CONFIGS):
        fix = "name the folder that holds the model itself, or copy it again if it is incomplete"
        raise CheckpointError(f"{location} has no config.json", fix)
    index = index_name(names)
    try:
        if sizes.get(index, 0) > LARGEST_INDEX:
            raise CheckpointError(f"{index} has {sizes[index]:,} bytes", "copy it again")
        shards = weight_files(names, parse_index(read(index), index) if index in names else None)
    except CheckpointError as found:
        raise type(found)(f"{location}: {found.message}", found.fix) from found
    weights = shards or _older(names)
    if not weights:
        raise CheckpointError(f"{location} holds no weights", "copy the *.safetensors files too")
    beside = [name for name in names if _is_beside(name) and (name == index or not _is_index(name))]
    return tuple(sorted({*weights, *beside}))


def _older(names: Iterable[str]) -> list[str]:
    for pattern in _OLDER:
        found = [n for n in names if fnmatchcase(n, pattern) and n not in _NOT_WEIGHTS]
        if found:
            return found
    return []


def _is_beside(name: str) -> bool:
    return name.endswith(_BESIDE) and name not in _OF_TRAINING and not name.startswith("README")


def _is_index(name: str) -> bool:
    return name.endswith(".index.json")
