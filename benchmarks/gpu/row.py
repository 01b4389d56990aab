"""One row of memory.py, in a process of its own: it waits for its GPU, and starts the engine."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.geometry import Setting, engine_arguments
from benchmarks.gpu.probe import announce

IDLE_GPU_BYTES = 3 << 30


def run_row(setting: Setting, lock: Path, stem: Path) -> dict[str, Any]:
    """Starts the engine and says what it is made of; the probe's files hold what it counted."""
    row: dict[str, Any] = {}
    import torch
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    row |= {"vllm": vllm.__version__, "torch": torch.__version__}
    # Before the engine and its workers, which learn of it by the environment.
    probed = announce(stem, setting.own())
    with lock.open("w") as handle:
        wait_for(handle, setting.tensor_parallel_size)
        begin = time.perf_counter()
        arguments = EngineArgs(**engine_arguments(setting), **probed)
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        row["cuda_before_engine"] = bool(torch.cuda.is_initialized())
        engine = EngineCore(config, Executor.get_class(config), log_stats=False)
        row["start_seconds"] = round(time.perf_counter() - begin, 2)
        row["effective"] = effective(engine.vllm_config)
        stem.with_name(f"{stem.name}-row.json").write_text(json.dumps(row, default=str))
        sys.stdout.flush()
        sys.stderr.flush()
        if setting.tensor_parallel_size > 1:
            engine.shutdown()
        os._exit(0)


def wait_for(handle: TextIO, gpus: int) -> None:
    """Holds the GPU's lock, once the engine before has left the GPU."""
    fcntl.flock(handle, fcntl.LOCK_EX)
    devices = [int(device) for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",")][:gpus]
    end = time.monotonic() + 30
    while time.monotonic() < end and max(map(used_bytes, devices)) > IDLE_GPU_BYTES:
        time.sleep(0.2)


def used_bytes(device: int) -> int:
    """What is taken of a GPU's memory, by the driver's count, without touching CUDA."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()


def effective(config: Any) -> dict[str, Any]:
    """The settings that the engine ended with."""
    scheduler, cache, compilation = (
        config.scheduler_config, config.cache_config, config.compilation_config,
    )  # fmt: skip
    sizes = compilation.cudagraph_capture_sizes or []
    return {
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_scheduled_tokens": getattr(scheduler, "max_num_scheduled_tokens", None),
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "async_scheduling": scheduler.async_scheduling,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "num_gpu_blocks": cache.num_gpu_blocks,
        "kv_cache_size_tokens": getattr(cache, "kv_cache_size_tokens", None),
        "kv_cache_max_concurrency": getattr(cache, "kv_cache_max_concurrency", None),
        "dtype": str(config.model_config.dtype),
        "quantization": config.model_config.quantization,
        "enforce_eager": config.model_config.enforce_eager,
        "cudagraph_mode": str(compilation.cudagraph_mode),
        "max_cudagraph_capture_size": compilation.max_cudagraph_capture_size,
        "cudagraph_capture_sizes": list(sizes),
        "compile_ranges": str(compilation.get_compile_ranges()),
        "use_v2_model_runner": config.use_v2_model_runner,
    }
