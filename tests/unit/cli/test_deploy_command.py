"""``peagle deploy``: shows the plan, asks, applies, proves, and shows what an error leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import Peagle
from tests.unit.aws.cloud import service_error
from tests.unit.catalog.catalog_files import write_target
from tests.unit.cli.commands import FIRST, NAME, Terminal, nothing_was_created, price_shown


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


def test_the_command_of_a_failure_keeps_the_users_catalogue(
    terminal: Terminal, tmp_path: Path
) -> None:
    write_target(tmp_path)
    kept = ("peagle", "--catalog", str(tmp_path))
    terminal.cloud.engine.acceptance = 1.0
    started = terminal.run(*kept[1:], *FIRST, "--yes", "--json").document
    shown = terminal.run(*kept[1:], "status", NAME, "--json").document
    scaled = terminal.run(*kept[1:], "scale", NAME, "--to", "2", "--yes", "--json").document
    for document in (started, shown, scaled):
        assert document["failure_command"][:4] == [*kept, "catalog"], document["failure_fix"]
        assert terminal.run(*document["failure_command"][1:]).code == 0


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
    assert f"Remove   peagle destroy {NAME}" in done.err


def test_the_sandbox_without_an_engine_is_refused_before_it_starts(
    peagle: Peagle, own_home: Path
) -> None:
    environment = {**os.environ, "PEAGLE_HOME": str(own_home)}
    environment.pop("PEAGLE_ENGINE_PYTHON", None)
    done = peagle(*FIRST, "--sandbox", "--yes", env=environment)
    assert done.returncode == 2
    assert "peagle engine install" in done.stderr
    assert {one.name for one in own_home.iterdir()} <= {"contents.json"}


@pytest.mark.thorough
def test_no_wait_returns_at_creating_and_the_next_deploy_proves(terminal: Terminal) -> None:
    first = terminal.run(*FIRST, "--yes", "--no-wait", "--json")
    prompts = len(terminal.cloud.engine.prompts)
    second = terminal.run(*FIRST, "--yes", "--json")
    assert first.document["state"] == "Creating"
    assert prompts == 0
    assert second.document["state"] == "InService"
    assert terminal.cloud.calls.count("create_endpoint") == 1


@pytest.mark.thorough
def test_what_is_watched_changes_without_an_update_and_is_said(deployed: Terminal) -> None:
    watched = (*FIRST, "--yes", "--observe", "--json")
    done = deployed.run(*watched)
    assert "change      only settings outside of the endpoint, which keeps serving" in done.err
    assert "alarms none -> acceptance, errors, load" in done.err
    assert done.document["changed"] is True
    assert {one["setting"] for one in done.document["changes"]} == {"dashboard", "alarms"}
    again = deployed.run(*watched)
    assert "change      none: this plan is in service and proved" in again.err
    assert again.document["changed"] is False
    assert "-> none" in deployed.run(*FIRST, "--yes").err
