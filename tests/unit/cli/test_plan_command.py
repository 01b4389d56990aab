"""``peagle plan``: what a user sees, the document, the exit code, and how heavy it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.cli.main import cli
from peagle.errors import PeagleError
from tests.unit.checks.damage import Damage, damaged, tiny


def run(*arguments: str, **environment: str | None) -> Result:
    settings: dict[str, str | None] = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    done = CliRunner().invoke(cli, ["plan", *arguments], env={**settings, **environment})
    if isinstance(done.exception, PeagleError):
        done.exit_code = done.exception.exit_code  # as peagle.cli.main ends it
    return done


def document(*arguments: str, **environment: str | None) -> dict[str, Any]:
    done = run(*arguments, "--json", **environment)
    assert done.exit_code in (0, 3), done.output
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def refusal(*arguments: str) -> PeagleError:
    done = run(*arguments)
    assert isinstance(done.exception, PeagleError), done.output
    return done.exception


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A P-EAGLE head in a folder of the user's own."""
    return damaged(tiny("p-eagle"), tmp_path / "my head", Damage())


def test_a_batch_has_a_time_and_a_total_cost() -> None:
    shown = document("gpt-oss-20b", "--requests", "1m", "--within", "8h")
    batch = shown["batch"]
    assert batch["requests"] == 10**6
    assert batch["seconds"] <= batch["within_seconds"] == 8 * 3600
    hours = batch["seconds"] / 3600
    assert batch["usd"] == pytest.approx(hours * shown["price_per_hour_usd"], abs=0.01)
    done = run("gpt-oss-20b", "--requests", "1m", "--within", "8h", COLUMNS="200")
    assert "1,000,000 requests within 8h" in done.stdout.splitlines()[0]
    assert f"cost ${batch['usd']:,.2f}" in done.stdout


def test_a_batch_that_cannot_be_done_in_time_is_refused() -> None:
    typed = ("gpt-oss-20b", "--requests", "1m", "--within", "1h", "--instance-count", "1")
    error = refusal(*typed, "--instance-type", "ml.g6.xlarge")
    assert (error.code, error.exit_code) == ("speed-below-minimum", 3)


def test_the_next_command_is_the_one_to_type() -> None:
    done = run("gpt-oss-20b", "--k", "3", "--no-speculation")
    assert isinstance(done.exception, PeagleError), "--k cannot be combined with --no-speculation"
    done = run("gpt-oss-20b", "--k", "3", "--name", "mine", AWS_REGION="eu-west-1")
    assert "Next: peagle deploy gpt-oss-20b --k 3 --name mine\n" in done.stdout
    done = run("gpt-oss-20b", "--no-speculation", "--region", "us-west-2")
    assert "peagle deploy gpt-oss-20b --no-speculation --region us-west-2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--k", "11"], "k-above-trained"),
        (["--vllm", "0.19.0", "--max-model-len", "200000"], "context-above-target"),
        (["--instance-type", "ml.g4dn.xlarge"], "instance-too-small"),
        (["--drafter", "amazon/gpt-oss-120b-p-eagle"], "head-not-for-target"),
    ],
)
def test_a_refused_plan_is_shown_and_ends_with_three(
    arguments: list[str], code: str, tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    done = run("gpt-oss-20b", *arguments, "--json", "--out", str(out))
    assert done.exit_code == 3
    made = json.loads(done.stdout)
    assert code in [f["code"] for f in made["findings"] if f["level"] == "error"]
    assert not out.exists(), "a plan that cannot be applied is not written"
    done = run("gpt-oss-20b", *arguments)
    assert done.exit_code == 3
    assert "error" in done.stdout
    assert "Next:" not in done.stdout


OVERRIDES = (
    *("--set", "seed=7", "--set", "--enforce_eager", "--env", "VLLM_LOGGING_LEVEL=DEBUG"),
    *("--ami", "al2023-ami-sagemaker-inference-gpu-4-1"),
)


@pytest.mark.thorough
def test_overrides_are_kept_in_the_document_and_in_the_next_command() -> None:
    made = document("tiny", *OVERRIDES)
    assert made["overrides"]["settings"] == {"seed": "7", "enforce-eager": "true"}
    assert made["environment"]["SM_VLLM_ENFORCE_EAGER"] == "true"
    assert made["environment"]["VLLM_LOGGING_LEVEL"] == "DEBUG"
    printed = " ".join(run("tiny", *OVERRIDES).output.split())
    assert f"peagle deploy tiny {' '.join(OVERRIDES)}" in printed


@pytest.mark.parametrize("words", [("--set", "seed=7"), ("--env", "A=b"), ("--ami", "default")])
def test_an_override_and_a_plan_file_are_not_combined(
    words: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    assert run("tiny", "--out", str(file)).exit_code == 0
    refused = refusal(str(file), *words)
    assert refused.message.startswith(f"{words[0]} cannot be combined with a plan file")
    assert refused.code == "conflicting-options"


@pytest.mark.parametrize(
    "options",
    [
        ("tiny", "--k", "3", "--max-model-len", "1k", "--prompt-tokens", "500"),
        ("gpt-oss-20b", "--k", "3", "--vllm", "0.28.0", "--ttl", "2h", "--min-instances", "1",
         "--max-instances", "3", "--model-source", "s3://amzn-s3-demo-bucket/gpt",
         "--instance-type", "ml.g6e.xlarge", "--observe"),
    ],
)  # fmt: skip
@pytest.mark.thorough
def test_the_command_that_renews_a_plan_file_keeps_its_options(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    made, refused = tmp_path / "made.json", tmp_path / "refused.json"
    assert run(*options, "--output", str(made)).exit_code == 0
    before = json.loads(made.read_text())
    refused.write_text(json.dumps({**before, "format": 99}))
    command = refusal(str(refused)).command
    assert command[:2] == ("peagle", "plan")
    assert run(*command[2:]).exit_code == 0
    after = json.loads(refused.read_text())
    for key in ("environment", "speculation", "requests", "limit", "scaling", "prompt_tokens"):
        assert after[key] == before[key], key
