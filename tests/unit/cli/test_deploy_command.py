"""``peagle deploy``: shows the plan, asks, applies, proves, and shows what an error leaves."""

import json
import os
from pathlib import Path

import pytest

from tests.support import Done, Peagle
from tests.unit.aws.cloud import START, service_error
from tests.unit.aws.scripted import ScriptedEndpoint
from tests.unit.aws.test_capacity import NO_INSTANCE
from tests.unit.aws.test_wait import OUT_OF_MEMORY
from tests.unit.cli.commands import (
    FIRST,
    NAME,
    Terminal,
    find_price,
    nothing_was_created,
    price_shown,
)


def test_the_plan_is_shown_with_its_price_before_the_question(terminal: Terminal) -> None:
    done = terminal.run(*FIRST, answers="n\n")
    shown = done.err
    assert price_shown() in shown
    assert "1 x ml.g5.xlarge (1 x A10G), us-east-1" in shown
    assert "peagle/tiny+p-eagle" in shown
    assert "K=7" in shown
    assert f"creates endpoint {NAME}" in shown
    assert shown.index("per day") < shown.index("Deploy this plan?")
    assert done.code == 2
    assert nothing_was_created(terminal)


def test_without_a_terminal_and_without_yes_nothing_happens(terminal: Terminal) -> None:
    done = terminal.run(*FIRST)
    assert done.code == 2
    assert "--yes" in done.error
    assert nothing_was_created(terminal)


@pytest.mark.thorough
def test_a_warm_start_is_read_from_the_log(terminal: Terminal) -> None:
    key = "0a" * 16
    fields = {"event": "warm-start", "restored": True, "key": key, "files": 4}
    line = {"time": "t", **fields, "unpacked_bytes": 100_000, "seconds": 0.01}
    terminal.cloud.write_log(json.dumps(line, separators=(",", ":")))
    for part in ("target", "drafter"):
        for name in ("config.json", "model.safetensors"):
            terminal.cloud.put("models", f"pair/{part}/{name}", b"{}")
    where = ("--model-source", "s3://models/pair/target/", "--drafter", "s3://models/pair/drafter/")
    done = terminal.run(*FIRST, *where, "--yes", "--json")
    assert f"Warm start: restored 4 files, 0.1 MB in 0.01 s (key {key})\n" in done.err
    assert done.document["warm_start"]["key"] == key


def test_the_deletion_of_a_broken_endpoint_is_told_before_the_question(deployed: Terminal) -> None:
    deployed.cloud.endpoints[NAME].script = [("UpdateRollbackFailed", "no capacity")]
    done = deployed.run(*FIRST, answers="n\n")
    told, _, _ = done.err.partition("Deploy this plan?")
    assert "first deletes the endpoint, which is UpdateRollbackFailed" in told
    assert NAME in deployed.cloud.endpoints


def test_a_repeated_deploy_shows_what_runs(deployed: Terminal) -> None:
    deployed.succeeds("scale", NAME, "--to", "2", "--yes")
    done = deployed.succeeds(*FIRST, "--yes", "--ttl", "1m")
    price = find_price()
    assert price is not None
    assert "2 x ml.g5.xlarge" in done.err
    assert f"${2 * price:,.2f} per hour" in done.err
    assert f"${2 * price:,.2f} per hour" in done.out
    assert "limit-before-start" not in done.err, "nothing starts"


def test_a_plan_file_is_deployed_unchanged(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert terminal.run("plan", *FIRST[1:], "--out", str(file)).code == 0
    done = terminal.run("deploy", str(file), "--yes", "--json")
    requests = {r["operation"]: r["parameters"] for r in json.loads(file.read_text())["requests"]}
    assert (
        done.document["endpoint_config"]
        == (requests["create_endpoint_config"]["EndpointConfigName"])
    )
    (model,) = terminal.cloud.models.values()
    planned = requests["create_model"]["PrimaryContainer"]
    assert model["PrimaryContainer"]["Environment"] == planned["Environment"]


def test_a_rejected_proof_prompt_is_not_proved(terminal: Terminal) -> None:
    def refuse(operation: str) -> None:
        if operation == "invoke_endpoint" and "create_endpoint" in terminal.cloud.calls:
            operations.append(operation)
            if len(operations) > 1:
                raise service_error(
                    "ModelError", "Received client error (400)", operation, OriginalStatusCode=400,
                    OriginalMessage='{"error":{"message":"max_tokens is too large"}}',
                )  # fmt: skip

    operations: list[str] = []
    terminal.cloud.before = refuse
    done = terminal.run(*FIRST, "--yes")
    assert done.code == 3
    assert "max_tokens is too large" in done.error
    assert "--max-model-len" in done.error
    assert price_shown() in done.err
    assert f"Remove      peagle destroy {NAME}" in done.err


def test_sandbox_without_engine_is_refused_before_it_starts(peagle: Peagle, own_home: Path) -> None:
    environment = {**os.environ, "PEAGLE_HOME": str(own_home)}
    environment.pop("PEAGLE_ENGINE_PYTHON", None)
    done = peagle(*FIRST, "--sandbox", "--yes", env=environment)
    assert done.returncode == 2
    assert "peagle engine install" in done.stderr
    assert {path.name for path in own_home.iterdir()} <= {"contents.json"}


# ``peagle deploy``: what it refuses, and what AWS refuses.


@pytest.mark.parametrize(("pair", "ending"), [
    (["tiny+eagle3"], "eagle3"),
    (["tiny", "--drafter", "eagle3"], "eagle3"),
    (["tiny", "--no-speculation"], "plain"),
])  # fmt: skip
def test_another_drafter_or_none_makes_no_second_paid_endpoint_unasked(
    terminal: Terminal, pair: list[str], ending: str
) -> None:
    assert terminal.run(*FIRST, "--yes").code == 0
    typed = ["deploy", *pair, "--instance-type", "ml.g5.xlarge"]
    refused = terminal.run(*typed, "--yes")
    asked = terminal.run(*typed, answers="n\n")
    assert (refused.code, set(terminal.cloud.endpoints)) == (3, {NAME})
    assert f"add --name {NAME} to update it, or --name {NAME}-{ending} for" in refused.error
    assert f"To update it instead, add --name {NAME}" in asked.err
    assert terminal.run(*typed, "--yes", "--name", NAME).code == 0
    assert set(terminal.cloud.endpoints) == {NAME}


# ``peagle deploy`` without capacity: other types, more time, and what was tried.
FULL = [("Creating", None), ("Failed", NO_INSTANCE)]
ALL = ("ml.g5.xlarge", "ml.g5.2xlarge", "ml.g6.xlarge")


@pytest.fixture
def full(terminal: Terminal) -> Terminal:
    """An account without a free instance for the first endpoint."""
    for name in (*ALL, "ml.g4dn.xlarge", "ml.g4dn.2xlarge", "ml.g6.2xlarge"):
        terminal.cloud.quotas[f"{name} for endpoint usage"] = 4
    terminal.cloud.next_scripts = [FULL]
    return terminal


def test_yes_alone_does_not_choose_another_type(full: Terminal) -> None:
    done = full.run(*FIRST, "--yes", "--json")
    assert done.code == 4
    assert '"code": "insufficient-capacity"' in done.error
    assert '"tried": [{"instance_type": "ml.g5.xlarge"' in done.error
    assert "--fallback-instance-types" in done.refusal["fix"]
    assert full.cloud.calls.count("create_endpoint") == 1
    assert "Costs       $0.00 per hour" in done.err


@pytest.mark.parametrize(("types", "code", "expected"), [
    ("ml.g9.xlarge", 2, "no GPU instance type 'ml.g9.xlarge'"),
    ("ml.g6.xlarge,ml.p5.4xlarge", 3, "max_price_per_hour"),
])  # fmt: skip
def test_types_that_cannot_be_used_are_refused_before_anything_is_created(
    terminal: Terminal, types: str, code: int, expected: str
) -> None:
    done = terminal.run(
        *FIRST, "--fallback-instance-types", types, "--max-price-per-hour", "5", "--yes"
    )
    assert done.code == code
    assert expected in done.error
    assert nothing_was_created(terminal)


# ``peagle deploy`` of an engine that will never serve: shown at once, and removed.
@pytest.fixture
def failing(terminal: Terminal) -> Terminal:
    """An account whose next endpoint stays Creating; its engine runs out of memory."""
    terminal.cloud.next_scripts = [[*[("Creating", None)] * 500, ("Failed", "no ping")]]

    def log(operation: str) -> None:
        if operation == "create_endpoint":
            terminal.cloud.after = lambda _: None
            for line in OUT_OF_MEMORY:
                terminal.cloud.write_log(line)

    terminal.cloud.after = log
    return terminal


@pytest.fixture
def deletable(failing: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The same; SageMaker lets the creation be deleted."""
    monkeypatch.setattr(ScriptedEndpoint, "is_busy", False)
    return failing


def _kept(done: Done, terminal: Terminal) -> None:
    assert done.code == 4
    assert "CUDA out of memory" in done.error
    assert f"Endpoint {NAME}" in done.err
    assert f"Remove      peagle destroy {NAME}" in done.err
    assert NAME in terminal.cloud.endpoints
    assert terminal.cloud.now - START < 10


def test_ctrl_c_during_the_removal_shows_what_remains(failing: Terminal) -> None:
    failing.interrupts("delete_endpoint")
    done = failing.run(*FIRST, "--yes", "--json")
    assert done.code == 130
    assert f"Endpoint {NAME}" in done.err
    assert f"Remove      peagle destroy {NAME}" in done.err
    document = json.loads(done.err.splitlines()[-1])
    assert document["error"]["code"] == "interrupted"
    assert document["remaining"]["remove_command"] == ["peagle", "destroy", NAME, "--yes"]
