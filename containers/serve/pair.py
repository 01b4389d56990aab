"""Whether head and target fit, before the engine starts: the few facts that decide.

Read from the two config.json and the header of the head's weights. The toolkit's own check knows
many more rules; these are the ones that end in a crash after minutes, or in a head that loads and
drafts nonsense. What cannot be read from here (a model of the hub, other formats) is left to vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve.errors import WrongEnvironment
from serve.folder import is_folder_path, read_json
from serve.json_text import members
from serve.model import MODEL, drafter_of
from serve.names import SPECULATION
from serve.safetensors import tensor_shapes

_AUX = "eagle_aux_hidden_state_layer_ids"
_OTHER_HEAD = "take the head that was trained for this target"
_PLACEHOLDERS = ("mask_token_id", "pard_token", "ptd_token_id")

Document = dict[str, Any]


def check_pair(environment: Mapping[str, str]) -> None:
    """Raise WrongEnvironment if the head cannot work with the target that ``environment`` names.

    Only for the method ``eagle3``, with both as folders of this machine that were found whole.
    """
    drafter, target = drafter_of(environment), environment[MODEL]
    if not (drafter and is_folder_path(drafter) and is_folder_path(target)):
        return
    asked = {name: part.value for name, part in members(environment[SPECULATION]).items()}
    if asked.get("method") != "eagle3" or "SM_VLLM_LOAD_FORMAT" in environment:
        return
    files = Path(target) / "config.json", Path(drafter) / "config.json"
    if not all(file.is_file() for file in files):
        return
    served, head = (read_json(SPECULATION, file) for file in files)
    tensors: dict[str, list[int]] = {}
    for file in sorted(Path(drafter).glob("*.safetensors")):
        tensors.update(tensor_shapes(file))
    served = served.get("text_config", served)
    _check_layers(served, head)
    _check_width(served, head, tensors)
    if asked.get("parallel_drafting") is True:
        _check_parallel(head, tensors)


def _check_layers(target: Document, head: Document) -> None:
    """The layers whose states the head reads: inside of the target, no two the same."""
    count = target.get("num_hidden_layers")
    if not isinstance(count, int):
        return
    layers, named = _aux_layers(head, count)
    if any(not isinstance(layer, int) or not 0 <= layer <= count for layer in layers):
        raise _mismatch(f"it reads the target's layers {layers}, and there are {count}")
    if len(set(layers)) < len(layers):
        whence = "its config.json names" if named else f"vLLM takes, of {count},"
        raise _mismatch(f"{whence} the layers {layers} of the target, one of them twice")


def _aux_layers(head: Document, count: int) -> tuple[list[Any], bool]:
    """The layers, and whether the head names them. By itself vLLM takes three."""
    inner = head.get("eagle_config")
    layers = head.get(_AUX) or (inner.get(_AUX) if isinstance(inner, dict) else None)
    if isinstance(layers, list) and layers:
        return layers, True
    return [2, count // 2, count - 3], False


def _check_width(target: Document, head: Document, tensors: dict[str, list[int]]) -> None:
    """``fc`` takes the hidden states of all those layers, side by side."""
    width = target.get("hidden_size")
    if not isinstance(width, int):
        return
    made_for = head.get("target_hidden_size")
    if isinstance(made_for, int) and made_for != width:
        raise _mismatch(f"it was made for a hidden size of {made_for}, and the target's is {width}")
    fc = _tensor(tensors, "fc.weight")
    layers, _ = _aux_layers(head, int(target.get("num_hidden_layers") or 0))
    if fc is not None and len(fc) == 2 and fc[1] != width * len(layers):
        raise _mismatch(
            f"its fc.weight takes {fc[1]} values, and {len(layers)} layers of the target have "
            f"{width} each: {width * len(layers)}"
        )


def _check_parallel(head: Document, tensors: dict[str, list[int]]) -> None:
    """A head drafts in parallel only with a state and a token for the places that are masked."""
    fix = 'take a P-EAGLE head, or remove "parallel_drafting"'
    mask = next((shape for name, shape in tensors.items() if "mask_hidden" in name), None)
    if tensors and mask is None:
        raise _mismatch("parallel_drafting is asked for, and it has no mask_hidden", fix)
    if not any(head.get(name) is not None for name in _PLACEHOLDERS):
        names = ", ".join(_PLACEHOLDERS)
        raise _mismatch(f"parallel_drafting is asked for, and its config has none of {names}", fix)
    fc = _tensor(tensors, "fc.weight")
    if mask and fc is not None and len(fc) == 2:
        values = 1
        for length in mask:
            values *= length
        if values != fc[1]:
            raise _mismatch(f"its mask_hidden has {values} values, and its fc takes {fc[1]}")


def _tensor(tensors: dict[str, list[int]], name: str) -> list[int] | None:
    return next((s for full, s in tensors.items() if f".{full}".endswith(f".{name}")), None)


def _mismatch(what: str, fix: str = _OTHER_HEAD) -> WrongEnvironment:
    return WrongEnvironment(f"the head and the target do not fit: {what}", fix)
