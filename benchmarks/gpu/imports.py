"""Imports all that the measurements will import, one after the other, and says what fails.

``python -m benchmarks.gpu.imports [--vllm VERSION]``, with the carried folder on PYTHONPATH. First
it asks this Python whether it has what the list says of the host. On the host this comes right
after unpacking: a package that is missing shows itself in half a minute, rather than as a row that
ends in the warm-up of a kernel, and files are in memory before anything is timed. Without a GPU
all of it can be imported too, given a torch for CUDA and any ``libcuda.so.1``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.gpu.engine_set import engine_set
from benchmarks.gpu.needs import needs_of

MODULES = (
    "vllm",
    "vllm.engine.arg_utils",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.spec_decode.llm_base_proposer",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.model_executor.models.gpt_oss",
    "vllm.model_executor.models.qwen3_moe",
    "vllm.model_executor.models.gemma4_mm",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.pynvml",
    "vllm.third_party.deep_gemm",
    "flashinfer.sampling",
    "quack",
    "humming",
    "cutlass.cute",
    "tvm_ffi",
    "cudnn",
    "openai_harmony",
    "xgrammar",
    "transformers.models.gemma4",
)


def needs(version: str) -> None:
    """Print what the carried folder asks for and this Python does not have."""
    tree = Path(str(distribution("vllm").locate_file("")))
    found = needs_of(tree, engine_set(version), on_host=True)
    print(found, *found.unmet, sep="\n", flush=True)


def imports() -> int:
    """How many could not be imported."""
    failed = 0
    for name in MODULES:
        begin = time.perf_counter()
        try:
            importlib.import_module(name)
        except Exception as error:
            failed += 1
            print(f"cannot import {name}: {type(error).__name__}: {error}", flush=True)
            continue
        if (seconds := time.perf_counter() - begin) > 2:
            print(f"{name}: {seconds:.1f} s", flush=True)
    print(f"{len(MODULES) - failed} of {len(MODULES)} modules imported", flush=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", default="0.26.0")
    needs(parser.parse_args().vllm)
    sys.exit(1 if imports() else 0)
