"""The subject of an artifact: what compiled code depends on, and the key made of it.

The subject has the image, the installed software, the device, the pair, and the engine's variables
except those listed here, which change nothing that is compiled. Unknown variables count: compiling
once more is better than running code for another configuration. Arguments that load the user's code
(``--tool-parser-plugin``) count, and so do those in vLLM's cache keys (``--generation-config``).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peagle_serve.contract import (
    ARTIFACT_FORMAT,
    IMAGE_CONTENT_VARIABLE,
    IMAGE_DIGEST_VARIABLE,
    MODEL,
    PREFIX,
)
from peagle_serve.environment import read_speculative_config
from peagle_serve.folder import CONFIGURATIONS, is_folder_path
from peagle_serve.json_reader import DEFAULT, read_regular
from peagle_serve.logs import Redactor, is_secret
from peagle_serve.safetensors import first_names
from peagle_serve.variable_names import NEGATION
from peagle_serve.warm.caches import FOLDERS
from peagle_serve.weights import drafter_model

_ENDING = ".dist-info"
_TORCH_FOR_CPU = re.compile(r"torch-[^-]*\+cpu", re.IGNORECASE)


def distributions(places: Iterable[str] | None = None) -> list[str]:
    """``name-version`` of all distributions in ``places`` (default ``sys.path``), sorted."""
    found = set()
    for place in sys.path if places is None else places:
        try:
            with os.scandir(place or ".") as entries:
                names = [entry.name for entry in entries]
        except OSError:
            continue
        found |= {name[: -len(_ENDING)] for name in names if name.endswith(_ENDING)}
    return sorted(found)


def software_digest(installed: Iterable[str]) -> str:
    """SHA-256 over these distributions, Python's version and the kind of machine."""
    lines = [*sorted(installed), platform.python_version(), os.uname().machine]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_for_cpu(installed: Iterable[str]) -> bool:
    return any(_TORCH_FOR_CPU.fullmatch(one) for one in installed)


_ARGUMENTS = frozenset(
    PREFIX + flag
    for flag in (
        "HOST", "PORT", "UDS", "ROOT_PATH", "ENABLE_SSL_REFRESH", "ALLOWED_ORIGINS",
        "ALLOWED_METHODS", "ALLOWED_HEADERS", "ALLOW_CREDENTIALS", "MIDDLEWARE",
        "SERVED_MODEL_NAME", "RESPONSE_ROLE", "RETURN_TOKENS_AS_TOKEN_IDS",
        "ENABLE_PROMPT_TOKENS_DETAILS", "ENABLE_FORCE_INCLUDE_USAGE", "ENABLE_PER_REQUEST_METRICS",
        "ENABLE_SERVER_LOAD_TRACKING", "ENABLE_TOKENIZER_INFO_ENDPOINT",
        "ENABLE_REQUEST_ID_HEADERS", "DISABLE_FASTAPI_DOCS", "ENABLE_OFFLINE_DOCS",
        "FINGERPRINT_MODE", "FINGERPRINT_VALUE", "CHAT_TEMPLATE", "CHAT_TEMPLATE_CONTENT_FORMAT",
        "TRUST_REQUEST_CHAT_TEMPLATE", "DEFAULT_CHAT_TEMPLATE_KWARGS", "ENABLE_AUTO_TOOL_CHOICE",
        "EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE", "TOOL_CALL_PARSER", "TOOL_SERVER",
        "REASONING_PARSER", "ENABLE_LOG_REQUESTS", "ENABLE_LOG_OUTPUTS", "ENABLE_LOG_DELTAS",
        "ENABLE_LOGGING_ITERATION_DETAILS", "AGGREGATE_ENGINE_LOGGING", "DISABLE_LOG_STATS",
        "DISABLE_LOG_REQUESTS", "DISABLE_ACCESS_LOG_FOR_ENDPOINTS", "DISABLE_UVICORN_ACCESS_LOG",
        "UVICORN_LOG_LEVEL", "LOG_CONFIG_FILE", "LOG_ERROR_STACK", "MAX_LOG_LEN",
        "SHOW_HIDDEN_METRICS_FOR_VERSION", "OTLP_TRACES_ENDPOINT", "COLLECT_DETAILED_TRACES",
        "KV_CACHE_METRICS", "KV_CACHE_METRICS_SAMPLE",
    )
)  # fmt: skip
"""Arguments about the network, access, responses, chats and logs."""

_VLLM_VARIABLES = frozenset(
    f"VLLM_{name}"
    for name in (
        "HOST_IP", "PORT", "RPC_BASE_PATH", "CACHE_ROOT", "CONFIG_ROOT", "ASSETS_CACHE",
        "ASSETS_CACHE_MODEL_CLEAN", "DEBUG_DUMP_PATH", "DEBUG_LOG_API_SERVER_RESPONSE",
        "LOG_STATS_INTERVAL", "RINGBUFFER_WARNING_INTERVAL", "DO_NOT_TRACK", "NO_USAGE_STATS",
        "USAGE_STATS_SERVER", "SERVER_DEV_MODE", "SKIP_MODEL_NAME_VALIDATION",
        "HTTP_TIMEOUT_KEEP_ALIVE", "ENGINE_ITERATION_TIMEOUT_S", "EXECUTE_MODEL_TIMEOUT_SECONDS",
        "WORKER_SHUTDOWN_TIMEOUT_SECONDS", "KEEP_ALIVE_ON_ENGINE_DEATH", "IMAGE_FETCH_TIMEOUT",
        "VIDEO_FETCH_TIMEOUT", "AUDIO_FETCH_TIMEOUT", "CPU_KVCACHE_SPACE",
    )
)  # fmt: skip
"""vLLM excludes these from its cache keys (``envs.compile_factors``). Others that it excludes are
missing here, because they select a kernel or a model."""

_COMPILERS = ("TORCHINDUCTOR_", "TRITON_", "TORCH_", "PYTORCH_", "NVCC_")
"""Prefixes of the compilers' variables, which all count."""

_IGNORED_PREFIXES = (f"{PREFIX}SSL_", "VLLM_LOGGING_", "VLLM_MEDIA_")


def affects_compilation(name: str) -> bool:
    """Whether the variable may change what the engine compiles."""
    if not name.startswith((PREFIX, "VLLM_", *_COMPILERS)) or is_secret(name) or name in FOLDERS:
        return False
    plain = name.replace(NEGATION, PREFIX, 1)
    return plain not in _ARGUMENTS | _VLLM_VARIABLES and not plain.startswith(_IGNORED_PREFIXES)


_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
_QUERY_SECONDS = 60
_CPU_MODEL = ("model name", "CPU part", "Processor")
_CPU_FLAGS = ("flags", "Features")


class UnknownDevice(Exception):
    """The device cannot be determined; the message says why."""


def cpu_device(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """The processor's name and a digest of its instruction sets, for which code is compiled.

    Raises UnknownDevice.
    """
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError as error:
        raise UnknownDevice(str(error)) from None
    pairs = (line.partition(":") for line in first.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    flags = next((facts[name] for name in _CPU_FLAGS if name in facts), "")
    if not flags:
        raise UnknownDevice(f"{cpuinfo} does not list the processor's instruction sets")
    model = next((facts[name] for name in _CPU_MODEL if name in facts), "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return {"cpu": model, "instructions": digest}


def gpu_device(visible: str = "") -> dict[str, Any]:
    """The GPUs' names and compute capabilities, the number in use, and the driver's branch.

    Only the major version of the driver counts: compiled code runs on every driver of a branch,
    and CUDA separates its own caches by driver. ``visible`` is ``CUDA_VISIBLE_DEVICES``. Raises
    UnknownDevice.
    """
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, check=False, timeout=_QUERY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownDevice(f"nvidia-smi cannot be run: {error}") from None
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    if done.returncode or not rows or any(len(row) != 3 for row in rows):
        output = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise UnknownDevice(f"nvidia-smi reports no GPU: {output[:200]}")
    used = len(visible.split(",")) if visible else len(rows)
    found = [f"{name} ({capability})" for name, capability, _ in rows]
    return {"gpus": found, "used": used, "driver": rows[0][2].partition(".")[0]}


QUANTIZATION = "hf_quant_config.json"
"""Some checkpoints describe their quantization in this file; vLLM reads it too."""
_KEY_LENGTH = 32
_LONGEST_SHOWN = 80
_MOST_SHOWN = 12
"""Names of another subject in a message."""


def subject_of(environment: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, Any]:
    """The subject of this container.

    ``environment`` is as the user set it, ``chosen`` has the model and its paths resolved. The
    subject holds no secret. Raises UnknownDevice.
    """
    installed = distributions()
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return {
        "format": ARTIFACT_FORMAT,
        "image": environment.get(IMAGE_CONTENT_VARIABLE)
        or environment.get(IMAGE_DIGEST_VARIABLE, ""),
        "software": software_digest(installed),
        "device": cpu_device() if is_for_cpu(installed) else gpu_device(visible),
        "engine": engine_variables(environment),
        "pair": pair_of(chosen),
    }


def key_of(subject: Mapping[str, Any]) -> str:
    """The first 32 hexadecimal digits of the SHA-256 over the subject's canonical JSON."""
    return hashlib.sha256(canonical(subject)).hexdigest()[:_KEY_LENGTH]


def canonical(subject: Mapping[str, Any]) -> bytes:
    text = json.dumps(subject, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode()


def engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    redactor = Redactor(environment)
    names = sorted(name for name in environment if affects_compilation(name))
    return {name: redactor.text(environment[name]) for name in names}


def pair_of(chosen: Mapping[str, str]) -> dict[str, str | None]:
    """Target and drafter: the digest of their config.json, or their revision on the Hub."""
    drafter, revision = drafter_model(chosen), read_speculative_config(chosen).get("revision")
    return {
        "target": _model(chosen[MODEL], chosen.get(f"{PREFIX}REVISION")),
        "drafter": _model(drafter, revision) if drafter else None,
    }


def differences(subject: Mapping[str, Any], other: Any) -> list[str]:
    """How another subject differs from ``subject``, as short phrases."""
    if not isinstance(other, dict):
        return ["everything"]
    found = []
    if subject["image"] != other.get("image"):
        found.append(_image(subject["image"], other.get("image")))
    if subject["software"] != other.get("software"):
        found.append("the software")
    if subject["pair"] != other.get("pair"):
        models = [name for name in _changed(subject["pair"], other.get("pair"))
                  if name in subject["pair"]]  # fmt: skip
        found += [f"the {name}" for name in models] or ["the pair"]
    if subject["device"] != other.get("device"):
        theirs, ours = (device_text(one.get("device"))[:_LONGEST_SHOWN] for one in (other, subject))
        # CPUs of one name may differ in their instruction sets.
        both = f"another {ours}" if theirs == ours else f"{theirs}; here {ours}"
        found.append(f"the device ({both})")
    names = [name[:_LONGEST_SHOWN] for name in _changed(subject["engine"], other.get("engine"))]
    if names:
        found.append(f"the engine's arguments ({first_names(names, _MOST_SHOWN)})")
    return found or ["the format"]


def _model(path: str, revision: object) -> str:
    if not is_folder_path(path):
        return f"{path}@{revision or ''}"
    for name in CONFIGURATIONS:
        file, beside = Path(path) / name, Path(path) / QUANTIZATION
        if file.is_file():
            more = read_regular(beside, DEFAULT.size) if beside.is_file() else b""
            return hashlib.sha256(read_regular(file, DEFAULT.size) + more).hexdigest()
    return ""


def _image(ours: str, theirs: Any) -> str:
    """The phrase for a different image, with a fix if only one digest is known."""
    if bool(ours) is bool(theirs):
        return "the image"
    whose = "the artifact's" if ours else "this container's"
    return f"the image ({whose} digest is unknown: name images as NAME@sha256:...)"


def _changed(ours: dict[str, Any], theirs: Any) -> list[str]:
    other = theirs if isinstance(theirs, dict) else {}
    return sorted(name for name in {*ours, *other} if ours.get(name) != other.get(name))


def device_text(device: Any) -> str:
    """GPUs or CPU as text; "" where unknown."""
    facts = device if isinstance(device, dict) else {}
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        return f"{facts.get('used', len(gpus))} x {gpus[0]}, driver {facts.get('driver')}"
    return str(facts.get("cpu") or "")
