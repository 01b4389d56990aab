"""``list`` and ``status``, commands for names that are unknown, and shell completion."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from peagle.cli.main import cli
from tests.unit.aws.plans import a_plan
from tests.unit.aws.templates import by_template
from tests.unit.cli.commands import FIRST, NAME, Terminal

NAMED = ["status", "logs", "token", "destroy"]


@pytest.mark.parametrize("name", ["peagle-tinny", "tiny"])
@pytest.mark.parametrize("command", NAMED)
def test_unknown_name_is_an_error_with_similar_names(
    deployed: Terminal, command: str, name: str
) -> None:
    done = deployed.run(command, name)
    assert done.code == 2
    assert done.error == f"error: there is no deployment '{name}' (did you mean peagle-tiny?)"


def test_status_agrees_with_deploy(deployed: Terminal) -> None:
    deployment = deployed.run(*FIRST, "--json").document
    document = deployed.run("status", NAME, "--json").document
    of_that_deploy = {
        "changed", "changes", "licences", "pins", "rolled_back", "tried", "warm_start",
    }  # fmt: skip
    assert {key: deployment[key] for key in deployment if key not in of_that_deploy} == document
    assert document["state"] == "InService"


@pytest.mark.thorough
def test_a_deploy_killed_before_the_endpoint_is_continued_by_the_same_command(
    terminal: Terminal,
) -> None:
    options = ("--env", "GREETING=it's me", "--k", "3")
    terminal.interrupts("create_model")
    assert terminal.run(*FIRST, *options, "--yes").code == 130
    terminal.recovers()
    document = terminal.run("status", NAME, "--json").document
    shown = terminal.run("status", NAME).out
    asked = terminal.run("invoke", NAME, "Hi", "--no-stream")
    assert (document["state"], document["openai_base_url"]) == ("Incomplete", None)
    assert "OpenAI URL" not in shown
    assert asked.code == 4
    assert f"peagle status {NAME}" in asked.error
    done = terminal.run(*FIRST, *options, "--yes", "--json")
    assert (done.code, done.document["fingerprint"]) == (0, document["fingerprint"])
    assert terminal.run("status", NAME, "--json").document["failure_fix"] is None


def test_a_wrong_target_of_the_user_does_not_hide_deployments(
    deployed: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "chat.yaml").write_text("[")
    deployed.succeeds("--catalog", str(tmp_path), "list")
    deployed.succeeds("--catalog", str(tmp_path), "status", NAME)


def test_list_is_of_one_region_where_it_is_named(deployed: Terminal) -> None:
    elsewhere = deployed.run("list", "--region", "eu-west-1", "--json").document
    assert elsewhere == {"deployments": [], "complete": True}


def test_list_without_the_permission_shows_this_machines_deployments(deployed: Terminal) -> None:
    deployed.rejects("get_resources", "AccessDeniedException")
    done = deployed.succeeds("list", "--json")
    assert "tag:GetResources" in done.err
    assert [row["name"] for row in done.document["deployments"]] == [NAME]
    assert done.document["complete"] is False


def test_another_accounts_deployment_is_not_touched(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.aws.cloud.ACCOUNT", "999999999999")
    deployed.world.__post_init__()
    done = deployed.run("destroy", NAME, "--yes")
    assert done.code == 2
    assert "123456789012" in done.error
    assert "999999999999" in done.error
    assert NAME in deployed.cloud.endpoints


def test_names_are_completed(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = ShellComplete(cli, {}, "peagle", "_PEAGLE_COMPLETE")
    completions = complete.get_completions(["status"], "peagle-")
    sandboxed = complete.get_completions(["status", "--sandbox"], "peagle-")
    assert [item.value for item in completions] == [NAME]
    assert sandboxed == []


def test_a_deployment_of_a_template_is_shown_and_not_changed(terminal: Terminal) -> None:
    by_template(terminal.world, a_plan(), "terraform")
    listed = terminal.run("list", "--json").document["deployments"]
    destroyed = terminal.run("destroy", "peagle-pair", "--yes")
    assert [(row["name"], row["owner"]) for row in listed] == [
        ("peagle-pair", "a Terraform module")
    ]
    assert destroyed.code == 3
    assert "belongs to a Terraform module" in destroyed.error
    assert not terminal.cloud.is_empty
