"""Records what vLLM's worker measures during its start, by wrapping the steps of the start.

The wrapped steps run in the worker of one GPU, which writes its facts to a file for its rank.
With several GPUs each worker is a process of its own, which vLLM spawns if CUDA is initialized:
``extension`` installs the probe in each. The probe changes no decision of the engine, except which
tensors a head keeps (see the package's docstring).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from measurements.gpu.dummy_weights import keep_own_tensors

VARIABLE = "PEAGLE_GPU_PROBE"
"""Environment variable with the stem of the probe's files and the tensors that a head keeps."""
EXTENSION = "measurements.gpu.extension.Probed"

Facts = dict[str, Any]


class Probe:
    """The facts of one rank, written to ``<stem>-<rank>.json`` after each step."""

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        self.facts: Facts = {"seconds": {}}
        self.rank = 0

    def write(self) -> None:
        path = self.stem.with_name(f"{self.stem.name}-{self.rank}.json")
        path.write_text(json.dumps(self.facts, default=str))


def announce(stem: Path, names: Iterable[str]) -> dict[str, Any]:
    """Configure the probe through the environment; returns the engine argument that loads it."""
    os.environ[VARIABLE] = json.dumps({"stem": str(stem.resolve()), "own": list(names)})
    return {"worker_extension_cls": EXTENSION}


def install(stem: Path, names: Iterable[str]) -> None:
    """Wrap the worker's steps: once per process, before the worker creates its device."""
    from vllm.v1.worker.gpu_worker import Worker

    probe = Probe(stem)
    for step, after in (
        ("init_device", _after_init),
        ("load_model", _after_load),
        ("determine_available_memory", _after_profile),
        ("initialize_from_config", _after_cache),
        ("compile_or_warm_up_model", _after_warm_up),
    ):
        _wrap(Worker, step, probe, after)
    keep_own_tensors(tuple(names))


def _wrap(owner: Any, step: str, probe: Probe, after: Callable[[Any, Facts, Any], None]) -> None:
    original = getattr(owner, step)

    def wrapped(worker: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        if step == "load_model":
            _watch_loading(worker, probe.facts)
        if step == "determine_available_memory":
            _watch_profile(worker, probe.facts)
        if step == "compile_or_warm_up_model":
            _watch_capture(worker, probe.facts)
        result = original(worker, *args, **kwargs)
        probe.rank = int(worker.rank)
        probe.facts["seconds"][step] = round(time.perf_counter() - begin, 2)
        after(worker, probe.facts, result)
        probe.write()
        return result

    setattr(owner, step, wrapped)


def memory() -> Facts:
    """Current memory of the device and of torch's allocator, in bytes."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "free": free,
        "total": total,
        "torch_allocated": torch.cuda.memory_allocated(),
        "torch_reserved": torch.cuda.memory_reserved(),
        "torch_peak": torch.cuda.max_memory_allocated(),
    }


def _after_init(worker: Any, facts: Facts, _: Any) -> None:
    import torch

    snapshot = worker.init_snapshot
    facts["device"] = torch.cuda.get_device_name()
    facts["device_total_bytes"] = torch.cuda.get_device_properties(worker.device).total_memory
    facts["init_snapshot"] = {
        key: int(getattr(snapshot, key))
        for key in ("free_memory", "total_memory", "cuda_memory", "torch_memory",
                    "non_torch_memory")
    }  # fmt: skip
    facts["requested_memory"] = int(worker.requested_memory)
    facts["after_init"] = memory()


def _drafter(runner: Any) -> Any:
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


def _watch_loading(worker: Any, facts: Facts) -> None:
    import torch

    facts["torch_allocated_before_load"] = torch.cuda.memory_allocated()
    drafter = _drafter(worker.model_runner)
    load = getattr(drafter, "load_model", None)
    if load is None:
        return

    def watched(*args: Any, **kwargs: Any) -> Any:
        facts["torch_allocated_after_target"] = torch.cuda.memory_allocated()
        result = load(*args, **kwargs)
        facts["torch_allocated_after_drafter"] = torch.cuda.memory_allocated()
        return result

    drafter.load_model = watched


def _storages(model: Any) -> dict[int, tuple[int, str]]:
    """The storages of a model's tensors: address -> (bytes, first name)."""
    storages: dict[int, tuple[int, str]] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type == "cuda":
            storage = tensor.untyped_storage()
            storages.setdefault(storage.data_ptr(), (storage.nbytes(), name))
    return storages


def _part(name: str) -> str:
    for part in ("embed_tokens", "lm_head", "experts", "self_attn", "vision", "cos_sin", "fc."):
        if part in name:
            return part.strip(".")
    return "other"


def _parts(storages: dict[int, tuple[int, str]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for size, name in storages.values():
        sums[_part(name)] = sums.get(_part(name), 0) + size
    return sums


def _after_load(worker: Any, facts: Facts, _: Any) -> None:
    runner = worker.model_runner
    facts["model_memory_usage"] = int(runner.model_memory_usage)
    target = _storages(runner.get_model())
    facts["target_tensor_bytes"] = _parts(target)
    drafter = getattr(_drafter(runner), "model", None)
    if drafter is not None:
        head = _storages(drafter)
        facts["drafter_tensor_bytes"] = _parts(
            {key: value for key, value in head.items() if key not in target}
        )
        facts["drafter_shares"] = sorted(
            {_part(name) for key, (_, name) in head.items() if key in target}
        )
        facts["drafter_class"] = type(drafter).__name__
    facts["runner"] = f"{type(runner).__module__}.{type(runner).__name__}"
    facts["after_load"] = memory()


def _watch_profile(worker: Any, facts: Facts) -> None:
    """Record which part of the profiling run sets the peak."""
    import torch

    runner = worker.model_runner
    peaks: list[Facts] = []
    facts["profile_peaks"] = peaks
    profiling = {"on": False}

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            before = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
            result = original(*args, **kwargs)
            if profiling["on"]:
                torch.cuda.synchronize()
                after = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
                shapes = [list(a.shape) if hasattr(a, "shape") else a for a in args]
                entry = {"step": name, "arguments": shapes, "before": before, "after": after}
                peaks.append(entry)
            return result

        setattr(owner, name, watched)

    watch(runner, "_dummy_run")
    watch(runner, "_dummy_sampler_run")
    if _drafter(runner) is not None:
        watch(_drafter(runner), "dummy_run")
        watch(_drafter(runner), "propose")
    profile = runner.profile_run

    def profile_run() -> None:
        profiling["on"] = True
        facts["before_profile"] = memory()
        profile()
        facts["after_profile_run"] = memory()
        profiling["on"] = False

    runner.profile_run = profile_run


def _after_profile(worker: Any, facts: Facts, available: Any) -> None:
    facts["available_kv_cache_memory"] = int(available)
    facts["torch_peak_increase"] = int(worker.peak_activation_memory)
    facts["non_torch_increase"] = int(worker.non_torch_memory)
    facts["cuda_graph_memory_estimate"] = int(worker.cudagraph_memory_estimate)
    facts["after_profile"] = memory()


def _group(group: Any) -> Facts:
    spec = group.kv_cache_spec
    keys = ("block_size", "num_kv_heads", "head_size", "head_size_v", "sliding_window",
            "page_size_bytes", "page_size_padded")  # fmt: skip
    layers = list(group.layer_names)
    return {
        "kind": type(spec).__name__,
        "layers": len(layers),
        "layer_names": [layers[0], layers[-1]],
        **{key: getattr(spec, key, None) for key in keys},
        "dtype": str(getattr(spec, "dtype", "")),
        "inner": _inner(spec),
    }


def _inner(spec: Any) -> list[Facts]:
    """The layer kinds of a mixed group, with their counts."""
    kinds: dict[str, Facts] = {}
    for inner in getattr(spec, "kv_cache_specs", {}).values():
        entry = kinds.setdefault(repr(inner), {"spec": repr(inner), "layers": 0})
        entry["page_size_bytes"] = inner.page_size_bytes
        entry["layers"] += 1
    return list(kinds.values())


def _after_cache(worker: Any, facts: Facts, _: Any) -> None:
    config = worker.model_runner.kv_cache_config
    facts["num_blocks"] = int(config.num_blocks)
    facts["kv_cache_bytes"] = sum(int(tensor.size) for tensor in config.kv_cache_tensors)
    facts["kv_cache_tensors"] = len(config.kv_cache_tensors)
    facts["kv_cache_groups"] = [_group(group) for group in config.kv_cache_groups]
    facts["attention_backends"] = _backends(worker.model_runner)
    facts["after_kv_cache"] = memory()


def _backends(runner: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for groups in getattr(runner, "attn_groups", []):
        for group in groups:
            name = group.backend.__name__
            counts[name] = counts.get(name, 0) + len(group.layer_names)
    return counts


def _watch_capture(worker: Any, facts: Facts) -> None:
    runner = worker.model_runner
    capture = runner.capture_model

    def capture_model() -> Any:
        facts["before_capture"] = memory()
        begin = time.perf_counter()
        size = capture()
        facts["seconds"]["capture_model"] = round(time.perf_counter() - begin, 2)
        facts["cuda_graph_memory"] = int(size)
        facts["after_capture"] = memory()
        return size

    runner.capture_model = capture_model


def _after_warm_up(worker: Any, facts: Facts, _: Any) -> None:
    facts["ready"] = memory()
