"""``peagle check``: what a user sees, the document, the exit code, and how heavy it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import in_process
from tests.unit.checks.damage import tiny
from tests.unit.cli.commands import Terminal

GEMMA = ("gemma-4-31b", "--instance-type", "ml.p5en.48xlarge")
FLASHINFER = 'SM_VLLM_ATTENTION_CONFIG={"backend": "FLASHINFER"}'


def document(*arguments: str) -> dict[str, Any]:
    done = in_process("check", *arguments, "--json")
    made: dict[str, Any] = done.document
    assert done.code == (3 if codes(made) else 0)
    return made


def codes(made: dict[str, Any], level: str = "error") -> list[str]:
    return [finding["code"] for finding in made["findings"] if finding["level"] == level]


@pytest.mark.parametrize(("arguments", "code", "level"), [
    (["tiny", "--env", "SM_VLLM_ENABLE_LORA=true"], "lora", "error"),
    ([*GEMMA, "--env", FLASHINFER], "sliding-flashinfer", "error"),
    (["tiny", "--speculative", "disable_by_batch_size=8"], "speculative-setting", "error"),
])  # fmt: skip
def test_every_option_reaches_its_rule(arguments: list[str], code: str, level: str) -> None:
    assert code in codes(document(*arguments), level)


def test_a_head_without_safetensors_is_refused_with_the_way_to_convert_it(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would load it, but its tensors cannot be listed without unpickling."""
    (tmp_path / "config.json").write_bytes((tiny("p-eagle") / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").touch()
    monkeypatch.setattr("peagle.engine.machine.installed_engines", lambda: ())
    made = document("tiny", "--drafter", str(tmp_path))
    assert codes(made, "error") == ["weights-unread"]
    (unread,) = [finding for finding in made["findings"] if finding["code"] == "weights-unread"]
    assert "safetensors" in unread["fix"]
    planned = in_process("plan", "tiny", "--drafter", str(tmp_path), "--json")
    assert planned.refusal["code"] == "weights-unread"


@pytest.mark.parametrize("k", [5, 7])
def test_plan_and_check_agree_on_a_k_whose_training_is_unknown(terminal: Terminal, k: int) -> None:
    """7 is the recommended K: advice to try it would lead nowhere."""
    arguments = ("qwen3-8b", "--k", str(k), "--json")
    planned, checked = (terminal.run(name, *arguments).document for name in ("plan", "check"))
    notes = [
        [
            finding | {"command": None}  # only a report has the command that the user typed
            for finding in findings["findings"]
            if finding["code"] == "k-above-trained"
        ]
        for findings in (planned, checked)
    ]
    assert notes[0] == notes[1]
    assert len(notes[0]) == (1 if k == 5 else 0)
