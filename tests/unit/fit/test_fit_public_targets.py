"""Public targets of every kind of cache: sizes, and blocks as vLLM's own code makes them."""

from typing import Any

import pytest

from peagle.catalog.schema import Architecture, AttentionGroup
from peagle.checkpoints.architecture import read_architecture
from peagle.checkpoints.models import Checkpoint
from peagle.fit.building import read_target
from peagle.fit.estimate import (
    FitCase,
    cache_layout,
    compute_fit,
    compute_layout,
    compute_request_share,
)
from peagle.fit.weights import checkpoint_bytes
from tests.unit.checkpoints import public_targets as public
from tests.unit.fit.geometry import H200

EAGLE = AttentionGroup(kind="full", layers=1, kv_heads=8, head_dim=128)


def model(config: dict[str, Any]) -> Architecture:
    return read_architecture(config)


@pytest.mark.parametrize("name", public.BILLIONS)
def test_parameters_are_those_that_the_authors_publish(name: str) -> None:
    config, billions = public.BILLIONS[name]
    target = read_target(Checkpoint(name, config))
    assert checkpoint_bytes(target) / 2e9 == pytest.approx(billions, rel=0.015)
    assert not target.architecture.unknown_cache


@pytest.mark.parametrize("name", public.PUBLISHED)
def test_files_with_the_keys_of_their_class_are_as_published(name: str) -> None:
    config, billions, token_bytes = public.PUBLISHED[name]
    target = read_target(Checkpoint(name, config))
    shape = target.architecture
    assert checkpoint_bytes(target) / 2e9 == pytest.approx(billions, rel=0.005)
    cached = sum(2 * g.layers * g.kv_heads * g.head_dim * 2 for g in shape.attention)
    assert (cached, shape.unknown_cache) == (token_bytes, "")


@pytest.mark.parametrize(("config", "drafter", "tokens", "block", "tables", "request_bytes"), [
    (public.QWEN3_NEXT, (), 544, 13369344, 4, 294125568),
    (public.KIMI_K2, (), 16, 1124352, 1, 575668224),
    (public.KIMI_K2, (EAGLE,), 16, 1189888, 1, 609222656),
])  # fmt: skip
def test_blocks_are_those_of_vllm(
    config: dict[str, Any],
    drafter: tuple[AttentionGroup, ...],
    tokens: int,
    block: int,
    tables: int,
    request_bytes: int,
) -> None:
    """The numbers are those of get_kv_cache_groups, _pool_bytes_per_block and
    _max_memory_usage_bytes_from_groups of vLLM 0.28.0, for a request of 8,192 tokens. A block of
    attention is as large as a state: vLLM logs "Setting attention block size to 544 tokens"."""
    shape = model(config)
    layout = compute_layout((*shape.attention, *drafter), 1, 2, 1.5, shape.recurrent)
    assert (layout.groups[0].block_tokens, layout.block_bytes) == (tokens, block)
    assert sum(group.tables for group in layout.groups) == tables
    assert layout.request_bytes(8192, 16384) == request_bytes


def test_drafts_and_prefix_caching_take_states_of_their_own() -> None:
    shape = model(public.QWEN3_NEXT)
    states = [
        compute_layout((), 1, 2, 1.5, shape.recurrent, k=k, prefix_caching=caching).groups[0].states
        for k, caching in ((0, False), (0, True), (3, True))
    ]
    assert states == [1, 2, 5]
    group = shape.recurrent[0]
    assert group.state_bytes(1, 3) - group.state_bytes(1, 0) == 3 * 8192 * 2
    assert group.state_bytes(2, 0) == group.state_bytes(1, 0) // 2


def test_a_latent_cache_is_whole_on_each_gpu_and_small() -> None:
    shape = model(public.DEEPSEEK_V3)
    tp1, eight = (compute_layout(shape.attention, tp, 2, 1.5) for tp in (1, 8))
    assert tp1 == eight
    assert tp1.block_bytes == 61 * 576 * 2 * 16


@pytest.mark.parametrize(("config", "kinds"), [
    (public.LLAMA4_SCOUT, {"full": 48}),
    (public.LLAMA4_MAVERICK, {"full": 48}),
    (public.GEMMA3_4B, {"sliding": 29, "full": 5}),
    (public.GEMMA3_12B, {"sliding": 40, "full": 8}),
    (public.GEMMA3_27B, {"sliding": 52, "full": 10}),
    (public.GEMMA_3N, {"sliding": 16, "full": 4}),
    (public.EXAONE4, {"sliding": 48, "full": 16}),
    (public.EXAONE4 | {"sliding_window_pattern": 4}, {"sliding": 48, "full": 16}),
    (public.EXAONE4 | {"sliding_window": None, "sliding_window_pattern": None}, {"full": 64}),
    (public.MINIMAX_M2, {"full": 62}),
    (public.MISTRAL_SMALL, {"full": 40}),
    (public.KIMI_LINEAR, {"latent": 7}),
    (public.DEEPSEEK_V3 | {"model_type": "minicpm3"}, {"full": 61}),
    (public.DEEPSEEK_V3 | {"model_type": "deepseek_v32", "index_head_dim": 128}, {"latent": 61}),
])  # fmt: skip
def test_layers_have_cache_that_file_states(config: dict[str, Any], kinds: dict[str, int]) -> None:
    assert {group.kind: group.layers for group in model(config).attention} == kinds


def test_a_short_request_of_a_hybrid_takes_more_than_its_share_of_the_context() -> None:
    target = read_target(Checkpoint("qwen", public.QWEN3_NEXT))
    case = FitCase(target, None, H200._replace(max_model_len=131072))
    blocks = [cache_layout(case).request_blocks(tokens, 0) for tokens in (2304, 131072)]
    assert compute_request_share(case, 2304) == pytest.approx(blocks[0] / blocks[1])
    assert compute_request_share(case, 2304) > 2 * 2304 / 131072


@pytest.mark.parametrize(("settings", "gib"), [
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, 18.2),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False}, 32.7),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, 19.9),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 19.2),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 32.0),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}
            },
        },
        18.2,
    ),
    (public.BLOCK_FP8, 32.0),
])  # fmt: skip
def test_bits_and_group_size_are_enough(settings: dict[str, Any], gib: float) -> None:
    """Qwen3-32B; its AWQ files have 18.0 GiB."""
    qwen = public.config("Qwen3ForCausalLM", "qwen3", "5120 25600 64 64 8 151936 40960",
                         head_dim=128, quantization_config=settings)  # fmt: skip
    target = read_target(Checkpoint("qwen", qwen))
    assert checkpoint_bytes(target) / 2**30 == pytest.approx(gib, rel=0.02)
    fit = compute_fit(FitCase(target, None, H200))
    assert fit.weights_gib == pytest.approx(gib, rel=0.03)


def test_int4_experts_beside_plain_attention() -> None:
    kimi = public.KIMI_K2 | {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
            "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
        }
    }
    target = read_target(Checkpoint("kimi", kimi))
    assert checkpoint_bytes(target) / 1e9 == pytest.approx(594, rel=0.04)
