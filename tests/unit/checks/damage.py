"""Broken pairs, made of the tiny one: its folders copied with another config and other tensors.

    head = damaged(tiny("p-eagle"), tmp_path / "head", Damage(drop=("mask_hidden",)))

Safetensors files are read and written as bytes, since unit tests have neither torch nor numpy.
"""

import json
import math
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.data import data_folder

WEIGHTS = "model.safetensors"
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1}
"""Bytes of one value, by the name of its type in a safetensors header."""


@dataclass(frozen=True)
class RawTensor:
    """One tensor: ``dtype`` as in a safetensors header, and its values as little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Damage:
    """What is changed in a copy of a checkpoint.

    Keys of config.json may be dotted: ``eagle_config.eagle_aux_hidden_state_layer_ids``. Tensors
    are dropped, then cut, retyped (with zeros) and added.
    ``cut`` gives the new shape: a smaller one keeps the leading values of each row, a larger one
    is filled up with zeros. ``text`` replaces the whole of config.json.
    """

    set_keys: Mapping[str, Any] = field(default_factory=dict)
    drop_keys: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    cut: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    retype: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, RawTensor] = field(default_factory=dict)
    text: str | None = None


def tiny(part: str) -> Path:
    """The folder of ``target``, ``p-eagle`` or ``eagle3`` of the tiny pair."""
    return data_folder("model_catalog") / "peagle/tiny" / part


def damaged(source: Path, folder: Path, damage: Damage) -> Path:
    """``folder``, which now holds a copy of ``source`` with that damage."""
    shutil.copytree(source, folder)
    config = folder / "config.json"
    text = damage.text
    if text is None:
        text = json.dumps(damaged_config(json.loads(config.read_text()), damage), indent=2)
    config.write_text(text)
    if any((damage.drop, damage.cut, damage.retype, damage.add)):
        tensors = read_tensors(folder / WEIGHTS)
        write_tensors(folder / WEIGHTS, damaged_tensors(tensors, damage))
    return folder


def config_only(folder: Path, config: Mapping[str, Any]) -> Path:
    """``folder``, created with only this config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def damaged_config(config: Mapping[str, Any], damage: Damage) -> dict[str, Any]:
    """A copy of ``config`` with the keys of ``damage`` set and dropped."""
    changed: dict[str, Any] = json.loads(json.dumps(config))
    for key, value in damage.set_keys.items():
        holder, last = _holder(changed, key)
        holder[last] = value
    for key in damage.drop_keys:
        holder, last = _holder(changed, key)
        del holder[last]
    return changed


def damaged_tensors(tensors: Mapping[str, RawTensor], damage: Damage) -> dict[str, RawTensor]:
    """A copy of ``tensors`` with that damage. Raises KeyError for an unknown name."""
    changed = dict(tensors)
    for name in damage.drop:
        del changed[name]
    for name, shape in damage.cut.items():
        changed[name] = cut(changed[name], shape)
    for name, dtype in damage.retype.items():
        changed[name] = filled(dtype, changed[name].shape)
    return {**changed, **damage.add}


def filled(dtype: str, shape: tuple[int, ...], value: int = 0) -> RawTensor:
    """A tensor with the byte ``value`` everywhere: 0 is a zero, or False, in every type."""
    return RawTensor(dtype, shape, bytes([value]) * (ITEM_BYTES[dtype] * math.prod(shape)))


def integers(values: list[int]) -> RawTensor:
    """A tensor of 64-bit integers, such as ``d2t``."""
    return RawTensor("I64", (len(values),), struct.pack(f"<{len(values)}q", *values))


def booleans(values: list[bool]) -> RawTensor:
    """A tensor of booleans, such as ``t2d``."""
    return RawTensor("BOOL", (len(values),), bytes(values))


def cut(tensor: RawTensor, shape: tuple[int, ...]) -> RawTensor:
    """The tensor in another shape of as many axes: cut off, or filled up with zeros."""
    data = _fitted(tensor.data, tensor.shape, shape, ITEM_BYTES[tensor.dtype])
    return RawTensor(tensor.dtype, shape, data)


def read_tensors(file: Path) -> dict[str, RawTensor]:
    """All tensors of a safetensors file, by name."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        low, high = (start + offset for offset in entry["data_offsets"])
        tensors[name] = RawTensor(entry["dtype"], tuple(entry["shape"]), content[low:high])
    return tensors


def write_tensors(file: Path, tensors: Mapping[str, RawTensor]) -> None:
    """Write a safetensors file that holds these tensors, in the order of their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        offsets = [end, end + len(tensor.data)]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        end = offsets[1]
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # values start at a multiple of 8 bytes
    body = b"".join(tensors[name].data for name in sorted(tensors))
    file.write_bytes(len(head).to_bytes(8, "little") + head + body)


def as_speculators(config: Mapping[str, Any], kind: str, k: int = 5) -> dict[str, Any]:
    """The config.json of a head of the tiny pair, as the speculators library writes it.

    ``kind`` is ``eagle3`` or ``peagle``. The tensors of both formats have the same names.
    """
    spoken: dict[str, Any] = {
        "architectures": [{"eagle3": "Eagle3Speculator", "peagle": "PEagleSpeculator"}[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": config["draft_vocab_size"],
        "target_hidden_size": config["target_hidden_size"],
        "norm_before_residual": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": config["eagle_config"][
            "eagle_aux_hidden_state_layer_ids"
        ],
        "transformer_layer_config": {
            key: value
            for key, value in config.items()
            if key not in ("architectures", "eagle_config", "ptd_token_id", "draft_vocab_size")
        },
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": "peagle/tiny", "architectures": ["LlamaForCausalLM"]},
        },
    }
    if kind == "peagle":
        spoken["mask_token_id"] = config["ptd_token_id"]
    return spoken


def _holder(config: dict[str, Any], dotted: str) -> tuple[dict[str, Any], str]:
    *path, last = dotted.split(".")
    for key in path:
        config = config.setdefault(key, {})
    return config, last


def _fitted(data: bytes, old: tuple[int, ...], new: tuple[int, ...], item: int) -> bytes:
    if not new:
        return data[:item]
    stride = item * math.prod(old[1:])
    kept = min(old[0], new[0])
    rows = (data[row * stride : (row + 1) * stride] for row in range(kept))
    if old[1:] == new[1:]:
        body = data[: kept * stride]
    else:
        body = b"".join(_fitted(row, old[1:], new[1:], item) for row in rows)
    return body.ljust(item * math.prod(new), b"\0")
