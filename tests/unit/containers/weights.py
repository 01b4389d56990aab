"""Folders with models of a few bytes."""

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

HIDDEN = 8
LAYERS = 10
TARGET: dict[str, Any] = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
HEAD: dict[str, Any] = {
    "target_hidden_size": HIDDEN,
    "ptd_token_id": 2,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 5, 7]},
}
HEAD_TENSORS = {"fc.weight": [4, 3 * HIDDEN], "mask_hidden": [1, 1, 3 * HIDDEN], "norm.weight": [4]}


def safetensors(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """A valid safetensors file of zeros, one byte per element."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape)
        header[name] = {"dtype": "I8", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def model(folder: Path, *files: str) -> Path:
    """A folder that looks like a complete model."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files or ("config.json", "model.safetensors"):
        content = safetensors({"a.weight": [2, 3]}) if name.endswith(".safetensors") else b"{}"
        (folder / name).write_bytes(content)
    return folder


def pair(
    root: Path,
    target: Mapping[str, Any] = TARGET,
    head: Mapping[str, Any] = HEAD,
    tensors: Mapping[str, Sequence[int]] = HEAD_TENSORS,
) -> dict[str, str]:
    """Make a target and a head below ``root``; returns the environment for them."""
    model(root / "target")
    (root / "target" / "config.json").write_text(json.dumps(target))
    model(root / "head")
    (root / "head" / "config.json").write_text(json.dumps(head))
    (root / "head" / "model.safetensors").write_bytes(safetensors(tensors))
    speculation = {
        "method": "eagle3",
        "model": str(root / "head"),
        "num_speculative_tokens": 5,
        "parallel_drafting": True,
    }
    return {
        "SM_VLLM_MODEL": str(root / "target"),
        "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(speculation),
    }
