"""`peagle local` and `peagle engine`, as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.engine import state as records
from peagle.engine.local import start_local
from peagle.engine.process import is_alive
from peagle.errors import NotFound, UserError
from peagle.findings import note
from peagle.images.build import findings_on_this_machine
from peagle.planning import Options, make_plan
from peagle.render import plan_bytes
from tests.support import Peagle, raises_code
from tests.unit.local.conftest import NAME, PlanFor

Command = Callable[..., Result]


@pytest.fixture
def command() -> Command:
    """Run a command; errors of the toolkit are raised."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)

    return run


@pytest.mark.thorough
def test_up_list_and_down(engine_home: Path, command: Command) -> None:
    came_up = command("local", "up", "tiny", "--name", NAME)

    assert "acceptance length 2.50 over 8 drafts" in came_up.stdout
    (engine,) = records.local_engines()
    assert engine.openai_base_url in came_up.stdout
    assert f"peagle local down {NAME}" in came_up.stdout
    assert NAME in command("local", "list").stdout

    assert command("local", "down", NAME).stdout == f"Stopped {NAME}.\n"
    assert not is_alive(engine.process)
    assert command("local", "list").stdout == ""


@pytest.mark.parametrize("engine_kind", ["process", "docker"])
def test_findings_about_the_pair_are_shown(engine_kind: str) -> None:
    plan = make_plan(Options(pair="gpt-oss-20b", region="eu-west-3"), load_catalog())

    shown = {one.code for one in findings_on_this_machine(plan, engine_kind)}

    assert "instance-scarce" in {one.code for one in plan.findings} - shown
    assert {"model-runner-v2", "long-context-head", "revision-not-pinned"} <= shown


ABOUT_ANY_ENGINE = frozenset(
    {
        "amx-small-layers", "cache-estimated",
        "chat-template-missing", "code-variable", "context-above-drafter", "drafting-slots",
        "dynamic-k", "engine-argument", "head-not-for-target", "head-not-public", "head-not-read",
        "head-window", "k-above-trained", "long-context-head", "lora", "mask-token-used",
        "model-runner-v2", "no-head", "norm-before-residual", "pipeline-parallel", "prefix-caching",
        "quantization-block", "revision-not-pinned", "speculative-setting", "speculators-verifier",
        "structured-output", "target-differs", "target-is-gated", "target-not-in-catalogue",
        "target-numerics", "tensors-unknown", "timeout-at-maximum", "timeout-short",
        "tokenizer-differs", "variable-ignored", "vllm-newer-than-catalogue", "vocabulary-download",
        "warm-unpinned", "weights-unread",
    }
)  # fmt: skip
"""Codes of the warnings and notes of plans that concern a local engine too."""

ABOUT_SAGEMAKER = frozenset(
    {
        "ami-unverified", "baking-too-short", "cache-below-concurrency", "captured-data-kept",
        "context-shortened", "conversations-spread", "copies-cost-less", "gpus-idle",
        "host-memory-below-weights",
        "image-by-tag", "instance-region-unknown", "instance-scarce", "k-below-fastest",
        "limit-before-start", "no-alarm-topic", "no-ttft-alarm", "prefix-cache-off",
        "prefix-cache-too-small", "price-of-another-region", "price-unknown", "queue-unbounded",
        "rollout-of-one", "scale-to-zero-refused", "scaling-target-high", "several-instances",
        "slo-unverified", "speculation-costs-more", "speculation-loses", "speed-unverified",
        "verdict-other-gpus", "vpc-routes", "weights-streamed",
    }
)  # fmt: skip
"""Codes of those about SageMaker, its instances, their speed and prices."""


@pytest.mark.parametrize("engine_kind", ["process", "docker"])
def test_only_findings_about_any_engine_are_shown(engine_kind: str) -> None:
    made = make_plan(Options(pair="tiny"), load_catalog())
    findings = tuple(
        note(code, "anything", "message", "fix") for code in ABOUT_ANY_ENGINE | ABOUT_SAGEMAKER
    )
    shown = findings_on_this_machine(made.model_copy(update={"findings": findings}), engine_kind)
    assert {one.code for one in shown} == ABOUT_ANY_ENGINE


@pytest.mark.thorough
def test_json_is_one_document_and_nothing_else(engine_home: Path, command: Command) -> None:
    came_up = json.loads(command("local", "up", "tiny", "--name", NAME, "--json").stdout)

    assert came_up["state"] == "ready"
    assert came_up["acceptance_length"] == 2.5
    assert came_up["openai_base_url"].endswith(f":{came_up['port']}/v1")
    assert json.loads(command("local", "list", "--json").stdout) == {"engines": [came_up]}
    ended = json.loads(command("local", "down", "--all", "--json").stdout)
    assert ended == {"ended": [NAME], "removed": [NAME]}


@pytest.mark.thorough
def test_a_plan_file_can_be_run(engine_home: Path, command: Command, plan_for: PlanFor) -> None:
    plan = plan_for(k=3)
    file = engine_home / "plan.json"
    clean = {
        name: value for name, value in plan.environment.items() if name != "SAGEMAKER_STAND_IN"
    }
    file.write_bytes(plan_bytes(plan.model_copy(update={"environment": clean})))

    command("local", "up", str(file))

    (running,) = records.local_engines()
    assert '"num_speculative_tokens":3' in running.environment["SM_VLLM_SPECULATIVE_CONFIG"]


@pytest.mark.thorough
def test_logs_are_printed_and_followed_to_the_end(
    engine_home: Path, command: Command, plan_for: PlanFor
) -> None:
    start_local(plan_for())
    assert "beginning" in command("local", "logs", NAME).stdout

    argv = [sys.executable, "-m", "peagle.cli", "local", "logs", NAME, "-f"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        while "beginning" not in follow.stdout.readline():
            assert follow.poll() is None
        command("local", "down", NAME)
        assert follow.wait(timeout=10) == 0


@pytest.mark.parametrize("words", [("down", "nothing"), ("logs", "nothing"), ("down", "../x")])
def test_an_unknown_name_is_an_error(own_home: Path, command: Command, words: tuple[str]) -> None:
    with pytest.raises(NotFound):
        command("local", *words)


@pytest.mark.thorough
def test_down_reports_draining_unless_now(
    engine_home: Path, peagle: Peagle, plan_for: PlanFor
) -> None:
    start_local(plan_for())
    waited = peagle("local", "down", NAME)
    start_local(plan_for())
    at_once = peagle("local", "down", NAME, "--now")

    assert f"waiting up to 60 s for running requests of {NAME}" in waited.stderr
    assert at_once.stderr == ""
    assert waited.stdout == at_once.stdout == f"Stopped {NAME}.\n"


@pytest.mark.thorough
def test_the_nearest_name_is_suggested(
    engine_home: Path, command: Command, plan_for: PlanFor
) -> None:
    start_local(plan_for())

    with pytest.raises(NotFound) as caught:
        command("local", "down", "stamd-in")

    assert caught.value.fix == f"did you mean {NAME}?"


@pytest.mark.parametrize("words", [("down",), ("down", "--all", NAME)])
def test_down_requires_a_name(own_home: Path, command: Command, words: tuple[str]) -> None:
    with raises_code("missing-option", UserError) as caught:
        command("local", *words)

    assert caught.value.fix == "add a NAME, or --all"


DAMAGED = {
    "cut off": '{"name": "old", "pai',
    "another shape": "[1]",
    "an earlier version": '{"name": "old", "pair": "tiny", "pid": 1}',
    "an incomplete process": (
        '{"name": "old", "pair": "p", "served_as": "t", "vllm": "1", "environment": {}, '
        '"notes": [], "process": {"pid": 1}, "started_at": 1.0}'
    ),
    "not text": "\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_listed_as_unknown_and_named_by_other_commands(
    own_home: Path, peagle: Peagle, content: str
) -> None:
    record = own_home / "local" / "old" / "state.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)

    shown = peagle("local", "list")
    listed = json.loads(peagle("local", "list", "--json").stdout)

    assert str(record) in shown.stdout
    assert listed == {"engines": [{"name": "old", "state": "unknown", "record": str(record)}]}
    for words in (("local", "down", "old"), ("local", "down", "--all"), ("invoke", "old", "Hi")):
        done = peagle(*words, "--json")
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"]) == (2, "record-damaged"), words
        assert str(record) in error["message"]
        assert str(record.parent) in error["fix"]
    assert record.read_text() == content


@pytest.mark.thorough
def test_down_all_stops_the_engines_beside_a_damaged_record(
    engine_home: Path, command: Command, plan_for: PlanFor
) -> None:
    engine = start_local(plan_for())
    record = engine_home / "local" / "old" / "state.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")

    with pytest.raises(UserError) as raised:
        command("local", "down", "--all")

    assert raised.value.code == "record-damaged"
    assert not is_alive(engine.process)
    record.unlink()
