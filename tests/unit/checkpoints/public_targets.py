"""Public models by the numbers of their config.json, as their authors write them."""

from typing import Any

Config = dict[str, Any]


def config(class_name: str, model_type: str, sizes: str, **more: Any) -> Config:
    """``sizes``: hidden, intermediate, layers, heads, KV heads, vocabulary and positions, ``-`` for
    keys that the file leaves out."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    values = zip(keys, sizes.split(), strict=True)
    stated = {key: int(value) for key, value in values if value != "-"}
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    } | stated | more  # fmt: skip


def nested(class_name: str, model_type: str, text: Config) -> Config:
    """A multimodal model's config, with the decoder's under ``text_config``."""
    inner = {key: value for key, value in text.items() if key != "architectures"}
    return {"architectures": [class_name], "model_type": model_type, "text_config": inner}


BLOCK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
QWEN3_235B_FP8 = config(
    "Qwen3MoeForCausalLM", "qwen3_moe", "4096 12288 94 64 4 151936 262144", head_dim=128,
    moe_intermediate_size=1536, num_experts=128, num_experts_per_tok=8,
    quantization_config=BLOCK_FP8,
)  # fmt: skip
_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_GDN = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_value_head_dim": 128, "head_dim": 256,
}  # fmt: skip
_GEMMA3 = {"sliding_window": 1024, "tie_word_embeddings": True}
KIMI_K2 = config(
    "DeepseekV3ForCausalLM", "kimi_k2", "7168 18432 61 64 64 163840 131072", **_MLA,
    q_lora_rank=1536, moe_intermediate_size=2048, n_routed_experts=384, n_shared_experts=1,
    num_experts_per_tok=8, first_k_dense_replace=1,
)  # fmt: skip
DEEPSEEK_V3 = config(
    "DeepseekV3ForCausalLM", "deepseek_v3", "7168 18432 61 128 128 129280 163840", **_MLA,
    q_lora_rank=1536, moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=8, first_k_dense_replace=3, moe_layer_freq=1, num_nextn_predict_layers=1,
)  # fmt: skip
DEEPSEEK_V2_LITE = config(
    "DeepseekV2ForCausalLM", "deepseek_v2", "2048 10944 27 16 16 102400 163840", **_MLA,
    q_lora_rank=None, moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2,
    num_experts_per_tok=6, first_k_dense_replace=1, moe_layer_freq=1,
)  # fmt: skip
QWEN3_NEXT = config(
    "Qwen3NextForCausalLM", "qwen3_next", "2048 5120 48 16 2 151936 262144", **_GDN,
    linear_num_value_heads=32, moe_intermediate_size=512, shared_expert_intermediate_size=512,
    num_experts=512, num_experts_per_tok=10, full_attention_interval=4,
)  # fmt: skip
QWEN35 = nested(
    "Qwen3_5ForConditionalGeneration", "qwen3_5",
    config("", "qwen3_5_text", "5120 17408 64 24 4 248320 262144", **_GDN,
            linear_num_value_heads=48, mamba_ssm_dtype="float32",
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 16),
)  # fmt: skip
LLAMA4_SCOUT = nested(
    "Llama4ForConditionalGeneration", "llama4",
    config("", "llama4_text", "5120 8192 48 40 8 202048 10485760", head_dim=128,
            intermediate_size_mlp=16384, num_local_experts=16, num_experts_per_tok=1,
            interleave_moe_layer_step=1, attention_chunk_size=8192),
)  # fmt: skip
LLAMA4_MAVERICK = nested(
    "Llama4ForConditionalGeneration", "llama4",
    config("", "llama4_text", "5120 8192 48 40 8 202048 1048576", head_dim=128,
            intermediate_size_mlp=16384, num_local_experts=128, num_experts_per_tok=1,
            interleave_moe_layer_step=2, attention_chunk_size=8192,
            layer_types=(["chunked_attention"] * 3 + ["full_attention"]) * 12),
)  # fmt: skip
GEMMA3_4B = nested(
    "Gemma3ForConditionalGeneration", "gemma3",
    config("", "gemma3_text", "2560 10240 34 - - - -", **_GEMMA3),
)  # fmt: skip
GEMMA3_12B = nested(
    "Gemma3ForConditionalGeneration", "gemma3",
    config("", "gemma3_text", "3840 15360 48 16 8 - -", **_GEMMA3),
)  # fmt: skip
GEMMA3_27B = nested(
    "Gemma3ForConditionalGeneration", "gemma3",
    config("", "gemma3_text", "5376 21504 62 32 16 - -", head_dim=128, **_GEMMA3),
)  # fmt: skip
EXAONE4 = config(
    "Exaone4ForCausalLM", "exaone4", "5120 27392 64 40 8 102400 131072", head_dim=128,
    sliding_window=4096, sliding_window_pattern="LLLG",
)  # fmt: skip
GLM45_AIR = config(
    "Glm4MoeForCausalLM", "glm4_moe", "4096 10944 46 96 8 151552 131072", head_dim=128,
    moe_intermediate_size=1408, n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8,
    first_k_dense_replace=1, num_nextn_predict_layers=1,
)  # fmt: skip
MINIMAX_M2 = config(
    "MiniMaxM2ForCausalLM", "minimax_m2", "3072 1536 62 48 8 200064 196608", head_dim=128,
    num_local_experts=256, num_experts_per_tok=8, attn_type_list=[1] * 62,
)  # fmt: skip
KIMI_LINEAR = config(
    "KimiLinearForCausalLM", "kimi_linear", "2304 9216 27 32 32 163840 1048576", **_MLA,
    q_lora_rank=None, moe_intermediate_size=1024, num_experts=256, num_shared_experts=1,
    num_experts_per_token=8, first_k_dense_replace=1, moe_layer_freq=1,
    linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
                        "num_heads": 32, "short_conv_kernel_size": 4},
)  # fmt: skip
MISTRAL_SMALL = nested(
    "Mistral3ForConditionalGeneration", "mistral3",
    config("", "mistral", "5120 32768 40 32 8 131072 131072", head_dim=128, sliding_window=None),
)  # fmt: skip
GEMMA_3N = nested(
    "Gemma3nForConditionalGeneration", "gemma3n",
    config("", "gemma3n_text", "2048 - 35 8 2 262400 32768", head_dim=256, sliding_window=512,
            tie_word_embeddings=True, intermediate_size=[16384] * 35, num_kv_shared_layers=15,
            layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7),
)  # fmt: skip
BILLIONS: dict[str, tuple[Config, float]] = {
    "Kimi-K2": (KIMI_K2, 1026.0), "DeepSeek-V3": (DEEPSEEK_V3, 671.0),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15.7), "Qwen3-Next-80B": (QWEN3_NEXT, 79.7),
    "Qwen3.5-27B": (QWEN35, 27.0), "Llama-4-Scout": (LLAMA4_SCOUT, 107.8),
    "Llama-4-Maverick": (LLAMA4_MAVERICK, 400.0), "Gemma-3-4B": (GEMMA3_4B, 3.88),
    "Gemma-3-12B": (GEMMA3_12B, 11.77), "Gemma-3-27B": (GEMMA3_27B, 27.0),
    "EXAONE-4.0-32B": (EXAONE4, 32.0), "GLM-4.5-Air": (GLM45_AIR, 106.9),
    "MiniMax-M2": (MINIMAX_M2, 228.7), "Kimi-Linear-48B": (KIMI_LINEAR, 49.1),
    "Gemma-3n-E4B": (GEMMA_3N, 6.87), "Mistral-Small-3.1": (MISTRAL_SMALL, 23.6),
}  # fmt: skip
"""Parameters of the decoder, in billions, as published."""
PUBLISHED: dict[str, tuple[Config, float, int]] = {
    "gpt2": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
         "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257},
        0.1236, 36_864),
    "opt-6.7b": (
        {"architectures": ["OPTForCausalLM"], "activation_function": "relu", "ffn_dim": 16384,
         "hidden_size": 4096, "max_position_embeddings": 2048, "model_type": "opt",
         "num_attention_heads": 32, "num_hidden_layers": 32, "torch_dtype": "float16",
         "vocab_size": 50272, "word_embed_proj_dim": 4096},
        6.658, 524_288),
    "bloom-7b1": (
        {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_embed": 4096,
         "n_inner": None, "n_layer": 30, "num_attention_heads": 32, "seq_length": 2048,
         "vocab_size": 250880},
        7.069, 491_520),
    "falcon-7b": (
        {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": False,
         "hidden_size": 4544, "multi_query": True, "new_decoder_architecture": False,
         "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71,
         "parallel_attn": True, "vocab_size": 65024},
        6.92, 8_192),
    "starcoder2-15b": (
        {"architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2",
         "hidden_size": 6144, "intermediate_size": 24576, "max_position_embeddings": 16384,
         "num_attention_heads": 48, "num_hidden_layers": 40, "num_key_value_heads": 4,
         "sliding_window": 4096, "vocab_size": 49152, "use_bias": True},
        15.66, 81_920),
    "phi-3-mini": (
        {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
         "intermediate_size": 8192, "max_position_embeddings": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 32, "sliding_window": 2047,
         "tie_word_embeddings": False, "vocab_size": 32064},
        3.82, 393_216),
    "chatglm3-6b": (
        {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "ffn_hidden_size": 13696,
         "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True,
         "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 28,
         "padded_vocab_size": 65024, "seq_length": 8192, "tie_word_embeddings": False},
        6.24, 28_672),
    "command-r": (
        {"architectures": ["CohereForCausalLM"], "model_type": "cohere", "hidden_size": 8192,
         "intermediate_size": 22528, "max_position_embeddings": 8192, "model_max_length": 131072,
         "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64,
         "vocab_size": 256000},
        34.98, 1_310_720),
    "LLaVA-1.5-7b": (
        {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
         "tie_word_embeddings": False, "vision_config": {"hidden_size": 1024},
         "text_config": {"model_type": "llama", "max_position_embeddings": 4096,
                         "torch_dtype": "float16", "vocab_size": 32064}},
        6.74, 524_288),
    "Qwen2-Audio-7B": (
        {"architectures": ["Qwen2AudioForConditionalGeneration"], "model_type": "qwen2_audio",
         "audio_config": {"d_model": 1280, "encoder_layers": 32},
         "text_config": {"intermediate_size": 11008, "max_position_embeddings": 8192,
                         "model_type": "qwen2", "rope_theta": 10000, "vocab_size": 156032}},
        7.75, 524_288),
    "Pixtral-12B": (
        {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
         "text_config": {"head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
                         "max_position_embeddings": 1024000, "model_type": "mistral",
                         "num_hidden_layers": 40, "num_key_value_heads": 8,
                         "sliding_window": None, "vocab_size": 131072}},
        12.25, 163_840),
    "SmolVLM": (
        {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3",
         "text_config": {"head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
                         "max_position_embeddings": 16384, "model_type": "llama",
                         "num_hidden_layers": 24, "vocab_size": 49155}},
        1.81, 196_608),
    "Aya-Vision-8B": (
        {"architectures": ["AyaVisionForConditionalGeneration"], "model_type": "aya_vision",
         "text_config": {"hidden_size": 4096, "intermediate_size": 14336, "model_type": "cohere2",
                         "num_attention_heads": 32, "num_hidden_layers": 32,
                         "num_key_value_heads": 8, "sliding_window": 4096}},
        8.03, 131_072),
}  # fmt: skip
"""Files with the keys of their config class, the parameters of the decoder in billions, as
published, and the bytes of cache per token in 16 bits."""
