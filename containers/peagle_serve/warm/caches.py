"""What the entrypoint tells the engine's middleware, where something is collected.

Where artefacts lie, and where what they hold is put.

The folders that an engine compiles into, and the variables that lead it there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from peagle_serve.contract import CACHE_VARIABLE, MODEL_FOLDER, WARM_FOLDER, WARM_FOLDER_VARIABLE
from peagle_serve.model import ml_root, real_path

LARGER_DISK = f"free some space there, or set {CACHE_VARIABLE} to a folder of a larger disk"


def artefact_folder(environment: Mapping[str, str]) -> Path:
    """The folder of artefacts: beside the weights, unless the user says where."""
    named = environment.get(WARM_FOLDER_VARIABLE) or f"{MODEL_FOLDER}/{WARM_FOLDER}"
    return Path(real_path(named, ml_root(environment)))


def has_artefact_folder(environment: Mapping[str, str]) -> bool:
    """Whether there is such a folder, as far as this process may see."""
    return os.path.isdir(artefact_folder(environment))


def is_folder_named(environment: Mapping[str, str]) -> bool:
    """Whether the user says where artefacts lie."""
    return bool(environment.get(WARM_FOLDER_VARIABLE))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder below which every key has one of its own."""
    named = environment.get(CACHE_VARIABLE)
    if not named:
        base = environment.get("XDG_CACHE_HOME")
        if not base:
            base = f"{environment.get('HOME') or '/tmp'}/.cache"
        named = f"{base}/peagle"
    return Path(named).absolute() / WARM_FOLDER


def archive_of(place: Path) -> Path:
    """Where what was collected in ``place``, a key's folder, is packed."""
    return place.with_name(f"{place.name}.collected.tar.gz")


FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "TILELANG_CACHE_DIR": "tilelang",
    "HUMMING_CACHE_DIR": "humming",
    "QUACK_CACHE_DIR": "quack",
}
"""Variable -> folder. All that vLLM and what it brings along for its kernels listen to."""

_FOR_CPU = {"VLLM_USE_AOT_COMPILE": "0"}
"""On a CPU vLLM 0.28.0 saves whole compiled functions and can never load them ("'function' object
has no attribute 'finalize_loading'"): its loader takes every one for the kind that only its own
backend makes, and the CPU compiles with torch's. It then traces and lowers all again. Without them
torch's own caches are asked, and hit: 7 s instead of 29 s of compiling, with the tiny pair."""


def variables(folder: Path, environment: Mapping[str, str], for_cpu: bool) -> dict[str, str]:
    """Where the engine finds its caches below ``folder``; what the user has set stays."""
    wanted = {name: str(folder / below) for name, below in FOLDERS.items()}
    wanted |= _FOR_CPU if for_cpu else {}
    return {name: value for name, value in wanted.items() if not environment.get(name)}


def folders_set_by_user(environment: Mapping[str, str]) -> list[str]:
    """The variables of caches that the user leads elsewhere; those are neither kept nor used."""
    return sorted(name for name in FOLDERS if environment.get(name))


def is_cache_path(parts: Iterable[str]) -> bool:
    """Whether a path below the folder is in one of the caches."""
    return next(iter(parts), "") in FOLDERS.values()
