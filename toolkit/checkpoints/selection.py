"""Which files of a checkpoint vLLM reads. All others stay where they are.

Weights as ``toolkit.checkpoints.index`` says: safetensors of the top level, of these only what an
index names. Where there are none, vLLM takes ``*.bin``, or else ``*.pt``, without what a training
leaves. Beside them go config, tokenizer, templates and the code of custom models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from toolkit.checkpoints.index import LONGEST_INDEX, index_name, parse_index, weight_files
from toolkit.errors import CheckpointError

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

    Raises CheckpointError for a checkpoint that is empty or only half there.
    """
    names = [name for name in sizes if not name.startswith(".") and "/" not in name]
    if not any(config in names for config in _CONFIGS):
        fix = "name the folder that holds the model itself, and copy it again if it is not whole"
        raise CheckpointError(f"{location} has no config.json", fix)
    index = index_name(names)
    try:
        if sizes.get(index, 0) > LONGEST_INDEX:
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
