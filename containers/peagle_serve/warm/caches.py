"""The folders of artifacts and compile caches, and the engine's variables for them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from peagle_serve.contract import CACHE_VARIABLE, MODEL_FOLDER, WARM_FOLDER, WARM_FOLDER_VARIABLE
from peagle_serve.weights import ml_root, real_path

LARGER_DISK = f"free some space there, or set {CACHE_VARIABLE} to a folder of a larger disk"


_USER = os.geteuid()
_SHARED = "/tmp"  # nosec B108 # a folder there must be this user's own
_PRIVATE = 0o700


def artifact_folder(environment: Mapping[str, str]) -> Path:
    """The folder of artifacts: next to the weights, unless the user sets another."""
    named = environment.get(WARM_FOLDER_VARIABLE) or f"{MODEL_FOLDER}/{WARM_FOLDER}"
    return Path(real_path(named, ml_root(environment)))


def has_artifacts(environment: Mapping[str, str]) -> bool:
    """Whether that folder exists, or the user sets it."""
    named = environment.get(WARM_FOLDER_VARIABLE)
    return bool(named) or os.path.isdir(artifact_folder(environment))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder with a subfolder for every key; without a home, one of this user in ``/tmp``."""
    home, base = environment.get("HOME"), environment.get("XDG_CACHE_HOME")
    base = base or (f"{home}/.cache" if home else "")
    own = f"{base}/peagle" if base else f"{environment.get('TMPDIR') or _SHARED}/peagle-{_USER}"
    return Path(environment.get(CACHE_VARIABLE) or own).absolute() / WARM_FOLDER


def make_cache_folder(environment: Mapping[str, str]) -> Path:
    """The same folder, created if needed. The engine loads code from it, so it belongs to this user
    and no other user may write there; the folder that the user names is theirs to protect.

    Raises OSError, with that as its reason.
    """
    folder = cache_folder(environment)
    named = environment.get(CACHE_VARIABLE)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=_PRIVATE)
        found = path.lstat()
        private = found.st_uid == _USER and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISREG(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if not (private or (named and path == folder.parent)):
            raise PermissionError(errno.EPERM, "other users may write there", str(path))
    return folder


def archive_of(place: Path) -> Path:
    """The archive that the key's folder ``place`` is packed into."""
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
"""Variable -> folder: all caches of vLLM and of its kernel libraries."""

_FOR_CPU = {"VLLM_USE_AOT_COMPILE": "0"}
"""On a CPU vLLM 0.28.0 saves compiled functions that it cannot load ("'function' object has no
attribute 'finalize_loading'"), because its loader expects those of another backend, and compiles
again. Without them torch's caches are used: 7 s instead of 29 s of compiling the tiny pair."""


def variables(folder: Path, environment: Mapping[str, str], for_cpu: bool) -> dict[str, str]:
    """The variables of the caches below ``folder``, except those that the user has set."""
    found = {name: str(folder / below) for name, below in FOLDERS.items()}
    found |= _FOR_CPU if for_cpu else {}
    return {name: value for name, value in found.items() if not environment.get(name)}


def folders_set_by_user(environment: Mapping[str, str]) -> list[str]:
    """The cache variables that the user has set; those are neither collected nor restored."""
    return sorted(name for name in FOLDERS if environment.get(name))
