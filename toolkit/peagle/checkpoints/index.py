"""Which files of a checkpoint vLLM loads, and what the index of a sharded one says.

As in ``vllm/model_executor/model_loader/default_loader.py`` and ``weight_utils.py`` of vLLM 0.28.0:
the safetensors files of the top level, ``consolidated*`` ones instead of all others where there are
some, and of these only what the index names where there is an index. So the copies in ``original/``
and ``metal/`` that some models bring are not read.

Which files of a checkpoint vLLM reads. All others stay where they are.

Weights as ``peagle.checkpoints.index`` says: safetensors of the top level, of these only what an
index names. Where there are none, vLLM takes ``*.bin``, or else ``*.pt``, without what a training
leaves. Beside them go config, tokenizer, templates and the code of custom models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from peagle.errors import CheckpointError

LONGEST_INDEX = 50_000_000
"""Bytes. The largest models have about 20 million, one of 120 billion parameters 60,000."""

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")

_OTHER_FORMATS = (".bin", ".pt", ".pth", ".gguf", ".npz", ".h5", ".msgpack")

_AGAIN = "copy the index again, or save the weights again"


def index_name(names: Iterable[str]) -> str:
    """What the index of these files is called, if there is one."""
    if any(fnmatchcase(name, "consolidated*.safetensors") for name in names):
        return "consolidated.safetensors.index.json"
    return "model.safetensors.index.json"


def parse_index(content: bytes, file: str) -> dict[str, str]:
    """The file of each tensor. Raises CheckpointError when the index called ``file`` is damaged, or
    names files that do not lie beside it."""
    try:
        document: Any = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON", _AGAIN) from error
    said = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(said, dict) or not said:
        raise CheckpointError(f"{file} has no weight_map, so vLLM loads nothing", _AGAIN)
    for tensor, name in said.items():
        if not isinstance(name, str) or not name:
            raise CheckpointError(f"{file} names no file for {ascii(tensor)[:80]}", _AGAIN)
    for name in sorted(set(said.values())):
        if "/" in name or "\\" in name or name in (".", ".."):
            message = f"{file} names {ascii(name)[:80]}, which does not lie beside it"
            raise CheckpointError(message, "vLLM loads weights of the same folder only; mend it")
    return said


def weight_files(names: Iterable[str], index: Mapping[str, str] | None) -> tuple[str, ...]:
    """The safetensors files that vLLM loads, of those that are there.

    Raises CheckpointError when one that the index names is not there or, without an index, one of
    a numbered set.
    """
    names = tuple(names)
    kind = index_name(names)
    pattern = "consolidated*.safetensors" if kind.startswith("consolidated") else "*.safetensors"
    # As glob does it: a hidden file, like the ._model.safetensors of a Mac, is none.
    found = sorted(n for n in names if fnmatchcase(n, pattern) and not n.startswith("."))
    if index is None:
        _check_numbered(found)
        return tuple(found)
    named = set(index.values())
    missing = sorted(named.difference(found))
    if missing:
        raise CheckpointError(
            f"{kind} names {_missing_words(len(named), len(missing))} not there: {_some(missing)}",
            "copy the missing files too; a folder, or a link to nothing, is no file",
        )
    return tuple(name for name in found if name in named)


def _missing_words(named: int, missing: int) -> str:
    """``2 files, and 1 of them is``, ``1 file, which is``."""
    if named == 1:
        return "1 file, which is"
    return f"{named} files, and {missing} of them {'is' if missing == 1 else 'are'}"


def other_weights(names: Iterable[str]) -> tuple[str, ...]:
    """Files that look like weights in another format than safetensors."""
    return tuple(sorted(name for name in names if name.endswith(_OTHER_FORMATS)))


def _check_numbered(found: Iterable[str]) -> None:
    """Raise CheckpointError when ``model-00001-of-00002`` is there and not the other half.

    vLLM would load what there is. Some sets are numbered from 0.
    """
    sets: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, found)):
        sets.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, total), numbers in sets.items():
        if len(numbers) < total:
            first = 0 if 0 in numbers else 1
            missing = sorted(set(range(first, first + total)) - numbers)
            names = [f"{stem}-{number:05}-of-{total:05}.safetensors" for number in missing]
            raise CheckpointError(
                f"{stem}-*-of-{total:05}.safetensors: {len(numbers)} of {total} files are there, "
                f"and not {_some(names)}",
                "copy the missing files too, and the index",
            )


def check_tensors(index: Mapping[str, str], tensors: Iterable[str], file: str) -> None:
    """Raise CheckpointError when the index called ``file`` names tensors that no file holds."""
    missing = sorted(set(index).difference(tensors))
    if missing:
        count = f"{len(missing):,} tensor{'s' if len(missing) > 1 else ''}"
        message = f"{file} names {count} that no file holds: {_some(missing)}"
        raise CheckpointError(message, "copy index and weights again: they are of two savings")


def _some(names: list[str]) -> str:
    shown = ", ".join(ascii(name)[1:-1][:80] for name in names[:3])
    return f"{shown}, ..." if len(names) > 3 else shown


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
