"""``peagle check``: what a user sees, the document, the exit code, and how heavy it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import PeagleError
from tests.support import Peagle
from tests.unit.checks.damage import Damage, damaged, tiny
from tests.unit.cli.commands import Terminal

NOT_FOR_A_DOCUMENT = ("boto3", "botocore", "moto", "torch", "vllm", "rich", "huggingface_hub")

GEMMA = ("gemma-4-31b", "--instance-type", "ml.p5en.48xlarge")
FLASHINFER = '{"backend": "FLASHINFER"}'


def run(*arguments: str) -> Result:
    settings = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    done = CliRunner().invoke(cli, ["check", *arguments], env=settings)
    if isinstance(done.exception, PeagleError):
        done.exit_code = done.exception.exit_code  # as peagle.cli.main ends it
    return done


def document(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code in (0, 3), done.output
    made: dict[str, Any] = json.loads(done.stdout)
    assert (done.exit_code == 3) == ("error" in levels(made))
    return made


def levels(made: dict[str, Any]) -> list[str]:
    return [finding["level"] for finding in made["findings"]]


def codes(made: dict[str, Any], level: str = "error") -> list[str]:
    return [finding["code"] for finding in made["findings"] if finding["level"] == level]


def refusal(*arguments: str) -> PeagleError:
    error = run(*arguments).exception
    assert isinstance(error, PeagleError)
    return error


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of a good head of one's own."""
    return Path(shutil.copytree(tiny("p-eagle"), tmp_path / "own"))


def test_the_pair_shows_how_the_drafter_is_loaded() -> None:
    head = str(tiny("eagle3"))
    assert codes(document("tiny", "--drafter", head)) == ["eagle3-as-p-eagle"]
    assert codes(document("tiny+eagle3", "--drafter", head)) == []
    assert codes(document("tiny", "--drafter", "eagle3")) == []


def test_a_setting_with_bytes_that_are_no_text_is_a_finding() -> None:
    """A shell hands such bytes over as lone surrogates, which UTF-8 cannot express."""
    assert codes(document("tiny", "--set", "dtype=float\udcff")) == ["engine-value"]


def test_a_target_that_is_another_model_is_an_error(tmp_path: Path) -> None:
    config = json.loads((tiny("target") / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 12}))
    assert codes(document("tiny", "--target", str(other))) == ["target-differs"]


@pytest.mark.parametrize(
    ("arguments", "code", "level"),
    [
        (["tiny", "--k", "20"], "k-above-trained", "error"),
        (["tiny", "--max-model-len", "4096"], "context-above-target", "error"),
        (["tiny", "--tp", "3"], "tensor-parallel", "error"),
        (["gpt-oss-20b", "--vllm", "0.17.1"], "kv-group-rule", "error"),
        (["gpt-oss-20b", "--vllm", "0.17.1"], "runtime-unknown", "error"),
        (["tiny", "--instance-type", "ml.g9.xlarge"], "instance-unknown", "error"),
        (["tiny", "--instance-type", "ml.g6.xlarge", "--ami", "default"], "ami-driver", "error"),
        (["gpt-oss-20b", "--instance-type", "ml.g4dn.xlarge"], "gpu-too-old", "error"),
        (["tiny", "--image", "docker.io/me/mine:1"], "image-not-in-ecr", "error"),
        (["tiny", "--region", "us-east-9"], "region-unknown", "error"),
        (["tiny", "--set", "enable-lora"], "lora", "error"),
        (["tiny", "--env", "SM_VLLM_ENABLE_LORA=true"], "lora", "error"),
        (["tiny", "--env", "SM_VLLM_PIPELINE_PARALLEL_SIZE=2"], "pipeline-parallel", "error"),
        (["tiny", "--env", "SM_VLLM_FOO=bar"], "engine-argument", "error"),
        ([*GEMMA, "--env", "SM_VLLM_KV_CACHE_DTYPE=fp8"], "sliding-flashinfer", "error"),
        ([*GEMMA, "--set", f"attention-config={FLASHINFER}"], "sliding-flashinfer", "error"),
        (
            [*GEMMA, "--env", f"SM_VLLM_ATTENTION_CONFIG={FLASHINFER}"],
            "sliding-flashinfer",
            "error",
        ),
        (
            [*GEMMA, "--set", "attention-config.backend=FLASHINFER"],
            "sliding-flashinfer",
            "error",
        ),
        (["tiny", "--set", "--pipeline-parallel-size=2"], "pipeline-parallel", "error"),
        (["tiny", "--env", "VLLM_USE_V2_MODEL_RUNNER=1"], "model-runner-v2", "error"),
        (["tiny", "--speculative", "disable_by_batch_size=8"], "speculative-setting", "error"),
        (["tiny", "--speculative", "num_speculative_token=5"], "speculative-setting", "error"),
        (["tiny", "--set", "foo=bar"], "engine-argument", "error"),
        (["tiny", "--set", "gpu-memory-utilization=90"], "memory-utilization", "error"),
        (["gpt-oss-20b", "--concurrency", "100000"], "drafting-slots", "warning"),
        (["tiny", "--tp", "8", "--instance-type", "ml.g6.xlarge"], "tensor-parallel", "error"),
        (["tiny", "--cpu", "--vllm", "0.30.0"], "vllm-cpu-broken", "error"),
        (["tiny", "--cpu", "--set", "dtype=bfloat16"], "amx-small-layers", "note"),
        (["gpt-oss-20b", "--max-model-len", "131072"], "long-context-head", "warning"),
        (["qwen3-coder-30b", "--set", "quantization=fp8"], "target-numerics", "warning"),
    ],
)
def test_every_option_reaches_its_rule(arguments: list[str], code: str, level: str) -> None:
    assert code in codes(document(*arguments), level)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tiny", "--env", "SM_VLLM_ENABLE_LORA=false"],
        ["tiny", "--env", "SM_VLLM_ENABLE_LORA=true", "--set", "enable-lora=false"],
        [*GEMMA, "--set", 'attention-config={"backend": "TRITON_ATTN"}'],
        [*GEMMA, "--set", 'attention-config="FLASHINFER"'],
        [*GEMMA, "--set", "attention-config=[1"],
    ],
)
def test_a_disabled_setting_is_not_an_error(arguments: list[str]) -> None:
    assert codes(document(*arguments)) == []


def test_a_variable_overrides_the_plans_argument() -> None:
    older = ["gpt-oss-20b", "--vllm", "0.27.1"]
    assert "prefix-caching" not in codes(document(*older), "warning")
    turned_on = document(*older, "--env", "SM_VLLM_ENABLE_PREFIX_CACHING=true")
    assert "prefix-caching" in codes(turned_on, "warning")


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("gone"), Path.mkdir, os.mkfifo])
def test_half_of_a_downloaded_head_is_one_error(make: Callable[[Path], None], own: Path) -> None:
    (own / "model.safetensors").unlink()
    make(own / "model.safetensors")
    error = refusal("tiny", "--drafter", str(own))
    assert "model.safetensors is" in error.message
    assert "so it cannot be read" in error.message
    assert "aborted download" in error.fix


@pytest.mark.parametrize(
    "more",
    [("--set", "speculative-config={}"), ("--set", "spec-tokens=4"),
     ("--env", "SM_VLLM_speculative_config={}")],
)  # fmt: skip
def test_the_pair_decides_the_speculation(more: tuple[str, str]) -> None:
    assert refusal("tiny", *more).code == "decided-by-plan"


def test_another_targets_head_is_recognized_by_its_id_without_reading_it() -> None:
    made = document("gpt-oss-20b", "--drafter", "amazon/gpt-oss-120b-p-eagle")
    assert codes(made) == ["head-not-for-target"]
    assert made["read"] == []


def test_a_damaged_head_is_one_error_with_the_exit_code_of_a_finding(tmp_path: Path) -> None:
    head = damaged(tiny("p-eagle"), tmp_path / "head", Damage(text="{"))
    error = refusal("tiny", "--drafter", str(head))
    assert error.exit_code == 3
    assert "config.json is not valid JSON" in error.message
    head = damaged(tiny("p-eagle"), tmp_path / "cut", Damage())
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    error = refusal("tiny", "--drafter", str(head))
    assert error.exit_code == 3
    assert "is truncated" in error.message


@pytest.fixture
def bin_head(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_bytes((tiny("p-eagle") / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").touch()
    return tmp_path


def test_a_head_without_safetensors_is_refused_with_the_way_to_convert_it(
    bin_head: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would load it, but its tensors cannot be listed without unpickling."""
    tmp_path = bin_head
    monkeypatch.setattr("peagle.engine.machine.installed_engines", lambda: ())
    assert run("tiny", "--drafter", str(tmp_path)).exit_code == 3
    made = document("tiny", "--drafter", str(tmp_path))
    assert codes(made, "error") == ["weights-unread"]
    (unread,) = [finding for finding in made["findings"] if finding["code"] == "weights-unread"]
    program = unread["command"]
    assert program[:2] == ["python", "-c"]
    compile(program[2], "fix", "exec")
    assert f'torch.load("{tmp_path}/pytorch_model.bin"' in program[2]
    assert f'"{tmp_path}/model.safetensors")' in program[2]
    assert "a Python that has torch and safetensors" in unread["fix"]


def test_half_of_a_copied_head_is_one_error(tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        new = file.replace("model.", "model-00001-of-00002.")
        (tmp_path / new).write_bytes((tiny("p-eagle") / file).read_bytes())
    error = refusal("tiny", "--drafter", str(tmp_path))
    assert "1 of 2 files are missing: model-00002-of-00002.safetensors" in error.message


def test_target_of_an_own_catalogue_is_a_pair(tmp_path: Path) -> None:
    text = (tiny("target").parents[1] / "tiny.yaml").read_text()
    own = tmp_path / "acme"
    own.mkdir()
    for part in ("target", "p-eagle", "eagle3"):
        (own / "mine" / part).parent.mkdir(exist_ok=True)
        (own / "mine" / part).symlink_to(tiny(part))
    text = text.replace("id: peagle/tiny", "id: acme/mine").replace("./tiny/", "./mine/")
    (own / "mine.yaml").write_text(text.replace("short_name: tiny", "short_name: mine"))
    settings = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    arguments = ["--catalog", str(tmp_path), "check", "mine", "--json"]
    done = CliRunner().invoke(cli, arguments, env=settings)
    assert done.exit_code == 0, done.output
    assert [Path(place["location"]).name for place in json.loads(done.stdout)["read"]] == [
        "target",
        "p-eagle",
    ]


@pytest.mark.thorough
def test_a_document_needs_no_heavy_library() -> None:
    code = (
        "import sys; from peagle.cli.main import cli;"
        "cli(['check', 'tiny', '--json'], standalone_mode=False);"
        f"print([m for m in {NOT_FOR_A_DOCUMENT!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_bytes_that_are_no_text_are_shown_escaped(peagle: Peagle) -> None:
    done = peagle("check", "tiny", "--set", "dtype=float\udcff")
    assert done.returncode == 3
    assert "--dtype float\\udcff: vLLM" in done.stdout


@pytest.mark.parametrize("k", [5, 7])
def test_plan_and_check_agree_on_a_k_whose_training_is_unknown(terminal: Terminal, k: int) -> None:
    """7 is the recommended K: advice to try it would lead nowhere."""
    arguments = ("qwen3-8b", "--k", str(k), "--json")
    planned, checked = (terminal.run(name, *arguments).document for name in ("plan", "check"))
    notes = [
        [
            finding | {"command": None}  # only a report has the command that the user typed
            for finding in found["findings"]
            if finding["code"] == "k-above-trained"
        ]
        for found in (planned, checked)
    ]

    assert notes[0] == notes[1]
    assert len(notes[0]) == (1 if k == 5 else 0)
