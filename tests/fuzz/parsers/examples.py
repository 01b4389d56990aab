"""Valid inputs that several parsers begin with: models, variables of the container, log lines."""

import json

from peagle_serve.contract import MODEL, SPECULATION

CONFIG_OF_HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": 512, "draft_vocab_size": 512, "mask_token_id": 511,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "ptd_token_id": 511,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True,
                     "norm_before_fc": False},
    "transformer_layer_config": None, "quantization_config": None,
}  # fmt: skip
CONFIG_OF_SPECULATORS = {
    "architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle",
    "draft_vocab_size": 512, "target_hidden_size": 64, "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "mask_token_id": 511,
    "transformer_layer_config": {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 128, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    },
    "speculators_config": {
        "algorithm": "peagle", "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"architectures": ["GptOssForCausalLM"], "name_or_path": "openai/gpt-oss-20b"},
    },
}  # fmt: skip
CONFIG_OF_TARGET = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 4096,
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
CONFIG_OF_NESTED = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 6, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 512, "max_position_embeddings": 4096, "sliding_window": 1024,
        "sliding_window_pattern": 6, "global_head_dim": 32, "num_global_key_value_heads": 1,
    },
    "vision_config": {"hidden_size": 32}, "dtype": "bfloat16",
}  # fmt: skip
CONFIGS = (CONFIG_OF_HEAD, CONFIG_OF_SPECULATORS, CONFIG_OF_TARGET, CONFIG_OF_NESTED)
HEADER = {
    "__metadata__": {"format": "pt"},
    "fc.weight": {"dtype": "BF16", "shape": [2, 6], "data_offsets": [0, 24]},
    "layers.0.self_attn.q_proj.weight": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
    "mask_hidden": {"dtype": "U8", "shape": [1, 1, 6], "data_offsets": [32, 38]},
    "norm.weight": {"dtype": "F4", "shape": [0], "data_offsets": [38, 38]},
}
OFFSETS = (
    [0, 24], [24, 0], [0, 36], [-1, 36], [2**63, 2**64], [0, 2**64], [0], [0, 1, 2], [[0], [1]],
    [0.0, 24.0], [True, False], [2, 2**40], [2**33, 2**33], [1] * 2000, [10**18] * 4, "BF16", "F4",
    {"dtype": "BF16", "shape": [2, 6], "data_offsets": [0, 24]}, {"format": "pt", "x": "y"},
)  # fmt: skip
INDEX = {
    "metadata": {"total_size": 36},
    "weight_map": {
        "fc.weight": "model-00001-of-00002.safetensors",
        "norm.weight": "model-00002-of-00002.safetensors",
    },
}
NAMES = (
    "config.json", "model.safetensors", "model-00001-of-00002.safetensors",
    "consolidated.safetensors", "model-00000-of-99999.safetensors",
    "model.safetensors.index.json", "pytorch_model.bin", "._model.safetensors", "tokenizer.json",
    "\u0661-00001-of-00002.safetensors", "original",
)  # fmt: skip
ENVIRONMENT = {
    MODEL: "/opt/ml/model/target",
    SPECULATION: json.dumps(
        {
            "method": "eagle3",
            "model": "/opt/ml/model/drafter",
            "num_speculative_tokens": 5,
            "parallel_drafting": True,
        }
    ),
    "SM_VLLM_MAX_MODEL_LEN": "16k",
    "SM_VLLM_GPU_MEMORY_UTILIZATION": "0.9",
    "SM_VLLM_TENSOR_PARALLEL_SIZE": "1",
    "SM_VLLM_ENFORCE_EAGER": "true",
    "SM_VLLM_PORT": "8080",
    "SM_VLLM_API_KEY": '["one-secret", "another-secret"]',
    "SM_VLLM_HOST": "0.0.0.0",
    "SM_VLLM_COMPILATION_CONFIG": '{"cudagraph_mode": "FULL", "splitting_ops": []}',
    "SM_VLLM_ALLOWED_ORIGINS": '["*"]',
    "SM_VLLM_LOAD_FORMAT": "auto",
    "HF_TOKEN": "hf_aaaaaaaaaaa",
    "SM_VLLM_OVERRIDE_GENERATION_CONFIG": '{"a": {"b": [1, {"c": null}]}}',
    "PEAGLE_DRAIN_SECONDS": "60",
    "PEAGLE_RESTARTS": "3",
    "PEAGLE_WARM": "auto",
    "PEAGLE_ML_ROOT": "/opt/ml",
    "SAGEMAKER_BIND_TO_PORT": "8080",
    "HF_MODEL_ID": "openai/gpt-oss-20b",
    "SM_VLLM_SERVED_MODEL_NAME": '["a", "b"]',
    "SM_VLLM_MAX_NUM_SEQS": "8",
    "VLLM_API_KEY": "secret-1",
}
LINES = (
    "(EngineCore pid=12) ERROR 11-22 08:00:10 [core.py:271] EngineCore failed to start.",
    "(EngineCore pid=12) Traceback (most recent call last):",
    '  File "/usr/lib/python3/site-packages/vllm/core.py", line 7, in run',
    "    assert layers > 0",
    "AssertionError",
    "ValueError: the head has 3 layers",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "  Value error, x [type=value_error, input_value=Args((), {'a': 1}), input_type=Args]",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    'INFO:     127.0.0.1:5000 - "POST /invocations HTTP/1.1" 200 OK',
    "vllm serve: error: argument --max-model-len: invalid value: 'x'",
    "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1)",
    "\x1b[32mloading\x1b[0m:  10%\r loading:  20%\r",
    "RuntimeError: Engine core initialization failed.",
    "api_key=one-secret password: hunter2 Bearer abcdefgh input_value={'a': 'x'}, input_type=dict",
)
PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 60.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.0
"""
SOURCE = """\
@dataclass
class EngineArgs:
    model: str = ""
    max_model_len: int | None = None
    enforce_eager: bool = False

    parser.add_argument("--tensor-parallel-size", type=int)
    parser.add_argument("--disable-log-stats", action="store_true")
"""


def header_file(document: bytes, data: int) -> bytes:
    """A safetensors file with that header and so many bytes of tensors."""
    return len(document).to_bytes(8, "little") + document + bytes(data)


WEIGHTS = header_file(json.dumps(HEADER).encode(), 38)
MOUNTED = {
    "format": 1,
    "folders": {
        "target": {
            "complete": True,
            "files": {
                "config.json": {
                    "size": 2,
                    "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
                    "checksum": "SHA256:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=",
                }
            },
        }
    },
}
"""The manifest of a model whose config.json is ``{}``."""
