"""Records the memory that vLLM's worker counts during its start.

vLLM imports its ``worker_extension_cls`` in each worker's process before it creates the device;
importing this module there wraps the steps of the start, which write their facts to a file for each
rank. Import it nowhere else: a second import, in a fork, has no effect. It changes no decision of
the engine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
After = Callable[[Any, Facts, Any], None]


class Probed:
    """Adds nothing to the worker."""


def install(stem: Path) -> None:
    """Wrap the worker's steps; the facts are in ``<stem>-<rank>.json`` after each."""
    from vllm.v1.worker.gpu_worker import Worker

    facts: Facts = {"seconds": {}}
    for step, after in STEPS.items():
        _wrap(Worker, step, after, facts, stem)


def _wrap(owner: Any, step: str, after: After, facts: Facts, stem: Path) -> None:
    original = getattr(owner, step)

    def wrapped(worker: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        begin = time.perf_counter()
        if step == "compile_or_warm_up_model":
            _watch_capture(worker.model_runner, facts)
        result = original(worker, *args, **kwargs)
        facts["seconds"][step] = round(time.perf_counter() - begin, 2)
        after(worker, facts, result)
        free, total = torch.cuda.mem_get_info()
        facts[f"after_{step}"] = {
            "free": free,
            "total": total,
            "torch_allocated": torch.cuda.memory_allocated(),
            "torch_reserved": torch.cuda.memory_reserved(),
            "torch_peak": torch.cuda.max_memory_allocated(),
        }
        path = stem.with_name(f"{stem.name}-{int(worker.rank)}.json")
        path.write_text(json.dumps(facts, default=str))
        return result

    setattr(owner, step, wrapped)


def _after_init(worker: Any, facts: Facts, _: Any) -> None:
    import torch

    facts["device"] = torch.cuda.get_device_name()
    facts["device_total_bytes"] = torch.cuda.get_device_properties(worker.device).total_memory
    facts["requested_memory"] = int(worker.requested_memory)


def _after_load(worker: Any, facts: Facts, _: Any) -> None:
    runner = worker.model_runner
    facts["model_memory_usage"] = int(runner.model_memory_usage)
    facts["runner"] = f"{type(runner).__module__}.{type(runner).__name__}"
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    head = getattr(drafter, "model", None)
    if head is not None:
        target = {tensor.data_ptr() for tensor in runner.get_model().parameters()}
        facts["drafter_class"] = type(head).__name__
        facts["drafter_shares"] = sorted(
            name for name, tensor in head.named_parameters() if tensor.data_ptr() in target
        )


def _after_profile(worker: Any, facts: Facts, available: Any) -> None:
    facts["available_kv_cache_memory"] = int(available)
    facts["torch_peak_increase"] = int(worker.peak_activation_memory)
    facts["non_torch_increase"] = int(worker.non_torch_memory)
    facts["cuda_graph_memory_estimate"] = int(worker.cudagraph_memory_estimate)


def _after_cache(worker: Any, facts: Facts, _: Any) -> None:
    config = worker.model_runner.kv_cache_config
    facts["num_blocks"] = int(config.num_blocks)
    facts["kv_cache_bytes"] = sum(int(tensor.size) for tensor in config.kv_cache_tensors)
    facts["kv_cache_groups"] = [
        {
            "kind": type(group.kv_cache_spec).__name__,
            "spec": repr(group.kv_cache_spec),
            "page_size_bytes": group.kv_cache_spec.page_size_bytes,
            "layers": len(group.layer_names),
        }
        for group in config.kv_cache_groups
    ]


def _watch_capture(runner: Any, facts: Facts) -> None:
    capture = runner.capture_model

    def capture_model() -> Any:
        begin = time.perf_counter()
        size = capture()
        facts["seconds"]["capture_model"] = round(time.perf_counter() - begin, 2)
        facts["cuda_graph_memory"] = int(size)
        return size

    runner.capture_model = capture_model


STEPS: dict[str, After] = {
    "init_device": _after_init,
    "load_model": _after_load,
    "determine_available_memory": _after_profile,
    "initialize_from_config": _after_cache,
    "compile_or_warm_up_model": lambda worker, facts, _: None,
}

if STEM := os.environ.get("PEAGLE_GPU_PROBE"):
    install(Path(STEM))
