"""Whether the environment's values can be what their author meant, before vLLM is started.

vLLM finds these out too, but only after it was imported: half a minute on a machine that is paid
by the hour, and with a page of traceback instead of a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from serve.environment import PREFIX
from serve.errors import WrongEnvironment
from serve.json_text import members
from serve.names import NEGATION, SPECULATION, check_names, check_switch

DEFAULT_PORT = 8080
PORT_VARIABLE = "SAGEMAKER_BIND_TO_PORT"
"""SageMaker's own variable for the port of a container."""

_COUNTS = (
    "TENSOR_PARALLEL_SIZE",
    "PIPELINE_PARALLEL_SIZE",
    "DATA_PARALLEL_SIZE",
    "MAX_NUM_SEQS",
)
_SWITCHES = (
    "ENFORCE_EAGER",
    "TRUST_REMOTE_CODE",
    "ENABLE_PREFIX_CACHING",
    "ENABLE_CHUNKED_PREFILL",
    "ENABLE_EXPERT_PARALLEL",
    "ENABLE_AUTO_TOOL_CHOICE",
    "ENABLE_LORA",
    "ASYNC_SCHEDULING",
    "DISABLE_LOG_STATS",
)
_PROMPTS_IN_LOGS = (f"{PREFIX}ENABLE_LOG_REQUESTS", f"{PREFIX}ENABLE_LOG_OUTPUTS",
                    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE")  # fmt: skip
_TOKENS = r"(?=.*[1-9])\d+(\.\d+)?[kKmMgGtT]?"
_LENGTHS = {
    "MAX_MODEL_LEN": (re.compile(rf"-1|auto|{_TOKENS}", re.ASCII), "16384, 16k or auto"),
    "MAX_NUM_BATCHED_TOKENS": (re.compile(_TOKENS, re.ASCII), "8192 or 8k"),
}
"""vLLM's own spelling of a number of tokens: 16384, 16k, 16K, auto; -1 as auto."""
_CHOICES = {"MODEL_IMPL": ("auto", "vllm", "transformers", "terratorch")}
"""Of these vLLM 0.28.0 takes any value, and heeds none that it does not know."""
_K = "num_speculative_tokens"
_K_IS_OPTIONAL = ("suffix", "mtp")
_NEED_DRAFTER = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "dflash")
_LAST_PORT = 65535
_LONGEST_SHOWN = 200

_ONE_NAME = f"write it into {SPECULATION}, as method, model and {_K}"
_UNSEEN = {
    f"{PREFIX}CONFIG": "give each argument of the file as a variable of its own",
    f"{PREFIX}SPEC_METHOD": _ONE_NAME,
    f"{PREFIX}SPEC_MODEL": _ONE_NAME,
    f"{PREFIX}SPEC_TOKENS": _ONE_NAME,
}
"""Other ways to give vLLM arguments: head, counters and the image's pair would go unchecked, and
the key of a warm start would not know them."""


def check(environment: Mapping[str, str]) -> None:
    """Raise WrongEnvironment for the first thing that cannot be meant."""
    check_names(environment)
    for flag in _COUNTS:
        if PREFIX + flag in environment:
            _count(PREFIX + flag, environment[PREFIX + flag])
    switches = {PREFIX + flag for flag in _SWITCHES}
    for name in sorted(environment):
        if name in switches or name.startswith(NEGATION):
            check_switch(name, environment[name])
    for name in _PROMPTS_IN_LOGS:
        if environment.get(name, "false").strip().lower() not in ("false", "0"):
            raise WrongEnvironment(
                f"{name} writes what users ask into the log", "remove it: logs here hold no prompts"
            )
    _check_lengths(environment)
    _check_choices(environment)
    _check_memory_share(environment)
    for name, fix in _UNSEEN.items():
        if name in environment:
            raise WrongEnvironment(f"{name} is not looked into, and nothing would check it", fix)
    if SPECULATION in environment:
        _check_speculation(environment[SPECULATION])
        _check_counted(environment)
    chosen = environment.get(f"{PREFIX}PORT")
    if chosen is not None and chosen.strip() != str(port_of(environment)):
        raise WrongEnvironment(
            f"{PREFIX}PORT is {chosen}, but SageMaker asks on {port_of(environment)}",
            f"remove {PREFIX}PORT",
        )


def port_of(environment: Mapping[str, str]) -> int:
    """The port that SageMaker asks on: its own variable, else 8080."""
    port = _count(PORT_VARIABLE, environment.get(PORT_VARIABLE) or str(DEFAULT_PORT))
    if port > _LAST_PORT:
        raise WrongEnvironment(f"{PORT_VARIABLE} is {port}", f"at most {_LAST_PORT}")
    return port


def _count(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and int(digits) >= 1):
        raise WrongEnvironment(f"{name} is {text!r}", "a whole number of at least 1 is needed")
    return int(digits)


def _check_lengths(environment: Mapping[str, str]) -> None:
    for flag, (spelling, examples) in _LENGTHS.items():
        name = PREFIX + flag
        if name in environment and not spelling.fullmatch(environment[name].strip()):
            raise WrongEnvironment(
                f"{name} is {environment[name]!r}", f"a number of tokens is needed: {examples}"
            )


def _check_choices(environment: Mapping[str, str]) -> None:
    for flag, choices in _CHOICES.items():
        name = PREFIX + flag
        if environment.get(name, choices[0]).strip() not in choices:
            raise WrongEnvironment(f"{name} is {environment[name]!r}", f"one of {choices}")


def _check_memory_share(environment: Mapping[str, str]) -> None:
    name = f"{PREFIX}GPU_MEMORY_UTILIZATION"
    try:
        share = float(environment.get(name, "1"))
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise WrongEnvironment(
            f"{name} is {environment[name]!r}", "a number above 0 and up to 1 is needed"
        )


def _check_speculation(text: str) -> None:
    config = _json_object(text)
    method = config.get("method")
    k = config.get(_K)
    if k is None and str(method).endswith(_K_IS_OPTIONAL):
        return
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        said = f"has {_K} {json.dumps(k)}" if _K in config else f"has no {_K}"
        raise WrongEnvironment(f"{SPECULATION} {said}", "set it to a whole number of at least 1")
    if method is None and config.get("model"):
        raise WrongEnvironment(
            f"{SPECULATION} has a model and no method, so vLLM would guess one from its name",
            'add "method": "eagle3"; for P-EAGLE also "parallel_drafting": true',
        )
    if method in _NEED_DRAFTER and not config.get("model"):
        raise WrongEnvironment(
            f"{SPECULATION} has the method {method} and no drafter",
            'set "model" to the head\'s Hugging Face id or folder',
        )


def _check_counted(environment: Mapping[str, str]) -> None:
    """Without its counters nobody can tell whether the drafter drafts: neither ``/ping`` nor who
    asks for them."""
    name = f"{PREFIX}DISABLE_LOG_STATS"
    if environment.get(name, "false").strip().lower() != "false":
        raise WrongEnvironment(
            f"{name} turns off the counters that show whether the drafter works",
            f"remove it, or {SPECULATION}",
        )


def _json_object(text: str) -> dict[str, Any]:
    try:
        return {name: part.value for name, part in members(text).items()}
    except json.JSONDecodeError as error:
        lost = "'" in text or (":" in text and '"' not in text)
        fix = 'names and texts need double quotes: {"method": ...}' if lost else "mend the JSON"
        raise WrongEnvironment(
            f"{SPECULATION} is not JSON: {error.msg} at character {error.pos + 1} "
            f"of {_short(text)}",
            fix,
        ) from None
    except ValueError:
        raise WrongEnvironment(
            f"{SPECULATION} is not a JSON object: {_short(text)}",
            'such as {"method": "eagle3", "model": ..., "num_speculative_tokens": 7}',
        ) from None


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")
