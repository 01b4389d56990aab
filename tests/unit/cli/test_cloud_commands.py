"""``list``, ``status``, ``logs``, ``token`` and ``destroy``: what is there, and away with it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from peagle.aws.client import Keys, connect
from peagle.cli.account import find_deployment
from peagle.cli.main import cli
from tests.support import Peagle
from tests.unit.aws.cloud import START
from tests.unit.cli.commands import FIRST, NAME, Terminal, price_of, price_shown


@pytest.fixture
def deployed(terminal: Terminal) -> Terminal:
    assert terminal.run(*FIRST, "--yes").code == 0
    return terminal


NAMED = ["status", "logs", "token", "destroy"]


@pytest.mark.parametrize("command", NAMED)
def test_unknown_name_is_an_error_with_similar_names(deployed: Terminal, command: str) -> None:
    done = deployed.run(command, "peagle-tinny")

    assert done.code == 2
    assert done.error == (
        "error: there is no deployment 'peagle-tinny' (did you mean peagle-tiny?)"
    )


@pytest.mark.parametrize("command", ["status", "logs"])
def test_an_unknown_name_needs_no_credentials(peagle: Peagle, command: str) -> None:
    done = peagle(command, "nothing")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "peagle list" in done.stderr


def test_status_agrees_with_deploy(deployed: Terminal) -> None:
    deployment = deployed.run(*FIRST, "--json").document
    document = deployed.run("status", NAME, "--json").document

    of_that_deploy = {"changed", "warm_start"}
    assert {key: deployment[key] for key in deployment if key not in of_that_deploy} == document
    assert document["state"] == "InService"


def test_status_for_people(deployed: Terminal) -> None:
    shown = deployed.run("status", NAME).out

    assert f"{NAME}: InService" in shown
    assert "3.00 over" in shown
    assert price_shown() in shown
    assert "/openai/v1" in shown


def test_an_endpoint_deleted_elsewhere_is_missing(deployed: Terminal) -> None:
    deployed.cloud.endpoints.clear()

    assert deployed.run("status", NAME, "--json").document["state"] == "Missing"


def test_a_failure_is_shown_by_status(deployed: Terminal) -> None:
    deployed.cloud.endpoints[NAME].script = [("Failed", "the instance died")]

    document = deployed.run("status", NAME, "--json").document

    assert document["state"] == "Failed"
    assert document["failure_reason"] == "the instance died"


def test_a_stand_in_is_named(deployed: Terminal) -> None:
    deployed.cloud.tags[deployed.cloud.endpoints[NAME].arn]["peagle:stand-in"] = "peagle/tiny"

    assert deployed.run("status", NAME, "--json").document["stand_in"] == "peagle/tiny"
    assert "peagle/tiny" in deployed.run("status", NAME).out


def test_another_engine_than_planned_is_named(deployed: Terminal) -> None:
    deployed.cloud.tags[deployed.cloud.endpoints[NAME].arn]["peagle:engine"] = "vllm 0.99.0"

    document = deployed.run("status", NAME, "--json").document

    assert document["vllm_here"] == "0.99.0"
    assert (
        f"vLLM 0.99.0 (sandbox); the plan has {document['vllm']}"
        in deployed.run("status", NAME).out
    )


def test_a_stand_ins_acceptance_is_marked_in_the_list(deployed: Terminal) -> None:
    plain = deployed.run("list").out
    deployed.cloud.tags[deployed.cloud.endpoints[NAME].arn]["peagle:stand-in"] = "peagle/tiny"

    marked = deployed.run("list").out

    assert "*" not in plain
    assert "3.00*" in marked
    assert "*: measured on peagle/tiny, a stand-in" in marked
    (row,) = deployed.run("list", "--json").document["deployments"]
    assert row["stand_in"] == "peagle/tiny"
    assert row["speculation"] is True


def _without_record(terminal: Terminal) -> None:
    """Make of the deployment one that something else than ``peagle deploy`` made."""
    from peagle.deploy import state as records

    (record,) = records.all_records()
    records.remove_record(record)


def test_an_endpoint_that_deploy_did_not_make_is_invoked(deployed: Terminal) -> None:
    _without_record(deployed)

    done = deployed.run("invoke", NAME, "Say hello")

    assert done.code == 0
    assert done.out == "Hello world\n"
    assert deployed.run("list", "--json").document == {"deployments": []}


@pytest.mark.parametrize("command", ["token", "invoke"])
def test_a_name_that_is_nowhere_is_unknown(deployed: Terminal, command: str) -> None:
    done = deployed.run(command, "nothing", *(["hello"] if command == "invoke" else []))

    assert done.code == 2
    assert "there is no deployment 'nothing'" in done.error


@pytest.mark.parametrize("command", [("status", "x"), ("logs", "x"), ("token", "x"),
                                     ("invoke", "x", "hello")])  # fmt: skip
def test_nothing_is_in_a_sandbox_that_does_not_run(
    peagle: Peagle, own_home: Path, command: tuple[str, ...]
) -> None:
    done = peagle(*command, "--sandbox")

    assert done.returncode == 2
    assert "the sandbox is not running, so nothing is deployed in it" in done.stderr
    assert not (own_home / "sandbox" / "daemon.json").exists()


def test_listing_and_destroying_in_a_sandbox_that_does_not_run(
    peagle: Peagle, own_home: Path
) -> None:
    listed = peagle("list", "--sandbox", "--json")
    destroyed = peagle("destroy", "x", "--sandbox", "--yes", "--json")

    assert listed.returncode == destroyed.returncode == 0
    assert listed.stdout == '{\n  "deployments": []\n}\n'
    assert '"removed": []' in destroyed.stdout
    assert not (own_home / "sandbox" / "daemon.json").exists()


def test_list_shows_state_and_price_of_each(deployed: Terminal) -> None:
    (row,) = deployed.run("list", "--json").document["deployments"]

    assert row["name"] == NAME
    assert row["state"] == "InService"
    assert row["price_per_hour_usd"] == price_of()
    assert deployed.run("list", "--region", "eu-west-1", "--json").document == {"deployments": []}
    assert NAME in deployed.run("list").out


def test_list_without_deployments_does_not_call_aws(peagle: Peagle, own_home: Path) -> None:
    done = peagle("list", "--json")

    assert done.returncode == 0
    assert done.stdout == '{\n  "deployments": []\n}\n'


def test_another_accounts_deployment_is_not_touched(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.aws.cloud.ACCOUNT", "999999999999")
    deployed.world.__post_init__()

    done = deployed.run("destroy", NAME, "--yes")

    assert done.code == 2
    assert "111122223333" in done.error
    assert "999999999999" in done.error
    assert NAME in deployed.cloud.endpoints


def test_logs_are_shown_as_they_were_written(deployed: Terminal) -> None:
    deployed.cloud.write_log("first line")
    deployed.cloud.write_log("second | line ü")

    assert deployed.run("logs", NAME).out == "first line\nsecond | line ü\n"
    events = deployed.run("logs", NAME, "--json").document["events"]
    assert [event["message"] for event in events] == ["first line", "second | line ü"]
    assert events[0]["time"].startswith("2027-01-15T")


def test_logs_since_leaves_out_what_is_older(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.cloud.write_log("old")
    deployed.cloud.now += 3600
    deployed.cloud.write_log("new")
    monkeypatch.setattr("peagle.cli.logs.time.time", lambda: START + 3700)

    assert deployed.run("logs", NAME, "--since", "30m").out == "new\n"


def test_lines_older_than_since_are_mentioned(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle engine writes nothing: that is not the same as an empty log."""
    deployed.cloud.write_log("old")
    monkeypatch.setattr("peagle.cli.logs.time.time", lambda: START + 200)

    done = deployed.run("logs", NAME, "--since", "5s")

    assert done.out == ""
    assert done.err == (
        "No lines in the last 5s; the newest line is 3m 20s old: "
        "peagle logs peagle-tiny --since 4m\n"
    )
    shown = deployed.run("logs", NAME, "--since", "4m")
    assert shown.out == "old\n"


def test_without_any_line_since_says_so(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.cli.logs.time.time", lambda: START + 200)

    assert deployed.run("logs", NAME, "--since", "5s").err == "No lines yet.\n"


def test_since_counts_from_when_the_command_was_typed(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading boto3 and asking AWS take seconds, which must not use up a short --since."""
    deployed.cloud.write_log("just now")
    clock = [START + 3]

    def slowly(*args: Any) -> Any:
        clock[0] += 4
        return find_deployment(*args)

    monkeypatch.setattr("peagle.cli.logs.time.time", lambda: clock[0])
    monkeypatch.setattr("peagle.cli.account.find_deployment", slowly)

    assert deployed.run("logs", NAME, "--since", "5s").out == "just now\n"


def test_following_goes_on_until_ctrl_c(
    deployed: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["one", "two"])

    def write_or_interrupt(seconds: float) -> None:
        line = next(lines, None)
        if line is None:
            raise KeyboardInterrupt
        deployed.cloud.now += seconds
        deployed.cloud.write_log(line)

    monkeypatch.setattr("peagle.cli.logs.time.sleep", write_or_interrupt)

    done = deployed.run("logs", NAME, "-f")

    assert done.out == "one\ntwo\n"
    assert done.err == ""
    assert done.code == 130


def test_following_and_json_exclude_each_other(deployed: Terminal) -> None:
    assert deployed.run("logs", NAME, "-f", "--json").code == 2


@pytest.mark.parametrize(("command", "option"), [("logs", "--since"), ("token", "--duration")])
@pytest.mark.parametrize("value", ["", "10", "ten minutes", "-5m", "1.5h", "5M", "٣m"])
def test_a_duration_that_is_none_is_wrong_use(
    deployed: Terminal, command: str, option: str, value: str
) -> None:
    done = deployed.run(command, NAME, option, value)

    assert done.code == 2
    assert "not a duration" in done.error


@pytest.fixture
def with_keys(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    real = connect("us-east-1", keys=Keys("AKID", "secret"))
    monkeypatch.setattr(deployed.world.aws, "bearer_token", real.bearer_token)
    return deployed


def test_a_token_is_printed_alone(with_keys: Terminal) -> None:
    done = with_keys.run("token", NAME, "--duration", "30m")

    url = base64.b64decode(done.out.strip().removeprefix("sagemaker-api-key-")).decode()
    assert "Action=CallWithBearerToken" in url
    assert "X-Amz-Expires=1800" in url
    assert with_keys.run("token", NAME, "--json").document["expires_in_seconds"] == 43200


def test_a_token_needs_no_record(with_keys: Terminal) -> None:
    _without_record(with_keys)

    assert with_keys.run("token", NAME).out.startswith("sagemaker-api-key-")


@pytest.mark.parametrize("duration", ["13h", "0s", "43201s"])
def test_a_token_lasts_12_hours_at_most(with_keys: Terminal, duration: str) -> None:
    done = with_keys.run("token", NAME, "--duration", duration)

    assert done.code == 2
    assert "12h" in done.error


def test_destroy_shows_resources_and_asks(deployed: Terminal) -> None:
    done = deployed.run("destroy", NAME, answers="n\n")

    assert done.code == 2
    assert f"Endpoint {NAME}" in done.err
    assert price_shown() in done.err
    assert NAME in deployed.cloud.endpoints


def test_destroy_without_a_terminal_needs_yes(deployed: Terminal) -> None:
    done = deployed.run("destroy", NAME)

    assert done.code == 2
    assert "--yes" in done.error
    assert NAME in deployed.cloud.endpoints


def test_destroy_removes_everything_and_the_name_is_unknown_then(deployed: Terminal) -> None:
    document = deployed.run("destroy", NAME, "--yes", "--json").document

    assert {entry["type"] for entry in document["removed"]} == {
        "Endpoint", "EndpointConfig", "Model", "S3Objects", "S3Bucket",
    }  # fmt: skip
    assert document["kept"] == []
    assert deployed.cloud.is_empty
    assert deployed.run("status", NAME).code == 2


def test_destroy_may_be_repeated(deployed: Terminal) -> None:
    assert deployed.run("destroy", NAME, "--yes").code == 0

    again = deployed.run("destroy", NAME, "--yes")

    assert again.code == 0
    assert "Nothing to remove" in again.err
    assert deployed.run("destroy", NAME, "--yes", "--json").document["removed"] == []


def test_an_interrupted_destroy_says_what_is_left_and_goes_on(deployed: Terminal) -> None:
    def interrupt(operation: str) -> None:
        if operation == "delete_endpoint_config":
            raise KeyboardInterrupt

    deployed.cloud.before = interrupt
    done = deployed.run("destroy", NAME, "--yes")

    assert done.code == 130
    assert f"Endpoint {NAME}" not in done.err.partition("These resources exist:")[2]
    assert "  Model " in done.err
    assert "Costs    $0.00 per hour" in done.err
    assert f"Continue peagle destroy {NAME}" in done.err
    deployed.cloud.before = lambda operation: None
    assert deployed.run("destroy", NAME, "--yes").code == 0
    assert deployed.cloud.is_empty


def test_destroy_keeps_what_others_put_into_the_bucket(deployed: Terminal) -> None:
    (bucket,) = deployed.cloud.buckets.values()
    bucket["theirs"] = {"ContentLength": 1, "Metadata": {}}

    done = deployed.run("destroy", NAME, "--yes")

    assert done.code == 0
    assert "kept S3Bucket" in done.out
    assert set(bucket) == {"theirs"}


def test_destroy_waits_for_an_endpoint_that_is_being_changed(deployed: Terminal) -> None:
    deployed.cloud.endpoints[NAME].script = [("Updating", None)] * 3 + [("InService", "")]

    done = deployed.run("destroy", NAME, "--yes")

    assert done.code == 0
    assert "Waiting for the endpoint's current change to end" in done.err
    assert deployed.cloud.is_empty


def test_two_commands_at_once_exclude_each_other(deployed: Terminal) -> None:
    from peagle.deploy import state as records

    with records.deployment_lock("111122223333", "us-east-1", NAME):
        done = deployed.run("destroy", NAME, "--yes")

    assert done.code == 2
    assert "another peagle command" in done.error
    assert NAME in deployed.cloud.endpoints


def test_names_are_completed(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = ShellComplete(cli, {}, "peagle", "_PEAGLE_COMPLETE")

    found = complete.get_completions(["status"], "peagle-")
    sandboxed = complete.get_completions(["status", "--sandbox"], "peagle-")

    assert [item.value for item in found] == [NAME]
    assert sandboxed == []


@pytest.mark.parametrize("command", [["plan"], ["check"], ["fit"], ["catalog", "show"]])
def test_pairs_are_completed(command: list[str]) -> None:
    complete = ShellComplete(cli, {}, "peagle", "_PEAGLE_COMPLETE")

    found = complete.get_completions(command, "tin")

    assert "tiny" in [item.value for item in found]
