"""Variables that choose the code that a process loads: anyone who sets one runs code as its user.

The sandbox and ``peagle local`` refuse them for an engine that is a process of this machine; in a
plan they are a finding. A container is isolated, and its image sets most of them itself, so the
entrypoint passes them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peagle_serve.contract import (
    CACHE_VARIABLE,
    PREFIX,
    ROOT_VARIABLE,
    WARM_FOLDER_VARIABLE,
    InvalidEnvironment,
)
from peagle_serve.environment import canonical_name
from peagle_serve.json_reader import InvalidJson, read

PREFIXES = ("PYTHON", "LD_", "DYLD_", "GCONV_", "BASH_FUNC_", "OMPI_MCA_")
"""Of the interpreter, the dynamic linker and libc."""

NAMES = frozenset(
    (
        # Programs that are started, and where they look.
        *("PATH", "HOME", "SHELL", "ENV", "BASH_ENV", "IFS", "CC", "CXX", "CUDAHOSTCXX"),
        *("CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
        *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "NVCC_PREPEND_FLAGS"),
        *("CUDACXX", "PYTORCH_NVCC", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"),
        *("TRITON_CUOBJDUMP_PATH", "TRITON_NVDISASM_PATH", "TRITON_HIP_LLD_PATH"),
        # Trees of sources, headers and libraries that generated kernels are built with.
        *("TORCHINDUCTOR_CUTLASS_DIR", "TORCHINDUCTOR_CK_DIR", "HALIDE_LIB", "HALIDE_INCLUDE"),
        *("ROCM_PATH", "ONEAPI_ROOT", "CONDA_PREFIX", "OMP_PREFIX", "CUDNN_HOME", "CUDNN_PATH"),
        *("CUDNN_LIBRARY", "NVSHMEM_LIB_DIR", "ROCSHMEM_LIB_DIR"),
        # Libraries and modules.
        *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GLIBC_TUNABLES"),
        *("OMP_TOOL_LIBRARIES", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"),
        *("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "UCX_MODULE_DIR"),
        *("TRITON_LIBCUDA_PATH", "TRITON_LIBDEVICE_PATH", "TRITON_PLUGIN_PATHS"),
        *("TRITON_LIBHIP_PATH", "TRITON_CUPTI_LIB_PATH", "TRITON_PASS_PLUGIN_PATH"),
        *("LLVM_PASS_PLUGIN_PATH", "TRITON_CACHE_MANAGER", "TRITON_REMOTE_CACHE_BACKEND"),
        # Caches of compiled code and pickles, on this machine and on Redis servers.
        *("TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        *("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR"),
        *("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "CUDA_CACHE_PATH"),
        *("FLASHINFER_WORKSPACE_BASE", "FLASHINFER_CUBIN_DIR", "TVM_FFI_CACHE_DIR"),
        *("NUMBA_CACHE_DIR", "OUTLINES_CACHE_DIR", "LMCACHE_CONFIG_FILE", "VLLM_XLA_CACHE_PATH"),
        *("TORCHINDUCTOR_REDIS_URL", "TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_PORT"),
        *("TRITON_REDIS_HOST", "TRITON_REDIS_PORT"),
        *("HF_MODULES_CACHE", CACHE_VARIABLE, WARM_FOLDER_VARIABLE, ROOT_VARIABLE),
        # vLLM's own (0.28: envs.py and the modules that import by name).
        *("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_LOGGING_CONFIG_PATH"),
        *("VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH", "VLLM_CUDA_COMPATIBILITY_PATH"),
        *("VLLM_NCCL_INCLUDE_PATH", "VLLM_RUST_FRONTEND_PATH", "VLLM_MODEL_REDIRECT_PATH"),
        *("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "VLLM_TUNED_CONFIG_FOLDER"),
        *("VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_LORA_RESOLVER_HF_REPO_LIST"),
    )
)
"""The other variables, by what they choose."""

_SWITCHES = frozenset(
    (
        *("VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_FORCE_AOT_LOAD", "VLLM_USE_MODELSCOPE"),
        *("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"),
        *("TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE", "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE"),
        "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO",
    )
)
"""Variables that load code unless they are empty, 0 or false. torch's remote caches are Redis
servers, by default one of this machine, and hold pickles; ModelScope runs code of models."""

ARGUMENTS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("MIDDLEWARE", "TOOL_PARSER_PLUGIN", "REASONING_PARSER_PLUGIN", "IO_PROCESSOR_PLUGIN"),
        *("LOGITS_PROCESSORS", "LOGITS_PROCESSOR_PATTERN", "SCHEDULER_CLS", "WORKER_CLS"),
        *("SD_WORKER_CLS", "WORKER_EXTENSION_CLS"),
        *("MODEL_CLASS_OVERRIDES", "LOG_CONFIG_FILE", "CONFIG", "UVICORN_LOG_CONFIG"),
    )
)
"""Arguments of vLLM that name a module or a class, or a configuration file that names one."""

CONFIG_FILE = f"{PREFIX}CONFIG"
"""A file of arguments."""
_TRUST = f"{PREFIX}TRUST_REMOTE_CODE"
_BY_MODULE = (f"{PREFIX}DISTRIBUTED_EXECUTOR_BACKEND",)
"""Arguments that are one of vLLM's choices or the dotted name of a class."""

_CODE_KEYS = ("module_path", "_cls", "_qualname", "_plugin", "custom_class", "inductor_passes",
              "cache_dir", "trust_remote_code")  # fmt: skip
"""How the keys of a JSON argument end that name a module, a class or a folder with compiled code:
those of vLLM 0.28.0 that reach ``import_module``, ``__import__``, ``resolve_obj_by_qualname``,
``import_from_path`` or the compile cache."""

_INDUCTOR = "inductor_compile_config"
"""Settings of torch's compiler by any name: texts and lists among them name compilers and trees of
sources (``cpp.cxx``, ``rocm.ck_dir``), and switches turn on remote caches."""


def code_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the variables that choose the code that a process loads, sorted."""
    return tuple(sorted(name for name, value in environment.items() if _chooses(name, value)))


def check_no_code(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment if a variable chooses the code that the engine's process loads."""
    found = code_variables(environment)
    if found:
        raise InvalidEnvironment(
            f"{', '.join(found)}: this chooses the code that a process of this machine loads",
            "remove it, or run the engine in a container (--engine docker)",
        )


def _chooses(name: str, value: str) -> bool:
    text = value.strip()
    if name in _SWITCHES:
        return text.lower() not in ("", "0", "false")
    if name.startswith(PREFIX):
        name = canonical_name(name)
        argument, *members = name.split(".")  # such as --compilation-config.backend
        if members:
            return argument in ARGUMENTS or _names_code(text, members)
    if name == _TRUST:
        return text.lower() != "false"
    if name in _BY_MODULE:
        return "." in text
    if name.startswith(PREFIX) and text.startswith(("{", "[")):
        return _names_code(text)
    return name.startswith(PREFIXES) or name in NAMES or name in ARGUMENTS


def _names_code(value: str, path: Sequence[str] = ()) -> bool:
    """Whether a JSON argument has a key whose value names a module or a class; ``path`` leads to
    the member that ``value`` is, which may be a bare text.

    JSON that this reader refuses counts as such: vLLM accepts NaN, and a name that occurs twice.
    """
    try:
        document: Any = read(value, "the argument")
    except InvalidJson as error:
        if not error.is_syntax:
            return True
        document = value
    for name in reversed(path):
        document = {name.lower().rstrip("+"): document}  # the + adds to a list
    left = [document]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        if isinstance(part, dict):
            left += part.values()
            if any(_is_code(name, member) for name, member in part.items()):
                return True
    return False


def _is_code(name: str, member: Any) -> bool:
    if name in ("backend", "method") and isinstance(member, str):
        return "." in member or member in _CODE_KEYS
    if name == _INDUCTOR and isinstance(member, dict):
        return any(
            "remote_cache" in key or not (value is None or isinstance(value, bool | int | float))
            for key, value in member.items()
        )
    return name.endswith(_CODE_KEYS)
