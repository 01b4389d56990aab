"""Every command reads public targets by their config.json alone, as a user brings them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import in_process
from tests.unit.checkpoints import public_targets as public

QWEN_235B = public.config(
    "Qwen3MoeForCausalLM", "qwen3_moe", "4096 12288 94 64 4 151936 262144", head_dim=128,
    moe_intermediate_size=1536, num_experts=128, num_experts_per_tok=8,
    quantization_config=public.BLOCK_FP8,
)  # fmt: skip
AWQ = public.config(
    "Qwen3ForCausalLM", "qwen3", "5120 25600 64 64 8 151936 131072", head_dim=128,
    quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128},
)  # fmt: skip


def written(folder: Path, config: dict[str, Any], *files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name in files:
        (folder / name).write_text("{}")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    "config",
    [public.KIMI_LINEAR, public.QWEN3_NEXT, public.GEMMA3_27B, public.GEMMA_3N, public.EXAONE4,
     public.LLAMA4_SCOUT, public.NEMOTRON_H, public.DEEPSEEK_V3, AWQ,
     public.nas((8, 5.25), (None, 2.625), (16, None)),
     *(public.PUBLISHED[name][0] for name in
       ("gpt2", "falcon-7b", "DBRX", "LLaVA-1.5-7b", "Qwen2-Audio-7B", "falcon-mamba-7b",
        "mamba-codestral-7b", "Zamba2-7B"))],
    ids=lambda config: str(config["model_type"]),
)  # fmt: skip
def test_it_is_checked_fitted_planned_and_described(tmp_path: Path, config: dict[str, Any]) -> None:
    place = written(tmp_path / "model", config)
    assert in_process("check", place).code == 0
    fit = in_process("fit", "--target", place, "--max-model-len", "1024",
                     "--instance-type", "ml.p6-b300.48xlarge", "--json")  # fmt: skip
    assert fit.document["fits"], fit.err
    plan = in_process("plan", place, "--max-model-len", "1k", "--json")
    assert plan.code == 0, plan.err
    assert "not-estimated" not in {finding["code"] for finding in plan.document["findings"]}
    entry = in_process("catalog", "init", place, "--output", str(tmp_path / "entry.yaml"))
    assert entry.code == 0, entry.err


@pytest.mark.parametrize(
    ("options", "size", "copies"),
    [((), 4, 2), (("--copies", "1", "--set", "enable-expert-parallel=true"), 8, None)],
)
def test_a_size_that_cuts_a_block_is_no_candidate(
    tmp_path: Path, options: tuple[str, ...], size: int, copies: int | None
) -> None:
    where = ("--max-model-len", "128k", "--concurrency", "64", "--instance-type", "ml.p5.48xlarge")
    done = in_process("plan", written(tmp_path / "q", QWEN_235B), *where, *options, "--json")
    plan = done.document
    assert plan["fit"]["tensor_parallel_size"] == size
    assert plan.get("copies", {}).get("per_instance") == copies
    codes = {finding["code"]: finding for finding in plan["findings"]}
    assert ("quantization-block" in codes) == (size == 4)


def test_the_size_of_the_user_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = written(tmp_path / "q", QWEN_235B)
    on = ("--instance-type", "ml.p5.48xlarge", "--tp", "8", "--json")
    refused = in_process("fit", "--target", place, *on)
    assert refused.code == 2
    assert "fp8.py:534" in refused.err
    whole = in_process("fit", "--target", place, *on, "--set", "enable-expert-parallel=true")
    assert whole.code == 0, whole.err


NO_TEXT = [
    ("BertModel", "bert"), ("Qwen2ForRewardModel", "qwen2"), ("T5EncoderModel", "t5"),
    ("CLIPModel", "clip"), ("Qwen3VLForSequenceClassification", "qwen3_vl"),
]  # fmt: skip


@pytest.mark.parametrize(("class_name", "model_type"), NO_TEXT)
def test_what_generates_no_text_is_refused(
    tmp_path: Path, class_name: str, model_type: str
) -> None:
    shape = AWQ | {"architectures": [class_name], "model_type": model_type}
    _refused(written(tmp_path / "model", shape))


def test_an_encoder_decoder_is_no_damaged_file(tmp_path: Path) -> None:
    whisper = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper",
               "d_model": 1280, "decoder_layers": 32, "is_encoder_decoder": True}  # fmt: skip
    for command in ("plan", "check"):
        done = in_process(command, written(tmp_path / "model", whisper))
        assert (done.code, "encoder-decoder" in done.err) == (2, True)


@pytest.mark.parametrize("file", ["config_sentence_transformers.json", "modules.json"])
def test_an_embedding_model_with_the_class_of_a_generator_is_refused(
    file: str, tmp_path: Path
) -> None:
    _refused(written(tmp_path / "model", AWQ, file))


def _refused(place: str) -> None:
    for arguments in (
        ("plan", place), ("check", place), ("catalog", "init", place),
        ("fit", "--target", place, "--gpu-memory-gib", "80"),
        ("fit", "qwen3-coder-30b", "--target", place, "--gpu-memory-gib", "80"),
    ):  # fmt: skip
        done = in_process(*arguments)
        assert done.code == 2, arguments
        assert "generates no text" in done.err


@pytest.mark.parametrize(
    ("class_name", "model_type", "code"),
    [
        ("RwkvForCausalLM", "rwkv", 2), ("RWKV7ForCausalLM", "rwkv7", 2),
        ("CodeGenForCausalLM", "codegen", 3), ("BaichuanForCausalLM", "baichuan", 3),
        ("Grok1ModelForCausalLM", "grok-1", 3), ("MiniMaxText01ForCausalLM", "minimax_text_01", 3),
    ],
)  # fmt: skip
def test_what_vllm_does_not_serve_is_refused(
    tmp_path: Path, class_name: str, model_type: str, code: int
) -> None:
    shape = {key: AWQ[key] for key in AWQ if key != "quantization_config" and key != "head_dim"}
    config = shape | {"architectures": [class_name], "model_type": model_type}
    place = written(tmp_path / "model", config)
    done = in_process("plan", place, "--json")
    assert (done.code, json.loads(done.err)["error"]["code"]) == (code, "model-not-served")
    if class_name.startswith(("Bai", "Grok", "Mini")):
        older = in_process("check", place, "--vllm", "0.23.0")
        assert "model-not-served" not in older.out
