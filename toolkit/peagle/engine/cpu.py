"""Adapt a plan for vLLM on a CPU: the environment, and links to the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from peagle.data import weights_folder
from peagle.engine.machine import Machine
from peagle.errors import UserError
from peagle.planning.plan import Plan
from peagle.store import private_folder
from peagle_serve.contract import (
    ENFORCE_EAGER,
    ML_ROOT,
    MODEL,
    MODEL_FOLDER,
    PREFIX,
    SPECULATION,
    is_s3_uri,
)
from peagle_serve.environment import read_speculative_config

LARGEST_SHARE_OF_MEMORY = 0.5
"""The largest share of memory for weights; the KV cache, vLLM and other programs use the rest."""

_QUANTIZATION = f"{PREFIX}QUANTIZATION"
_DROPPED: dict[str, str] = {
    f"{PREFIX}KV_CACHE_DTYPE": "on a CPU the KV cache uses the model's dtype",
    _QUANTIZATION: "the CPU engine runs unquantized weights",
    f"{PREFIX}GPU_MEMORY_UTILIZATION": "there is no GPU memory",
    f"{PREFIX}ENABLE_EXPERT_PARALLEL": "a CPU has one rank",
    f"{PREFIX}ATTENTION_BACKEND": "the CPU has one attention backend of its own",
    f"{PREFIX}MAX_CUDAGRAPH_CAPTURE_SIZE": "there are no CUDA graphs",
    f"{PREFIX}CUDAGRAPH_CAPTURE_SIZES": "there are no CUDA graphs",
    f"{PREFIX}COMPILATION_CONFIG": "it is for a GPU",
    f"{PREFIX}MOE_BACKEND": "its kernels need a GPU",
    "HF_HOME": "all weights are on this machine",
}
_DROPPED_PREFIXES: dict[str, str] = {
    "VLLM_USE_FLASHINFER": "FlashInfer needs a GPU",
    "VLLM_FLASHINFER": "FlashInfer needs a GPU",
    "VLLM_ATTENTION_BACKEND": "the CPU has one attention backend of its own",
    "CUDA_": "there is no GPU",
    "NCCL_": "there is no GPU",
}
_ONE_RANK = (
    f"{PREFIX}TENSOR_PARALLEL_SIZE",
    f"{PREFIX}PIPELINE_PARALLEL_SIZE",
    f"{PREFIX}DATA_PARALLEL_SIZE",
)
_ADDED: dict[str, tuple[str, str]] = {
    "HF_HUB_OFFLINE": ("1", "all weights are on this machine"),
    "VLLM_NO_USAGE_STATS": ("1", "usage statistics are off"),
    f"{PREFIX}DISTRIBUTED_EXECUTOR_BACKEND": ("uni", "one process fewer, a third faster to start"),
    f"{PREFIX}BLOCK_SIZE": (
        "32",
        "the prefix cache holds whole blocks; vLLM's 128 on a CPU would exceed short conversations",
    ),
    "VLLM_ENABLE_V1_MULTIPROCESSING": ("0", "required by the uni backend on a CPU"),
}
_UNCOMPILED = {ENFORCE_EAGER: ("true", "compilation takes a minute and gains little on a CPU")}
_COMPILED = (
    "the model is compiled, as on a GPU: starting takes a minute longer, unless a warm start is "
    "restored"
)
_DRAFT_SETTINGS_DROPPED: dict[str, str] = {
    "quantization": "the CPU engine runs unquantized weights",
    "attention_backend": "the CPU has one attention backend of its own",
    "rejection_sample_method": "the CPU engine has the standard sampler only",
}
_OF_SYNTHETIC = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
"""Settings that vLLM refuses without the synthetic sampler."""

_NOT_INSTALLED = {"suffix": "Arctic Inference"}
_KV_CACHE_SHARE = 16
_KV_CACHE_LARGEST_GIB = 8


def for_cpu(
    environment: Mapping[str, str], machine: Machine, compiled: bool = False
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment for the CPU engine, and one note for each change. Settings that a CPU
    supports stay as they are. The model is compiled only if ``compiled``."""
    kept: dict[str, str] = {}
    notes: list[str] = []
    for name, value in environment.items():
        by_prefix = (why for prefix, why in _DROPPED_PREFIXES.items() if name.startswith(prefix))
        because = _DROPPED.get(name) or next(by_prefix, None)
        if because is None:
            kept[name] = value
        else:
            notes.append(f"{name}={value} is dropped: {because}")
    for name in _ONE_RANK:
        if kept.get(name, "1") != "1":
            notes.append(f"{name}={kept[name]} is set to 1: a CPU has one rank")
            kept[name] = "1"
    _limit_speculation(kept, notes)
    # vLLM allocates the KV cache at start: a sixteenth of memory, 1 to 8 whole GiB.
    gib = max(1, min(_KV_CACHE_LARGEST_GIB, machine.memory_bytes // 2**30 // _KV_CACHE_SHARE))
    threads = str(max(1, machine.cores - 1))
    added = {
        **_ADDED,
        "VLLM_CPU_KVCACHE_SPACE": (str(gib), "GiB for the KV cache"),
        "OMP_NUM_THREADS": (threads, "one core is for the API server"),
        **({} if compiled else _UNCOMPILED),
    }
    for name, (value, because) in added.items():
        if name not in kept:
            kept[name] = value
            notes.append(f"{name}={value}: {because}")
    if compiled and ENFORCE_EAGER not in kept:
        notes.append(_COMPILED)
    return kept, tuple(notes)


def cannot_run(environment: Mapping[str, str], weight_bytes: int, machine: Machine) -> str | None:
    """Why this machine's CPU engine cannot run ``environment``; ``None`` if it can.
    ``weight_bytes`` is the size of the local weights of target and drafter."""
    if machine.system != "Linux":
        return f"vLLM for CPUs supports Linux only; this is {machine.system}"
    for what, path in model_paths(environment).items():
        if is_s3_uri(path):
            return f"its {what} ({path}) is streamed, and the CPU engine has no streamer"
        if not path.startswith(f"{ML_ROOT}/"):
            return f"its {what} ({path}) would have to be downloaded"
    if _QUANTIZATION in environment:
        return f"its weights are quantized ({environment[_QUANTIZATION]})"
    method = valid_speculation(environment).get("method")
    if method in _NOT_INSTALLED:
        return f"its method {method} needs {_NOT_INSTALLED[method]}, which the CPU engine lacks"
    allowed = machine.memory_bytes * LARGEST_SHARE_OF_MEMORY
    if weight_bytes > allowed:
        return (
            f"its weights take {weight_bytes / 2**30:.1f} GiB; the limit is half of this machine's "
            f"memory, {allowed / 2**30:.1f} GiB"
        )
    return None


def model_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """The paths that vLLM loads: ``target``, and ``drafter`` if it has weights."""
    paths = {"target": environment.get(MODEL, MODEL_FOLDER)}
    drafter = valid_speculation(environment).get("model")
    if isinstance(drafter, str):
        paths["drafter"] = drafter
    return paths


def valid_speculation(environment: Mapping[str, str]) -> dict[str, Any]:
    """vLLM's speculative configuration; empty also for an invalid one, which the engine itself
    rejects."""
    with suppress(ValueError):
        return read_speculative_config(environment)
    return {}


def _limit_speculation(kept: dict[str, str], notes: list[str]) -> None:
    config = valid_speculation(kept)
    before = dict(config)
    for key, because in _DRAFT_SETTINGS_DROPPED.items():
        if key in config and (key != "rejection_sample_method" or config[key] == "synthetic"):
            notes.append(f"{key} of the speculation is dropped: {because}")
            del config[key]
            for setting in _OF_SYNTHETIC if key == "rejection_sample_method" else ():
                config.pop(setting, None)
    if config.get("draft_tensor_parallel_size", 1) != 1:
        notes.append("draft_tensor_parallel_size is set to 1: a CPU has one rank")
        config["draft_tensor_parallel_size"] = 1
    if config != before:
        kept[SPECULATION] = json.dumps(config, ensure_ascii=False)


def local_folders(plan: Plan) -> dict[str, Path]:
    """Path in the container -> folder on this machine, for all local weights. Raises UserError for
    a missing folder."""
    folders = {}
    for weights in (plan.target.weights, plan.drafter.weights if plan.drafter else None):
        if weights is None or weights.kind != "directory":
            continue
        folder = folders[weights.engine_path] = weights_folder(weights.location)
        if not folder.is_dir():
            message = f"the plan's weights {weights.location} are not on this machine"
            fix = "make the plan on this machine, or copy the folder"
            raise UserError(message, fix, code="no-such-folder")
    return folders


def link_folders(folders: Mapping[str, Path], ml_root: Path) -> None:
    """Link folders, by their paths in the container, below ``ml_root``: its ``/opt/ml``."""
    for path, folder in folders.items():
        link = ml_root / PurePosixPath(path).relative_to(ML_ROOT)
        private_folder(link.parent)
        link.symlink_to(folder.resolve(), target_is_directory=True)
