"""``peagle plan``: what a user sees, the document, the exit code, and how heavy it is."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from peagle.cli.main import cli
from peagle.planning.load import USUAL_CONCURRENCY
from tests.support import Done, in_process
from tests.unit.checks.damage import tiny


def run(*arguments: str) -> Done:
    return in_process("plan", *arguments)


def test_a_batch_has_a_time_and_a_total_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    typed = ("gpt-oss-20b", "--requests", "1m", "--within", "8h")
    shown = run(*typed, "--json").document
    batch = shown["batch"]
    assert batch["requests"] == 10**6
    assert batch["seconds"] <= batch["within_seconds"] == 8 * 3600
    hours = batch["seconds"] / 3600
    assert batch["usd"] == pytest.approx(hours * shown["price_per_hour_usd"], abs=0.01)
    done = run(*typed)
    assert "1,000,000 requests within 8h" in done.out.splitlines()[0]
    assert f"cost ${batch['usd']:,.2f}" in done.out


def test_a_batch_that_cannot_be_done_in_time_is_refused() -> None:
    typed = ("gpt-oss-20b", "--requests", "1m", "--within", "1h", "--instance-count", "1")
    done = run(*typed, "--instance-type", "ml.g6.xlarge", "--json")
    assert (done.code, done.refusal["code"]) == (3, "speed-below-minimum")


def test_the_next_command_is_the_one_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    done = run("gpt-oss-20b", "--k", "3", "--name", "mine")
    assert "Next: peagle deploy gpt-oss-20b --k 3 --name mine\n" in done.out
    done = run("gpt-oss-20b", "--no-speculation", "--region", "us-west-2")
    assert "peagle deploy gpt-oss-20b --no-speculation --region us-west-2" in done.out


def test_a_refused_plan_is_shown_and_not_written(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = run("gpt-oss-20b", "--k", "11", "--out", str(out))
    assert done.code == 3
    assert (done.out + done.err).count("exceeds the trained K") == 1
    assert run("gpt-oss-20b", "--k", "11", "--json").refusal["code"] == "k-above-trained"
    assert "Next:" not in done.out
    assert not out.exists(), "it cannot be applied"


def test_the_help_names_the_default_concurrency() -> None:
    words = " ".join(in_process("plan", "--help").out.split())
    assert f"in all; {USUAL_CONCURRENCY} without --requests" in words


@pytest.mark.parametrize("options", [
    ("tiny", "--k", "3", "--max-model-len", "1k", "--prompt-tokens", "500"),
    ("gpt-oss-20b", "--k", "3", "--vllm", "0.28.0", "--ttl", "2h", "--min-instances", "1",
     "--max-instances", "3", "--model-source", "s3://amzn-s3-demo-bucket/gpt", "--instance-type",
     "ml.g6e.xlarge", "--observe"),
])  # fmt: skip
@pytest.mark.thorough
def test_the_command_that_renews_a_plan_file_keeps_its_options(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    made, refused = tmp_path / "made.json", tmp_path / "refused.json"
    assert run(*options, "--output", str(made)).code == 0
    before = json.loads(made.read_text())
    refused.write_text(json.dumps({**before, "format": 99}))
    command = run(str(refused), "--json").refusal["command"]
    assert command[:2] == ["peagle", "plan"]
    assert run(*command[2:]).code == 0
    after = json.loads(refused.read_text())
    for key in ("environment", "speculation", "requests", "limit", "scaling", "prompt_tokens"):
        assert after[key] == before[key], key


# ``peagle plan A --compare B``: two plans side by side.
def compared(*words: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The two answers, and the settings that differ."""
    done = in_process("plan", *words, "--json")
    assert done.code == 0, done.err
    first, second = done.document["plans"]
    return first, second, [change["setting"] for change in done.document["changes"]]


def test_the_target_alone_is_no_equal_where_it_misses_what_is_required() -> None:
    missed = "misses what is required of speed or price"
    required = ("--min-tokens-per-second", "800", "--max-price-per-hour", "5")
    shown = in_process("plan", "gpt-oss-20b", *required).out
    assert missed in shown
    assert "per million output tokens with it" not in shown
    assert missed not in in_process("plan", "gpt-oss-20b").out


@pytest.mark.thorough
def test_the_second_pair_may_have_options_of_its_own() -> None:
    other = "gpt-oss-20b --no-speculation --max-model-len 16k"
    first, second, _ = compared("gpt-oss-20b", "--max-model-len", "8k", "--compare", other)
    assert (second["method"], second["k"], second["max_model_len"]) == (None, 0, 16384)
    assert first["k"] > 0


@pytest.mark.thorough
def test_plan_files_are_compared_as_they_are(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for file, k in zip(files, ("3", "5"), strict=True):
        assert in_process("plan", "gpt-oss-20b", "--k", k, "--out", file).code == 0
    first, second, changes = compared(files[0], "--compare", files[1])
    assert (first["k"], second["k"]) == (3, 5)
    assert changes == ["k"]


def test_a_folder_is_compared_with_a_pair_of_the_catalogue() -> None:
    first, second, _ = compared("tiny", "--compare", shlex.join([str(tiny("target"))]))
    assert (first["pair"], second["pair"]) == ("peagle/tiny+p-eagle", "own/target")


def test_a_plan_that_cannot_be_deployed_is_shown_and_refused() -> None:
    done = in_process("plan", "tiny", "--compare", "tiny --k 99", "--json")
    assert done.code == 3
    assert '"refused": "k-above-trained"' in done.out


def test_a_comparison_writes_no_file(tmp_path: Path) -> None:
    done = in_process("plan", "tiny", "--compare", "tiny", "--out", str(tmp_path / "x.json"))
    assert (done.code, [*tmp_path.iterdir()]) == (2, [])


# ``peagle plan --changes-from``: the change, its price, and the gate on it.
FILE = "endpoints: {chat: {pair: tiny, instance_type: %s}}\n"


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that costs more than the earlier one in the folder ``base``."""
    monkeypatch.chdir(tmp_path)
    path = Path("base/peagle.yaml")
    path.parent.mkdir()
    path.write_text(FILE % "ml.g6.xlarge")
    Path("peagle.yaml").write_text(FILE % "ml.g5.xlarge")
    return path


def changes(*arguments: str) -> Done:
    return in_process("plan", "--changes-from", *arguments)


def test_the_comment_has_a_table_the_cost_and_the_findings(earlier: Path) -> None:
    text = changes(str(earlier), "--markdown").out
    assert text.startswith("### Plan of chat\n\n| | before | after |\n|---|---|---|\n")
    assert "| instance type | ml.g6.xlarge | ml.g5.xlarge |" in text
    assert "**Cost**: $1.41 per hour, $1,013.76 per 30 days; before $1.13 per hour (+25%)" in text


def test_a_plan_file_is_an_earlier_plan_too(earlier: Path) -> None:
    assert in_process("plan", "-o", "old.json").code == 0
    done = changes("old.json", "--markdown")
    assert "The plan does not change." in done.out
    assert done.out.rstrip().endswith("per 30 days, as before")


def test_a_new_endpoint_has_no_earlier_plan(earlier: Path) -> None:
    Path("none").mkdir()  # a checkout without the file
    done = changes("none/peagle.yaml", "--json")
    assert done.err == "none/peagle.yaml does not exist: the endpoint is new\n"
    assert done.document["before"] is None
    assert done.document["price_increase"] is None
    earlier.write_text("endpoints: {other: {pair: tiny}}\n")
    assert changes(str(earlier), "--json").document["before"] is None


def test_an_earlier_file_that_is_wrong_does_not_stop_its_repair(earlier: Path) -> None:
    earlier.write_text(FILE % "ml.g9.xlarge")
    done = changes(str(earlier), "--json")
    assert done.code == 0
    assert "the earlier plan cannot be made: the catalogue" in done.err


@pytest.mark.parametrize(("most", "code"), [("20", 3), ("25", 0)])
def test_price_that_rises_by_more_than_gate_is_refused(earlier: Path, most: str, code: int) -> None:
    text = Path("peagle.yaml").read_text()
    Path("peagle.yaml").write_text(f"{text}gates: {{plan: {{max_price_increase: {most}}}}}\n")
    done = changes(str(earlier), "--json")
    assert done.code == code
    assert done.document["price_increase"] == pytest.approx(0.249, abs=0.001)
    assert ("the price rises by 25%, and the gate allows 20 %" in done.err) == bool(code)


# A vLLM version that the catalogue does not have: fixes name options that the command has, and
LINES = {
    "bench sweep": ("tiny", "--sweep", "k=1,2"),
    "check": ("tiny",),
    "deploy": ("tiny", "--sandbox", "--yes"),
    "image build": ("tiny",),
    "local up": ("tiny",),
    "plan": ("tiny",),
    "render": ("terraform", "tiny", "--output", "rendered"),
    "verdict": ("tiny", "--gpu", "L4"),
    "warm": ("tiny",),
}
"""The commands that need an image, or know the times of one, with their arguments."""


def options_of(name: str) -> set[str]:
    group: click.Command = cli
    for word in name.split():
        assert isinstance(group, click.Group)
        below = group.get_command(click.Context(cli), word)
        assert below is not None
        group = below
    return {option for parameter in group.params for option in parameter.opts}


@pytest.mark.parametrize("name", LINES)
def test_the_fix_names_options_of_the_command(name: str) -> None:
    done = in_process(*name.split(), *LINES[name], "--vllm", "0.99.0")
    shown = done.out if name == "check" else done.error
    assert "the catalogue has no image with vLLM 0.99.0" in shown
    (fix,) = re.findall(r"use (--vllm [^)\n]+)", shown)
    assert {*re.findall(r"--[a-z-]+", fix)} <= options_of(name)
    near = fix.split(",")[0].split()
    accepted = in_process("check", "tiny", *near).out
    assert "runtime-unknown" not in accepted
