"""Which engine arguments of a plan the sandbox's engine did not get."""

from __future__ import annotations

import json

from peagle.engine.cpu import for_cpu
from peagle.engine.machine import Machine
from peagle.sandbox.launch_spec import not_applied

MACHINE = Machine(16 * 2**30, 4, "Linux", "x86_64")


def missing(**planned: str) -> tuple[str, ...]:
    environment = {f"SM_VLLM_{name}": value for name, value in planned.items()}
    return not_applied(environment, for_cpu(environment, MACHINE)[0])


def test_arguments_for_a_gpu_are_named_with_their_values() -> None:
    assert missing(
        GPU_MEMORY_UTILIZATION="42",
        ENABLE_EXPERT_PARALLEL="true",
        TENSOR_PARALLEL_SIZE="4",
        MAX_MODEL_LEN="512",
    ) == (
        "--enable-expert-parallel",
        "--gpu-memory-utilization 42",
        "--tensor-parallel-size 4 (1 instead)",
    )


def test_parts_of_the_speculation_are_named_one_by_one() -> None:
    config = {"method": "eagle3", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 2}
    assert missing(SPECULATIVE_CONFIG=json.dumps(config)) == (
        "--speculative-config.draft_tensor_parallel_size 2 (1 instead)",
    )


def test_a_stand_in_s_model_and_name_are_not_listed() -> None:
    planned = {"SM_VLLM_MODEL": "openai/gpt-oss-20b", "SM_VLLM_QUANTIZATION": "mxfp4"}
    run = {"SM_VLLM_MODEL": "/opt/ml/model/target", "OMP_NUM_THREADS": "1"}
    assert not_applied(planned, run) == ("--quantization mxfp4",)
