"""Environments for GPUs, adapted to a CPU; and plans that a CPU cannot run."""

from __future__ import annotations

import json

import pytest

from peagle.engine.machine import Machine
from peagle.engine.runner import cannot_run, for_cpu, model_paths

GIB = 2**30
MACHINE = Machine(memory_bytes=16 * GIB, cores=4, system="Linux", architecture="x86_64")
TINY = {"SM_VLLM_MODEL": "/opt/ml/model/target"}
SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"


@pytest.mark.parametrize(
    "name",
    [
        "SM_VLLM_KV_CACHE_DTYPE",
        "SM_VLLM_GPU_MEMORY_UTILIZATION",
        "SM_VLLM_QUANTIZATION",
        "SM_VLLM_ATTENTION_BACKEND",
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
    ],
)
def test_gpu_settings_are_dropped_with_a_note(name: str) -> None:
    changed, notes = for_cpu({**TINY, name: "value"}, MACHINE)
    assert name not in changed
    assert sum(note.startswith(f"{name}=value is dropped: ") for note in notes) == 1


def test_gpu_settings_of_the_speculation_are_dropped() -> None:
    config = {
        "method": "eagle3",
        "model": "/opt/ml/ä",
        "num_speculative_tokens": 7,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.7, 0.5],
        "draft_tensor_parallel_size": 2,
    }
    changed, notes = for_cpu({SPECULATION: json.dumps(config)}, MACHINE)
    assert json.loads(changed[SPECULATION]) == {
        "method": "eagle3",
        "model": "/opt/ml/ä",
        "num_speculative_tokens": 7,
        "draft_tensor_parallel_size": 1,
    }
    assert len([note for note in notes if "speculation" in note or "draft_" in note]) == 2


def test_the_users_own_settings_stay() -> None:
    own = {"VLLM_CPU_KVCACHE_SPACE": "12", "OMP_NUM_THREADS": "2", "SM_VLLM_ENFORCE_EAGER": "false"}
    changed, _ = for_cpu(own, MACHINE)
    assert own.items() <= changed.items()


@pytest.mark.parametrize(("gib", "space"), [(2, "1"), (31, "1"), (64, "4"), (1024, "8")])
def test_the_kv_cache_takes_a_sixteenth_of_the_memory(gib: int, space: str) -> None:
    machine = Machine(gib * GIB, 1, "Linux", "x86_64")
    changed, _ = for_cpu(TINY, machine)
    assert changed["VLLM_CPU_KVCACHE_SPACE"] == space
    assert changed["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("environment", "weight_bytes", "why"),
    [
        ({"SM_VLLM_MODEL": "a/b"}, 0, "its target (a/b) would have to be downloaded"),
        (
            {**TINY, SPECULATION: '{"model": "a/head"}'},
            0,
            "its drafter (a/head) would have to be downloaded",
        ),
        ({**TINY, "SM_VLLM_QUANTIZATION": "mxfp4"}, 0, "its weights are quantized (mxfp4)"),
        ({**TINY, SPECULATION: '{"method": "suffix"}'}, 0, "needs Arctic Inference"),
        (
            TINY,
            8 * GIB + 1,
            "its weights take 8.0 GiB; the limit is half of this machine's memory, 8.0",
        ),
    ],
)
def test_the_reason_why_a_plan_cannot_run_is_reported(
    environment: dict[str, str], weight_bytes: int, why: str
) -> None:
    assert why in (cannot_run(environment, weight_bytes, MACHINE) or "")


def test_an_invalid_speculation_stays_for_the_container_to_refuse() -> None:
    environment = {**TINY, SPECULATION: "{"}
    assert for_cpu(environment, MACHINE)[0][SPECULATION] == "{"
    assert model_paths(environment) == {"target": "/opt/ml/model/target"}


def test_a_cpu_compiles_only_on_request_and_notes_it() -> None:
    eager, _ = for_cpu(TINY, MACHINE)
    compiled, notes = for_cpu(TINY, MACHINE, compiled=True)
    assert eager["SM_VLLM_ENFORCE_EAGER"] == "true"
    assert "SM_VLLM_ENFORCE_EAGER" not in compiled
    assert any(note.startswith("the model is compiled") for note in notes)
