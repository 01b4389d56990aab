"""Whether the environment is valid, and matches the pair that the image was built for.

vLLM rejects invalid values too, but only after its imports, which take half a minute, and with a
page of traceback instead of a line.

``pair.json`` is beside the entrypoint in an image that was built from a plan. Refused are another
target or drafter (by Hugging Face ID, or by the sizes in their config.json), another method, and
another value of ``parallel_drafting``, with which a P-EAGLE head drafts badly without a warning.
Another K and no speculation are allowed: measurements use both.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle_serve.contract import (
    DEFAULT_PORT,
    HUB_ID,
    LOAD_FORMAT,
    MODEL,
    PORT_VARIABLE,
    PREFIX,
    SPECULATION,
    InvalidEnvironment,
    is_s3_uri,
    whole_number,
)
from peagle_serve.environment import (
    canonical_name,
    flag_of,
    normalized,
    read_speculative_config,
    tokens_of,
    without_escapes,
)
from peagle_serve.folder import is_folder_path, read_json
from peagle_serve.json_reader import InvalidJson
from peagle_serve.variable_names import NEGATION, check_names, check_switch
from peagle_serve.weights import drafter_model

PAIR_FILE = Path(__file__).resolve().parent.parent / "pair.json"
_OTHER_IMAGE = "use an image of that pair (peagle image build PAIR), or set this image's pair"
_NAMES = {
    "architecture": "architecture",
    "hidden_size": "hidden size",
    "num_hidden_layers": "number of layers",
    "vocab_size": "vocabulary",
}

Document = dict[str, Any]


def check_built_for(chosen: Mapping[str, str], file: Path = PAIR_FILE) -> None:
    """Raise InvalidEnvironment if the image is for another pair according to ``file``.

    ``chosen`` is the environment with its model resolved (``with_model``).
    """
    built = _object(file)
    if not built.get("pair"):
        return
    for difference in _differences(built, chosen):
        raise InvalidEnvironment(
            f"this image was built for {built['pair']}, and {difference}", _OTHER_IMAGE
        )


def _differences(built: Document, chosen: Mapping[str, str]) -> Iterator[str]:
    yield from _model("target", built, chosen[MODEL], MODEL)
    if SPECULATION not in chosen:
        return
    speculation = read_speculative_config(chosen)
    if built.get("method") is None:
        yield f"{SPECULATION} is set"
        return
    if speculation.get("method") not in (None, built["method"]):
        yield f"{SPECULATION} has the method {speculation['method']}, not {built['method']}"
    if bool(speculation.get("parallel_drafting")) is not bool(built.get("parallel_drafting")):
        word = "without" if built.get("parallel_drafting") else "with"
        yield f"{SPECULATION} is {word} parallel_drafting"
    drafter = drafter_model(chosen)
    if drafter:
        yield from _model("drafter", built, drafter, f'"model" of {SPECULATION}')


def _model(role: str, built: Document, named: str, where: str) -> Iterator[str]:
    """How the model that ``where`` names differs from the image's."""
    if is_s3_uri(named):
        return  # its files are not readable here
    if not is_folder_path(named):
        own, is_id = built.get(role), HUB_ID.fullmatch(named)
        if is_id and isinstance(own, str) and own.casefold() != named.casefold():
            yield f"{where} is {named}"
        return
    facts = built.get("facts")
    known = facts.get(role) if isinstance(facts, dict) else None
    found = _facts(_object(Path(named) / "config.json"))
    for name, value in (known if isinstance(known, dict) else {}).items():
        if name in _NAMES and found.get(name, value) != value:
            yield f"{where} is {named}, whose {_NAMES[name]} is {found[name]}, not {value}"


def _facts(config: Document) -> Document:
    """The facts in a config.json that ``pair.json`` has too, also of a nested text model."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    found = {name: text[name] for name in _NAMES if isinstance(text.get(name), int)}
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        found["architecture"] = architectures[0]
    return found


def _object(file: Path) -> Document:
    """The object in a JSON file; empty if there is none."""
    try:
        return read_json("", file)
    except InvalidEnvironment:
        return {}


_SWITCHES = frozenset(
    PREFIX + flag
    for flag in (
        "ENFORCE_EAGER", "TRUST_REMOTE_CODE", "ENABLE_PREFIX_CACHING", "ENABLE_CHUNKED_PREFILL",
        "ENABLE_EXPERT_PARALLEL", "ENABLE_AUTO_TOOL_CHOICE", "ENABLE_LORA", "ASYNC_SCHEDULING",
        "DISABLE_LOG_STATS",
    )
)  # fmt: skip
_PROMPTS_IN_LOGS = (f"{PREFIX}ENABLE_LOG_REQUESTS", f"{PREFIX}ENABLE_LOG_OUTPUTS",
                    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE")  # fmt: skip


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


_COUNT = (re.compile(r"0*[1-9]\d*", re.ASCII).fullmatch, "a whole number of at least 1")
_TOKENS = r"(?=.*[1-9])\d+(\.\d+)?[kKmMgGtT]?"
"""vLLM's notations of a number of tokens: 16384, 16k, 16K."""
_VALUES: dict[str, tuple[Callable[[str], object], str]] = {
    f"{PREFIX}TENSOR_PARALLEL_SIZE": _COUNT,
    f"{PREFIX}PIPELINE_PARALLEL_SIZE": _COUNT,
    f"{PREFIX}DATA_PARALLEL_SIZE": _COUNT,
    f"{PREFIX}MAX_NUM_SEQS": _COUNT,
    f"{PREFIX}MAX_MODEL_LEN": (
        re.compile(rf"-1|auto|{_TOKENS}", re.ASCII).fullmatch,
        "a number of tokens: 16384, 16k or auto",
    ),
    f"{PREFIX}MAX_NUM_BATCHED_TOKENS": (
        re.compile(_TOKENS, re.ASCII).fullmatch,
        "a number of tokens: 8192 or 8k",
    ),
    # vLLM 0.28.0 accepts and ignores unknown values of this one.
    f"{PREFIX}MODEL_IMPL": (
        re.compile("auto|vllm|transformers|terratorch").fullmatch,
        "one of auto, vllm, transformers, terratorch",
    ),
    f"{PREFIX}GPU_MEMORY_UTILIZATION": (_is_share, "a number above 0 and at most 1"),
}
"""Variable -> whether a value is valid, and what is valid."""
_K = "num_speculative_tokens"
_K_IS_OPTIONAL = ("suffix", "mtp")
_NEED_DRAFTER = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "dflash")
_LAST_PORT = 65535
_LONGEST_SHOWN = 200

_ONE_VARIABLE = f"set {SPECULATION} with method, model and {_K} instead"
_UNCHECKED = {
    f"{PREFIX}CONFIG": "set each argument of the file as its own variable",
    f"{PREFIX}SPEC_METHOD": _ONE_VARIABLE,
    f"{PREFIX}SPEC_MODEL": _ONE_VARIABLE,
    f"{PREFIX}SPEC_TOKENS": _ONE_VARIABLE,
}
"""Other ways to pass arguments to vLLM, unknown to the checks and to the key of a warm start."""


SAFE_FORMATS = frozenset(
    ("auto", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer",
     "runai_streamer_sharded", "sharded_state", "mistral", "modelexpress", "dummy")
)  # fmt: skip
"""Values of vLLM's ``--load-format`` that read safetensors files or none. The others read pickles
(``pt``, ``npcache``, ``hf``) or serialized modules (``tensorizer``)."""
_REMOTE_CODE = re.compile(r"trust[-_]?remote[-_]?code", re.IGNORECASE)
_NO = ("false", "0", "null", "none")
_NESTED_FORMAT = re.compile(r"load[-_]?format[\"'\\\s]*[:=][\"'\\\s]*([\w.-]*)", re.IGNORECASE)


def trusts_remote_code(name: str, value: str) -> bool:
    """Whether the variable lets vLLM run code of a model's repository: by its name, or by a key in
    its value, as in ``SM_VLLM_HF_OVERRIDES``."""
    name = canonical_name(name)
    if _REMOTE_CODE.search(name) and not name.startswith(NEGATION):
        return value.strip().lower() not in _NO
    after = (
        text[found.end() :].lstrip("\"'\\ \t\n:=,")
        for text in _spellings(name, value)
        for found in _REMOTE_CODE.finditer(text)
    )
    return any(not rest.lower().startswith(_NO) for rest in after)


def unsafe_load_format(name: str, value: str) -> str | None:
    """The load format in the variable that reads other files than safetensors, if it has one: as
    its value, or by a key anywhere in it, such as ``draft_load_config`` of
    ``SM_VLLM_SPECULATIVE_CONFIG``, with which vLLM 0.28.0 loads the drafter
    (config/speculative.py:215)."""
    formats = [value] if canonical_name(name) == LOAD_FORMAT else []
    for text in _spellings(name, value):
        formats += _NESTED_FORMAT.findall(text)
    plain = (text.strip().lower() for text in formats)
    return next((text for text in plain if text not in SAFE_FORMATS and text not in _NO), None)


def _spellings(name: str, value: str) -> list[str]:
    """The value as it is written, and its JSON without escapes, which hide the name of a key."""
    spellings = [value]
    for token in tokens_of(flag_of(name), value):
        with contextlib.suppress(ValueError, RecursionError):
            spellings.append(without_escapes(token))
    return spellings


def check(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment for the first invalid variable."""
    environment = normalized(environment)
    check_names(environment)
    for name, value in sorted(environment.items()):
        load_format = unsafe_load_format(name, value) if name.startswith(PREFIX) else None
        if load_format is not None:
            shown = load_format[:_LONGEST_SHOWN]
            what = f"{name} {shown}" if name == LOAD_FORMAT else f"load format {shown} in {name}"
            raise InvalidEnvironment(
                f"{what} reads other weights than safetensors",
                f"remove it, or set one of {', '.join(sorted(SAFE_FORMATS))}",
            )
        if trusts_remote_code(name, value):
            raise InvalidEnvironment(
                f"{name} lets code from the model's repository run; this container never does",
                "remove it, and use a model that this vLLM version supports itself",
            )
        is_valid, expected = _VALUES.get(name, (None, ""))
        if is_valid and not is_valid(value.strip()):
            raise InvalidEnvironment(f"{name} is {value!r}", f"set it to {expected}")
        if name in _SWITCHES or name.startswith(NEGATION):
            check_switch(name, value)
        if name in _UNCHECKED:
            message = f"{name} is not supported, because its value would bypass these checks"
            raise InvalidEnvironment(message, _UNCHECKED[name])
        if name in _PROMPTS_IN_LOGS and value.strip().lower() not in ("false", "0"):
            raise InvalidEnvironment(
                f"{name} writes prompts into the log", "remove it: logs must not hold prompts"
            )
    if SPECULATION in environment:
        _check_speculation(environment)
    port = str(port_of(environment))
    chosen = environment.get(f"{PREFIX}PORT", port)
    if chosen.strip() != port:
        raise InvalidEnvironment(
            f"{PREFIX}PORT is {chosen}, but SageMaker uses port {port}", f"remove {PREFIX}PORT"
        )


def port_of(environment: Mapping[str, str]) -> int:
    """The port that SageMaker uses: its variable, else 8080."""
    text = environment.get(PORT_VARIABLE) or str(DEFAULT_PORT)
    return whole_number(PORT_VARIABLE, text, least=1, most=_LAST_PORT)


def _check_speculation(environment: Mapping[str, str]) -> None:
    config = _speculation(environment)
    method, k = config.get("method"), config.get(_K)
    # Without counters, neither /ping nor a client knows whether the drafter drafts.
    uncounted = f"{PREFIX}DISABLE_LOG_STATS"
    if environment.get(uncounted, "false").strip().lower() != "false":
        raise InvalidEnvironment(
            f"{uncounted} turns off the counters that show whether the drafter works",
            f"remove it, or {SPECULATION}",
        )
    if k is None and str(method).endswith(_K_IS_OPTIONAL):
        return
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        has = f"has {_K} {json.dumps(k)}" if _K in config else f"has no {_K}"
        raise InvalidEnvironment(f"{SPECULATION} {has}", "set it to a whole number of at least 1")
    if method is None and config.get("model"):
        raise InvalidEnvironment(
            f"{SPECULATION} has a model and no method; vLLM would guess one from the name",
            'add "method": "eagle3"; for P-EAGLE also "parallel_drafting": true',
        )
    if method in _NEED_DRAFTER and not config.get("model"):
        raise InvalidEnvironment(
            f"{SPECULATION} has the method {method} and no drafter",
            'set "model" to the head\'s Hugging Face ID or folder',
        )


def _speculation(environment: Mapping[str, str]) -> Document:
    text = environment[SPECULATION]
    try:
        return read_speculative_config(environment)
    except InvalidJson as error:
        fix = "correct the JSON"
        if "'" in text or (":" in text and '"' not in text):
            fix = 'use double quotes for names and strings: {"method": ...}'
        where = "in" if error.offset is None else f"at character {error.offset + 1} of"
        raise InvalidEnvironment(f"{SPECULATION} {error.why} {where} {_short(text)}", fix) from None
    except ValueError:
        raise InvalidEnvironment(
            f"{SPECULATION} is not a JSON object: {_short(text)}",
            'such as {"method": "eagle3", "model": ..., "num_speculative_tokens": 7}',
        ) from None


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")
