"""Variables that choose the code that an engine's process loads."""

from __future__ import annotations

import pytest

from peagle_serve.code_variables import check_no_code, code_variables
from peagle_serve.contract import InvalidEnvironment

CHOOSES = {
    "PYTHONPATH": "/tmp/modules", "PYTHONSTARTUP": "/tmp/a.py", "LD_PRELOAD": "/tmp/a.so",
    "LD_LIBRARY_PATH": "/tmp", "LD_AUDIT": "/tmp/a.so", "DYLD_INSERT_LIBRARIES": "/tmp/a",
    "PATH": "/tmp", "HOME": "/tmp", "CC": "/tmp/cc", "TMPDIR": "/tmp/of-another",
    "GCONV_PATH": "/tmp", "OPENSSL_CONF": "/tmp/openssl.cnf", "TRITON_CACHE_DIR": "/tmp",
    "VLLM_CACHE_ROOT": "/tmp", "VLLM_LOGGING_CONFIG_PATH": "/tmp/l.json", "PEAGLE_CACHE": "/tmp",
    "VLLM_NCCL_SO_PATH": "/tmp/a.so", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "SM_VLLM_MIDDLEWARE": "a.b", "SM_VLLM_TOOL_PARSER_PLUGIN": "/tmp/a.py",
    "SM_VLLM_WORKER_CLS": "a.B", "SM_VLLM_TRUST_REMOTE_CODE": "true",
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "a.Executor",
    "SM_VLLM_KV_TRANSFER_CONFIG": '{"kv_connector_module_path": "a.b"}',
    "SM_VLLM_EC_TRANSFER_CONFIG": '{"ec_connector_module_path": "a.b", "ec_rank": NaN}',
    "SM_VLLM_ATTENTION_CONFIG": '{"custom_class": "a.b", "custom_class": "a.b"}',
    "SM_VLLM_COMPILATION_CONFIG": '{"backend": "a.b.compile"}',
    "SM_VLLM_LOGITS": '[{"x_qualname": "a.b"}]',
    "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "custom_class", "model": "a.B"}',
    "TORCHINDUCTOR_CUTLASS_DIR": "/tmp", "TORCHINDUCTOR_CK_DIR": "/tmp", "NUMBA_CACHE_DIR": "/tmp",
    "TORCHINDUCTOR_REDIS_URL": "redis://a", "TORCHINDUCTOR_REDIS_HOST": "a",
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1", "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "1",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "1", "VLLM_USE_MODELSCOPE": "True",
    "TRITON_CACHE_MANAGER": "a:B", "TRITON_REMOTE_CACHE_BACKEND": "a:B", "OUTLINES_CACHE_DIR": "/a",
    "PYTORCH_NVCC": "/tmp/nvcc", "SM_VLLM_middleware": "a.b", "SM_VLLM_TOOL-PARSER-PLUGIN": "/a.py",
    "SM_VLLM_COMPILATION_CONFIG.BACKEND": "a.b",
    "SM_VLLM_COMPILATION_CONFIG.INDUCTOR_PASSES.X": "os.system",
    "SM_VLLM_KV_TRANSFER_CONFIG.KV_CONNECTOR_EXTRA_CONFIG": '{"spec_module_path": "a"}',
    "SM_VLLM_LOGITS_PROCESSOR_PATTERN": ".*",
}  # fmt: skip

CHOOSES_IN_JSON = {
    "SM_VLLM_COMPILATION_CONFIG": (
        '{"inductor_passes": {"post_grad_custom_post_pass": "a.b"}}', '{"cache_dir": "/tmp"}',
        '{"mode": 3, "inductor_compile_config": {"cpp.cxx": [null, "/tmp/cc"]}}',
        '{"inductor_compile_config": {"rocm.ck_dir": "/tmp"}}',
        '{"inductor_compile_config": {"fx_graph_remote_cache": true}}',
    ),
    "SM_VLLM_STRUCTURED_OUTPUTS_CONFIG": ('{"reasoning_parser_plugin": "/tmp/a.py"}',),
    "SM_VLLM_EC_MANAGER_CONFIG": ('{"encoder_cache_manager_cls": "a.B"}',),
    "SM_VLLM_KV_TRANSFER_CONFIG": (
        '{"kv_connector_extra_config": {"spec_module_path": "a"}}',
        '{"kv_connector_extra_config": {"secondary_tiers": [{"module_path": "a"}]}}',
        '{"kv_connector_extra_config": {"cache_policy_module_path": "a"}}',
    ),
    "SM_VLLM_HF_OVERRIDES": ('{"text_config": {"trust_remote_code": true}}',),
}  # fmt: skip

HARMLESS = {
    "SM_VLLM_MODEL": "/opt/ml/model", "SM_VLLM_TRUST_REMOTE_CODE": "False",
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "mp", "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",
    "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "eagle3", "model": "/opt/ml/model/drafter.v1"}',
    "SM_VLLM_COMPILATION_CONFIG": '{"cudagraph_mode": "FULL", "backend": "inductor", '
                                  '"inductor_compile_config": {"max_autotune": true}}',
    "SM_VLLM_COMPILATION_CONFIG.MODE": "3", "SM_VLLM_COMPILATION_CONFIG.BACKEND": "inductor",
    "VLLM_USE_MODELSCOPE": "False", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
    "SM_VLLM_HF_OVERRIDES": "{broken", "HF_HOME": "/tmp", "VLLM_USE_V1": "1", "TZ": "UTC",
    "VLLM_PLUGINS": "", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "PEAGLE_WARM": "off",
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSES)
def test_a_variable_that_chooses_code_is_found(name: str) -> None:
    assert code_variables({**HARMLESS, name: CHOOSES[name]}) == (name,)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in CHOOSES_IN_JSON.items() for value in values],
)
def test_a_member_of_an_argument_that_chooses_code_is_found(name: str, value: str) -> None:
    assert code_variables({**HARMLESS, name: value}) == (name,)


def test_what_vllm_and_plans_need_is_passed_on() -> None:
    check_no_code(HARMLESS)


def test_the_refusal_names_every_variable() -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check_no_code({"LD_PRELOAD": "/a", "PYTHONPATH": "/a", "SM_VLLM_MODEL": "m"})
    assert refused.value.message.startswith("LD_PRELOAD, PYTHONPATH: this chooses the code")
