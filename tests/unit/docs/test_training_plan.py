"""docs/train.md shows what ``peagle train plan`` prints. Numbers, which change with the evidence
and the prices that ship, are not compared."""

import json
import re
import shlex
from pathlib import Path

import pytest

from peagle.train.estimate import DataSize
from tests.support import bundled_catalog, in_process

ROOT = Path(__file__).resolve().parents[3]
WEEK = DataSize(35_980, 40_840_917, 35_980, 22_680_143, 18_160_774)
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": False,
    "hidden_act": "silu", "eos_token_id": 151645, "bos_token_id": 151643, "torch_dtype": "bfloat16",
}  # fmt: skip


def blocks() -> list[str]:
    chapter = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    return re.findall(r"^```console\n(\$ peagle train plan .*?)^```", chapter, re.M | re.S)


@pytest.mark.parametrize("block", blocks(), ids=str.splitlines)
def test_the_plan_is_as_shown(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _, shown = block.partition("\n")
    folder = tmp_path / "my-qwen3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_8B))
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 151668}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = (f'{{"prompt": "question {n}", "completion": "answer"}}\n' for n in range(20))
    (tmp_path / "week.jsonl").write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peagle.cli.train.measure_data", lambda *_, **__: WEEK)
    with bundled_catalog():
        done = in_process(*shlex.split(command)[2:])
    printed = words(done.out + done.err)
    for part in shown.split("...\n"):
        assert words(part) in printed


def words(text: str) -> str:
    return re.sub(r"[0-9][0-9,.]*", "0", " ".join(text.split()))
