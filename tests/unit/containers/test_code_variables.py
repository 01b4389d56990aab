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
}  # fmt: skip

HARMLESS = {
    "SM_VLLM_MODEL": "/opt/ml/model", "SM_VLLM_TRUST_REMOTE_CODE": "False",
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "mp", "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",
    "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "eagle3", "model": "/opt/ml/model/drafter.v1"}',
    "SM_VLLM_COMPILATION_CONFIG": '{"cudagraph_mode": "FULL", "backend": "inductor"}',
    "SM_VLLM_HF_OVERRIDES": "{broken", "HF_HOME": "/tmp", "VLLM_USE_V1": "1", "TZ": "UTC",
    "VLLM_PLUGINS": "", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "PEAGLE_WARM": "off",
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSES)
def test_a_variable_that_chooses_code_is_found(name: str) -> None:
    assert code_variables({**HARMLESS, name: CHOOSES[name]}) == (name,)


def test_what_vllm_and_plans_need_is_passed_on() -> None:
    check_no_code(HARMLESS)


def test_the_refusal_names_every_variable() -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check_no_code({"LD_PRELOAD": "/a", "PYTHONPATH": "/a", "SM_VLLM_MODEL": "m"})
    assert refused.value.message.startswith("LD_PRELOAD, PYTHONPATH: this chooses the code")
