"""Checks of the environment, the image and the head, before vLLM starts.

vLLM rejects invalid values too, but only after its imports, which take half a minute, and with a
page of traceback instead of a line. The toolkit uses the same checks for plans and local engines.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle_serve.checkpoint import is_folder_path, read_json, read_tensors
from peagle_serve.contract import (
    CACHE_VARIABLE,
    DEFAULT_PORT,
    HUB_ID,
    MODEL,
    PORT_VARIABLE,
    PREFIX,
    ROOT_VARIABLE,
    SPECULATION,
    WARM_FOLDER_VARIABLE,
    InvalidEnvironment,
    read_number,
)
from peagle_serve.environment import (
    canonical_name,
    check_names,
    decode,
    make_flag,
    make_tokens,
    read_speculative_config,
)
from peagle_serve.heads import Head, problems
from peagle_serve.json_reader import InvalidJson
from peagle_serve.weights import drafter_model, loads_files

Document = dict[str, Any]
_LONGEST_SHOWN = 200
_LAST_PORT = 65535

_PROMPTS_IN_LOGS = (f"{PREFIX}ENABLE_LOG_REQUESTS", f"{PREFIX}ENABLE_LOG_OUTPUTS",
                    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE")  # fmt: skip


_K = "num_speculative_tokens"
_K_IS_OPTIONAL = ("suffix", "mtp")
_NEED_DRAFTER = ("eagle", "eagle3", "medusa", "mlp_speculator", "draft_model", "dflash")
CONFIG_FILE = f"{PREFIX}CONFIG"
_ONE_VARIABLE = f"set {SPECULATION} with method, model and {_K} instead"
_UNCHECKED = {
    CONFIG_FILE: "set each argument of the file as its own variable",
    f"{PREFIX}SPEC_METHOD": _ONE_VARIABLE,
    f"{PREFIX}SPEC_MODEL": _ONE_VARIABLE,
    f"{PREFIX}SPEC_TOKENS": _ONE_VARIABLE,
}
"""Other ways to pass arguments to vLLM, unknown to the checks and to the key of a warm start."""


def check(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment for the first invalid variable; names are ``normalized``. None runs
    code, reads pickles or bypasses these checks. Values of single arguments are vLLM's."""
    check_names(environment)
    for name, value in sorted(environment.items()):
        load_format = unsafe_load_format(name, value) if name.startswith(PREFIX) else None
        problem, fix = "", "remove it"
        if load_format is not None:
            problem = f" has load format {load_format[:_LONGEST_SHOWN]}: it reads other weights "
            problem += "than safetensors"
            fix = f"remove it, or set one of {', '.join(sorted(SAFE_FORMATS))}"
        elif trusts_remote_code(name, value):
            problem = " lets code from the model's repository run; this container never does"
            fix = "remove it, and use a model that this vLLM version supports itself"
        elif name in _UNCHECKED:
            problem = " is not supported, because its value would bypass these checks"
            fix = _UNCHECKED[name]
        elif name in _PROMPTS_IN_LOGS and value.strip().lower() not in ("false", "0"):
            problem = " writes prompts into the log, which must not hold them"
        if problem:
            raise InvalidEnvironment(name + problem, fix)
    if SPECULATION in environment:
        _check_speculation(environment)
    port, variable = str(read_port(environment)), f"{PREFIX}PORT"
    if (chosen := environment.get(variable, port)).strip() != port:
        raise InvalidEnvironment(
            f"{variable} is {chosen}, but SageMaker uses port {port}", f"remove {variable}"
        )


def read_port(environment: Mapping[str, str]) -> int:
    """The port that SageMaker uses: its variable, else 8080."""
    text = environment.get(PORT_VARIABLE) or str(DEFAULT_PORT)
    return read_number(PORT_VARIABLE, text, least=1, most=_LAST_PORT)


def _check_speculation(environment: Mapping[str, str]) -> None:
    try:
        config = read_speculative_config(environment)
    except InvalidJson as error:
        raise InvalidEnvironment(
            str(error), 'use double quotes for names and strings: {"method": ...}'
        ) from None
    except ValueError:
        raise InvalidEnvironment(
            f"{SPECULATION} is not a JSON object",
            'such as {"method": "eagle3", "model": ..., "num_speculative_tokens": 7}',
        ) from None
    method, k, uncounted = config.get("method"), config.get(_K), f"{PREFIX}DISABLE_LOG_STATS"
    # Without counters, neither /ping nor a client knows whether the drafter drafts.
    if environment.get(uncounted, "false").strip().lower() != "false":
        raise InvalidEnvironment(
            f"{uncounted} turns off the counters that show whether the drafter works",
            f"remove it, or {SPECULATION}",
        )
    if k is None and str(method).endswith(_K_IS_OPTIONAL):
        return
    problem = fix = ""
    if type(k) is not int or k < 1:
        problem = f"has {_K} {json.dumps(k)}"
        fix = "set it to a whole number of at least 1"
    elif method is None and config.get("model"):
        problem = "has a model and no method; vLLM would guess one from the name"
        fix = 'add "method": "eagle3"; for P-EAGLE also "parallel_drafting": true'
    elif method in _NEED_DRAFTER and not config.get("model"):
        problem = f"has the method {method} and no drafter"
        fix = 'set "model" to the head\'s Hugging Face ID or folder'
    if problem:
        raise InvalidEnvironment(f"{SPECULATION} {problem}", fix)


SAFE_FORMATS = frozenset(
    ("auto", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer",
     "runai_streamer_sharded", "sharded_state", "mistral", "modelexpress", "dummy")
)  # fmt: skip
"""Values of vLLM's ``--load-format`` that read safetensors files or none. The others read pickles
(``pt``, ``npcache``, ``hf``) or serialized modules (``tensorizer``)."""
_REMOTE_CODE, _LOAD_FORMAT = "trust_remote_code", "load_format"
_NO = ("false", "0", "null", "none")


def trusts_remote_code(name: str, value: str) -> bool:
    """Whether the variable lets vLLM run code of a model's repository: by its name, or by a key in
    its value, as in ``SM_VLLM_HF_OVERRIDES``."""
    return any(_trusts(key, member) for key, member in _settings(name, value))


def _trusts(key: str, member: Any) -> bool:
    is_named = key.endswith(_REMOTE_CODE) and key != f"no_{_REMOTE_CODE}"
    return is_named and str(member).strip().lower() not in _NO


def unsafe_load_format(name: str, value: str) -> str | None:
    """The load format in the variable that reads other files than safetensors, if it has one: as
    its value, or by a key anywhere in it, such as ``draft_load_config`` of
    ``SM_VLLM_SPECULATIVE_CONFIG``, with which vLLM 0.28.0 loads the drafter
    (config/speculative.py:215)."""
    members = [member for key, member in _settings(name, value) if key == _LOAD_FORMAT]
    plain = (str(member).strip().lower() for member in members)
    return next((text for text in plain if text not in SAFE_FORMATS and text not in _NO), None)


def _settings(name: str, value: str) -> Iterator[tuple[str, Any]]:
    """What a variable sets: its value by its name, or by each part of a name such as
    ``compilation_config.backend``, and the members of all objects in its JSON. Keys are in lower
    case, with underscores."""
    document: Any = value
    for key in reversed(canonical_name(name).removeprefix(PREFIX).split(".")):
        document = {key.rstrip("+"): document}  # the + adds to a list
    left = [document]
    for token in make_tokens(make_flag(name), value):
        with contextlib.suppress(ValueError):
            left.append(decode(token))
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            left += part.values()
            yield from ((key.lower().replace("-", "_"), member) for key, member in part.items())


_ALLOWED = (
    "SM_", "SAGEMAKER_", "VLLM_", "PEAGLE_", "HF_", "HUGGING_FACE_", "TRANSFORMERS_", "TOKENIZERS_",
    "TIKTOKEN_ENCODINGS_BASE", "AWS_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "NCCL_DEBUG", "OMP_NUM_THREADS", "PROCESS_AUTO_RECOVERY", "OPTION_", "SERVING_", "MODEL_",
    "LMI_", "RUNAI_STREAMER_", "LANG", "LC_", "TZ",
)  # fmt: skip
"""Beginnings of the variables of engines, plans, SageMaker's images and SDK. Any other may choose
code: of the interpreter, the linker and libc, of compilers and their caches, and of whatever a
library adds next."""

_REFUSED = frozenset(
    (
        *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),  # credential_process is a program
        *("HF_MODULES_CACHE", CACHE_VARIABLE, WARM_FOLDER_VARIABLE, ROOT_VARIABLE),
        # vLLM's own (0.28: envs.py and the modules that import by name).
        *("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_LOGGING_CONFIG_PATH", "VLLM_XLA_CACHE_PATH"),
        *("VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH", "VLLM_CUDA_COMPATIBILITY_PATH"),
        *("VLLM_NCCL_INCLUDE_PATH", "VLLM_RUST_FRONTEND_PATH", "VLLM_MODEL_REDIRECT_PATH"),
        *("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "VLLM_TUNED_CONFIG_FOLDER"),
        *("VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_LORA_RESOLVER_HF_REPO_LIST"),
        # Arguments that name a module or a class, or a configuration file that names one.
        *(PREFIX + name for name in (
            "MIDDLEWARE", "LOGITS_PROCESSORS", "LOGITS_PROCESSOR_PATTERN", "MODEL_CLASS_OVERRIDES",
            "LOG_CONFIG_FILE", "CONFIG", "UVICORN_LOG_CONFIG"
        )),
    )
)  # fmt: skip
"""Variables with an allowed beginning that choose code."""
_REFUSED_IF_ON = ("VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_FORCE_AOT_LOAD", "VLLM_USE_MODELSCOPE")

_CODE_KEYS = ("module_path", "_cls", "_qualname", "_plugin", "custom_class", "inductor_passes",
              "cache_dir")  # fmt: skip
"""How the arguments, and the keys of their JSON, end that name a module, a class or a folder with
compiled code: those of vLLM 0.28.0 that reach ``import_module``, ``__import__``,
``resolve_obj_by_qualname``, ``import_from_path`` or the compile cache."""
_CLASS_OR_CHOICE = ("backend", "method", "distributed_executor_backend")
"""Keys with one of vLLM's choices, or the dotted name of a class."""
_INDUCTOR = "inductor_compile_config"
"""Settings of torch's compiler by any name: texts and lists among them name compilers and trees of
sources (``cpp.cxx``, ``rocm.ck_dir``), and switches turn on remote caches."""


def code_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the variables that may choose the code that a process loads, sorted: anyone who
    sets one runs code as its user. An image sets many of them itself, and a container is isolated,
    so the entrypoint passes them on; in a plan they are a finding."""
    return tuple(sorted(name for name, value in environment.items() if _chooses_code(name, value)))


def check_no_code(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment if a variable may choose the code that the engine's process loads:
    for the sandbox and ``peagle local``, whose engines are processes of this machine."""
    if names := code_variables(environment):
        raise InvalidEnvironment(
            f"{', '.join(names)}: this chooses the code that a process of this machine loads, or "
            "is no variable of an engine",
            "remove it, or run the engine in a container (--engine docker)",
        )


def _chooses_code(name: str, value: str) -> bool:
    name, text = canonical_name(name), value.strip().lower()
    if not name.startswith(_ALLOWED) or name in _REFUSED:
        return True
    if name in _REFUSED_IF_ON:
        return text not in ("", "0", "false")
    return name.startswith(PREFIX) and any(_is_code(*setting) for setting in _settings(name, value))


def _is_code(key: str, member: Any) -> bool:
    if key in _CLASS_OR_CHOICE and isinstance(member, str):
        return "." in member or member in _CODE_KEYS
    if key == _INDUCTOR and isinstance(member, dict):
        return any(
            "remote_cache" in name or not (value is None or isinstance(value, bool | int | float))
            for name, value in member.items()
        )
    return key.endswith(_CODE_KEYS) or _trusts(key, member)


PAIR_FILE = Path(__file__).resolve().parent.parent / "pair.json"
"""Beside the entrypoint, in an image that was built from a plan."""


def check_built_for(chosen: Mapping[str, str], file: Path = PAIR_FILE) -> None:
    """Raise InvalidEnvironment if the image is for another pair according to ``file``. Refused are
    another target or drafter (by Hugging Face ID, or by the sizes in their config.json), another
    method, and another value of ``parallel_drafting``, with which a P-EAGLE head drafts badly
    without a warning. Another K and no speculation are allowed: measurements use both. ``chosen``
    is the environment with its model resolved (``with_model``)."""
    built = _read_object(file)
    if built.get("pair") and (difference := next(_differences(built, chosen), None)):
        raise InvalidEnvironment(
            f"this image was built for {built['pair']}, and {difference}",
            "use an image of that pair (peagle image build PAIR), or set this image's pair",
        )


def _differences(built: Document, chosen: Mapping[str, str]) -> Iterator[str]:
    speculation, method = read_speculative_config(chosen), built["method"]
    models = {"target": (MODEL, chosen[MODEL])}
    if SPECULATION in chosen:
        if method is None or speculation.get("method") not in (None, method):
            yield f"{SPECULATION} has the method {speculation.get('method')}, not {method}"
        if bool(speculation.get("parallel_drafting")) is not bool(built["parallel_drafting"]):
            yield f"{SPECULATION} has another parallel_drafting"
        models["drafter"] = (f'"model" of {SPECULATION}', drafter_model(chosen) or "")
    for role, (where, model) in models.items():
        if is_folder_path(model):
            config = _read_object(Path(model) / "config.json")
            sizes = _text_config(config)
            classes = config.get("architectures")
            if isinstance(classes, list) and classes:
                sizes = {**sizes, "architecture": classes[0]}
            for name, value in built["facts"].get(role, {}).items():
                if sizes.get(name, value) != value:
                    yield f"{where} is {model}, whose {name} is {sizes[name]}, not {value}"
        elif HUB_ID.fullmatch(model) and str(built[role]).casefold() != model.casefold():
            yield f"{where} is {model}"


def _text_config(config: Document) -> Document:
    """The part of a config.json with the sizes of the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _read_object(file: Path) -> Document:
    """The object in a JSON file; empty if there is none."""
    try:
        return read_json("", file)
    except InvalidEnvironment:
        return {}


def check_pair(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment if the head cannot work with the target that ``environment`` names:
    the problems that end in a crash after minutes, or in a head that drafts nonsense. Only for the
    method ``eagle3``, with both as complete folders of this machine: vLLM itself checks what is
    unreadable here (a model of the Hub, other formats) or differs between versions."""
    drafter, target_path = drafter_model(environment), environment[MODEL]
    if not (drafter and is_folder_path(drafter) and is_folder_path(target_path)):
        return
    speculation = read_speculative_config(environment)
    if speculation.get("method") != "eagle3" or not loads_files(environment):
        return
    files = Path(target_path) / "config.json", Path(drafter) / "config.json"
    if not all(file.is_file() for file in files):
        return
    target, config = (read_json(SPECULATION, file) for file in files)
    tensors = read_tensors(f'"model" of {SPECULATION}', Path(drafter))
    head = Head(config, tensors)
    is_parallel = speculation.get("parallel_drafting") is True
    for problem in problems(head, _text_config(target), is_parallel):
        raise InvalidEnvironment(f"head and target do not match: {problem}", problem.fix)
