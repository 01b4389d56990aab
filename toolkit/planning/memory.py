"""The memory fit of one GPU: what must be there before the cache, and what is left for it.

Weights and cache are arithmetic; activations and CUDA graphs are estimates, and named as such in
the plan's terms, so that a measurement can correct them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.catalog.models import AttentionGroup, Drafter, Instance, Target
from toolkit.fit.models import Fit
from toolkit.planning.cache import layers_on_one_gpu, request_bytes

GIB = 1024**3
GPU_MEMORY_UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM may use; given to it, since its default has changed."""

CONTEXT_GIB = 1.0
"""CUDA context, cuBLAS and NCCL workspaces of one process. An estimate."""

GRAPHS_GIB = 1.0
"""CUDA graphs of the usual capture sizes. An estimate."""

_ELEMENT_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


@dataclass(frozen=True)
class Workload:
    """What is to be served, before it is known where."""

    target: Target
    drafter: Drafter | None
    k: int
    vllm: str
    max_model_len: int
    concurrency: int


Settings = Mapping[str, str | int | float | bool]
"""vLLM's arguments on one GPU architecture, without the dashes."""


def memory_fit(work: Workload, settings: Settings, on: Instance, tensor_parallel_size: int) -> Fit:
    """What one of ``tensor_parallel_size`` GPUs of this instance holds.

    It fits when one request of full length fits beside the weights.
    """
    memory = on.gpu_memory_mib / 1024
    utilization = float(settings.get("gpu-memory-utilization", GPU_MEMORY_UTILIZATION))
    batched = batched_tokens(settings, on)
    terms = {
        "kept_free": memory * (1 - utilization),
        "cuda_context_estimate": CONTEXT_GIB,
        "cuda_graphs_estimate": 0.0 if settings.get("enforce-eager") else GRAPHS_GIB,
        "activations_estimate": _activation_bytes(work, settings, batched, tensor_parallel_size)
        / GIB,
        "target_weights": work.target.weight_bytes / tensor_parallel_size / GIB,
        "drafter_weights": drafter_bytes(work) / tensor_parallel_size / GIB,
    }
    cache = memory - sum(terms.values())
    one_request = _request_bytes(work, settings, batched, tensor_parallel_size) / GIB
    concurrency = max(cache, 0.0) / one_request
    return Fit(
        fits=concurrency >= 1,
        gpu=on.gpu,
        gpu_count=on.gpu_count,
        gpu_memory_gib=_rounded(memory),
        tensor_parallel_size=tensor_parallel_size,
        weights_gib=_rounded(terms["target_weights"]),
        drafter_gib=_rounded(terms["drafter_weights"]),
        kv_cache_gib=_rounded(max(cache, 0.0)),
        kv_cache_tokens=int(concurrency * work.max_model_len),
        max_concurrency=_rounded(concurrency),
        terms={
            name: _rounded(gib)
            for name, gib in {**terms, "cache_of_one_full_request": one_request}.items()
        },
    )


def missing_gib(fit: Fit) -> float:
    """GiB that one GPU lacks for a single request of full length; 0 when it fits."""
    return max(sum(fit.terms.values()) - fit.gpu_memory_gib, 0.0)


def batched_tokens(settings: Settings, on: Instance) -> int:
    """Tokens of one step: as set, else vLLM's default for its server on that GPU
    (engine/arg_utils.py, get_batch_defaults)."""
    given = settings.get("max-num-batched-tokens")
    if given is not None:
        return int(given)
    if on.gpu_memory_mib >= 160 * 1024:
        return 16384
    return 8192 if on.gpu_memory_mib >= 70 * 1024 and "A100" not in on.gpu else 2048


def drafter_bytes(work: Workload) -> int:
    """Bytes of the drafter's weights; estimated from its layers where the catalogue has no size."""
    drafter = work.drafter
    if drafter is None or drafter.weights is None:
        return 0
    if drafter.weight_bytes is not None:
        return drafter.weight_bytes
    if drafter.parameters is not None:
        return 2 * drafter.parameters
    shape = work.target.architecture
    # A Llama-like layer has about 12 h^2 parameters; embedding and output matrix, fc of 3h x h.
    per_layer = 12 * shape.hidden_size**2
    fixed = 2 * shape.vocab_size * shape.hidden_size + 3 * shape.hidden_size**2
    return 2 * (fixed + (drafter.hidden_layers or 1) * per_layer)


def attention_of(work: Workload) -> tuple[AttentionGroup, ...]:
    """All layers that keep a cache: the target's, and the drafter's own."""
    target, drafter = work.target.architecture.attention, work.drafter
    if drafter is None or drafter.weights is None:
        return target
    if drafter.attention:
        return (*target, *drafter.attention)
    if drafter.method == "mtp" and drafter.hidden_layers is None:
        return target
    like = next((group for group in target if group.kind == "full"), target[0])
    return (*target, like.model_copy(update={"layers": drafter.hidden_layers or 1}))


def _request_bytes(work: Workload, settings: Settings, batched: int, parallel: int) -> int:
    kept_as = str(settings.get("kv-cache-dtype", "auto"))
    element = 1 if kept_as.startswith("fp8") else _element_bytes(work, settings)
    layers = layers_on_one_gpu(attention_of(work), parallel, element)
    return request_bytes(layers, work.max_model_len, batched)


def _element_bytes(work: Workload, settings: Settings) -> int:
    """Bytes of one number while computing: the target's type, unless a setting says otherwise."""
    return _ELEMENT_BYTES[str(settings.get("dtype", work.target.dtype))]


def _activation_bytes(work: Workload, settings: Settings, batched: int, parallel: int) -> float:
    """The largest tensors that live at once in one step. An estimate.

    Per token: the residual stream, queries, keys and what the drafter reads (8 hidden states), and
    gate, up and product of the feed-forward block of every expert that the token goes to. Per
    drafted token: logits in float32, twice.
    """
    shape, element = work.target.architecture, _element_bytes(work, settings)
    experts = shape.experts_per_token or 1
    routed = experts * shape.hidden_size if shape.experts else 0
    per_token = 8 * shape.hidden_size + 3 * experts * shape.intermediate_size / parallel + routed
    logits = work.concurrency * (work.k + 1) * shape.vocab_size * 4 * 2
    return batched * per_token * element + logits


def _rounded(number: float) -> float:
    return round(number, 3)
