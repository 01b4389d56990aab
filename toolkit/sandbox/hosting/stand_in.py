"""``peagle/tiny`` in the place of a target that this machine cannot run. Pure.

Everything that is not the target's own stays as planned, so that the plan's settings are what is
tried: the method, K (up to what tiny's head was trained for), the context (up to tiny's), the
served name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.catalog.models import Drafter, EngineSetting, Target

TARGET_PATH = "/opt/ml/model/target"
DRAFTER_PATH = "/opt/ml/model/drafter"
P_EAGLE, EAGLE3 = "p-eagle", "eagle3"
"""The names of tiny's heads in the catalogue."""

_BELONGS_TO_TARGET = frozenset(
    f"SM_VLLM_{name}"
    for name in (
        *("REVISION", "CODE_REVISION", "TOKENIZER", "TOKENIZER_REVISION", "TOKENIZER_MODE"),
        *("HF_CONFIG_PATH", "HF_OVERRIDES", "CONFIG_FORMAT", "LOAD_FORMAT", "MODEL_IMPL"),
        *("DTYPE", "QUANTIZATION", "ROPE_SCALING", "ROPE_THETA", "GENERATION_CONFIG"),
        *("CHAT_TEMPLATE", "REASONING_PARSER", "TOOL_CALL_PARSER", "ENABLE_AUTO_TOOL_CHOICE"),
        *("LIMIT_MM_PER_PROMPT", "LANGUAGE_MODEL_ONLY", "MM_PROCESSOR_KWARGS"),
    )
)
_DRAFTER_KEYS = frozenset({"revision", "code_revision", "quantization", "max_model_len"})
_NUMBER, _LENGTH = "num_speculative_tokens", "SM_VLLM_MAX_MODEL_LEN"


@dataclass(frozen=True)
class StandIn:
    """The environment that serves tiny, the head it takes (if any), and what was changed."""

    environment: dict[str, str]
    drafter: Drafter | None
    notes: tuple[str, ...]


def stand_in_for(environment: Mapping[str, str], tiny: Target) -> StandIn:
    """``environment`` with ``tiny`` for its target, and tiny's head of the same kind."""
    asked = environment.get("SM_VLLM_MODEL") or environment.get("HF_MODEL_ID") or "the model"
    own = sorted(_BELONGS_TO_TARGET & environment.keys())
    notes = [f"{name}={environment[name]} is left out: it belongs to {asked}" for name in own]
    changed = {
        **{name: value for name, value in environment.items() if name not in own},
        "SM_VLLM_MODEL": TARGET_PATH,
        "SM_VLLM_SERVED_MODEL_NAME": environment.get("SM_VLLM_SERVED_MODEL_NAME", asked),
    }
    changed.pop("HF_MODEL_ID", None)
    _limit_length(changed, tiny, notes)
    drafter = _replace_speculation(changed, tiny, notes)
    for setting in (*tiny.engine_arguments, *(drafter.engine_arguments if drafter else ())):
        _apply(changed, setting, notes)
    return StandIn(changed, drafter, tuple(notes))


def _apply(changed: dict[str, str], setting: EngineSetting, notes: list[str]) -> None:
    """An engine argument that tiny itself needs."""
    name = "SM_VLLM_" + setting.name.upper().replace("-", "_")
    value = setting.value
    changed[name] = str(value).lower() if isinstance(value, bool) else str(value)
    notes.append(f"{name}={changed[name]}: {setting.because}")


def _limit_length(changed: dict[str, str], tiny: Target, notes: list[str]) -> None:
    longest = tiny.architecture.max_positions
    asked = changed.get(_LENGTH)
    if asked is None or (asked.isdigit() and int(asked) <= longest):
        return
    changed[_LENGTH] = str(longest)
    notes.append(f"{_LENGTH}={asked} becomes {longest}: tiny reads no more")


def _replace_speculation(changed: dict[str, str], tiny: Target, notes: list[str]) -> Drafter | None:
    config = _speculation(changed)
    if config is None or config.get("method") == "ngram":
        return None
    drafter = _head(config, tiny, notes)
    new = {name: value for name, value in config.items() if name not in _DRAFTER_KEYS}
    new |= {"method": drafter.method, "model": DRAFTER_PATH}
    new.pop("parallel_drafting", None)
    if drafter.parallel_drafting:
        new["parallel_drafting"] = True
    _limit_number(new, drafter, notes)
    changed["SM_VLLM_SPECULATIVE_CONFIG"] = json.dumps(new, ensure_ascii=False)
    return drafter


def _speculation(changed: Mapping[str, str]) -> dict[str, Any] | None:
    """``None`` without speculation, and for what is not JSON: the engine itself refuses that."""
    try:
        config = json.loads(changed.get("SM_VLLM_SPECULATIVE_CONFIG", "null"))
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def _head(config: Mapping[str, Any], tiny: Target, notes: list[str]) -> Drafter:
    method, parallel = config.get("method"), config.get("parallel_drafting") is True
    name = EAGLE3 if method in ("eagle", "eagle3") and not parallel else P_EAGLE
    drafter = next(one for one in tiny.drafters if one.name == name)
    if method not in ("eagle", "eagle3"):
        notes.append(f"tiny has no head for method {method}: its {drafter.title} drafts instead")
    else:
        notes.append(f"the drafter is tiny's {drafter.title}")
    return drafter


def _limit_number(config: dict[str, Any], drafter: Drafter, notes: list[str]) -> None:
    asked, trained = config.get(_NUMBER), drafter.k_trained
    if trained is not None and isinstance(asked, int) and asked > trained:
        config[_NUMBER] = trained
        notes.append(f"{_NUMBER}={asked} becomes {trained}: tiny's head was trained for no more")
