"""``peagle rollback``, and what ``peagle deploy`` shows of updates that fail their proof."""

import pytest

from tests.unit.cli.commands import FIRST, NAME, Terminal, price_shown


@pytest.fixture
def updated(deployed: Terminal) -> Terminal:
    """K 7 served before, K 3 serves."""
    assert deployed.run(*FIRST, "--k", "3", "--yes").code == 0
    return deployed


@pytest.mark.thorough
def test_a_failed_update_reports_what_failed_and_what_serves(deployed: Terminal) -> None:
    before = deployed.cloud.endpoints[NAME].endpoint_config_name
    deployed.cloud.engine.acceptance = 1.2
    done = deployed.run(*FIRST, "--k", "3", "--yes", "--json")
    assert done.code == 3
    assert "without a proof, what serves now serves again" in done.err
    assert "acceptance length 1.20" in done.error
    assert f"serves {before} again" in done.error
    assert "These resources exist" not in done.err
    assert (done.document["state"], done.document["k"]) == ("InService", 7)
    assert done.document["rolled_back"] is True
    assert done.document["changes"] == [{"setting": "k", "before": 7, "after": 3}]


@pytest.mark.thorough
def test_rollback_shows_what_changes_and_asks(updated: Terminal) -> None:
    done = updated.run("rollback", NAME, answers="n\n")
    assert done.code == 2
    assert "changes     K 3 -> 7" in done.err
    assert price_shown() in done.err
    assert "not rolled back" in done.error
    assert updated.run("status", NAME, "--json").document["k"] == 3


def test_without_a_previous_revision_nothing_is_rolled_back(deployed: Terminal) -> None:
    done = deployed.run("rollback", NAME, "--yes")
    assert done.code == 3
    assert "there is no revision" in done.error


# ``peagle destroy``: shows the resources, asks, and removes them.
def test_destroy_shows_resources_and_asks(deployed: Terminal) -> None:
    done = deployed.run("destroy", NAME, answers="n\n")
    assert done.code == 2
    assert f"Endpoint {NAME}" in done.err
    assert price_shown() in done.err
    assert NAME in deployed.cloud.endpoints


@pytest.mark.thorough
def test_an_endpoint_without_our_tags_is_not_said_to_be_gone(deployed: Terminal) -> None:
    config = deployed.cloud.endpoints[NAME].endpoint_config_name
    parameters = {"EndpointName": "somebody-elses", "EndpointConfigName": config}
    deployed.cloud.call("create_endpoint", **parameters)
    done = deployed.run("destroy", "somebody-elses", "--all", "--yes")
    assert done.code == 3
    assert "the endpoint somebody-elses in us-east-1 exists" in done.err
    assert "somebody-elses" in deployed.cloud.endpoints


def test_destroy_waits_for_an_endpoint_that_is_being_changed(deployed: Terminal) -> None:
    deployed.cloud.endpoints[NAME].script = [("Updating", None)] * 12 + [("InService", "")]
    done = deployed.succeeds("destroy", NAME, "--yes")
    assert "Waiting for the current change to end" in done.err
    assert deployed.cloud.is_empty


def test_removed_resources_are_shown_before_the_question(terminal: Terminal) -> None:
    terminal.succeeds(*FIRST, "--observe", "--yes")
    done = terminal.run(*FIRST, answers="n\n")
    alarms = [f"alarm {NAME}-{kind} exists -> none" for kind in ("5xx", "acceptance", "load")]
    lines = [line.removeprefix("  changes").strip() for line in done.err.splitlines()]
    assert {"dashboard exists -> none", *alarms} <= {*lines}


def test_without_the_permission_to_list_them_leftovers_are_unknown(deployed: Terminal) -> None:
    deployed.rejects("describe_alarms", "AccessDenied")
    everything = deployed.run("destroy", NAME, "--all", "--yes")
    done = deployed.run("destroy", NAME, "--yes")
    assert everything.code == 4
    assert "cloudwatch:DescribeAlarms" in everything.error
    assert done.code == 0
    assert "are unknown" in done.err


# ``peagle prove``: what it prints and how it ends.
def test_json_lists_the_instances_and_their_source(deployed: Terminal) -> None:
    document = deployed.run("prove", NAME, "--min-drafts", "30", "--json").document
    assert (document["name"], document["source"], document["min_drafts"]) == (NAME, "log", 30)
    (instance,) = document["instances"]
    assert instance["stream"] == "AllTraffic/i-1"
    assert instance["drafts"] == document["drafts"] >= 30


def test_below_the_floor_the_exit_code_is_3_and_the_proof_is_printed(deployed: Terminal) -> None:
    done = deployed.run("prove", NAME, "--floor", "3.5")
    assert done.code == 3
    assert f"{NAME} is not proved: acceptance length 3.00" in done.out
    assert "below the floor of 3.50" in done.err


@pytest.mark.thorough
def test_the_users_floor_is_named(deployed: Terminal) -> None:
    done = deployed.run("prove", NAME, "--floor", "2.5")
    assert "at least 2.50 required by --floor" in done.out
    assert deployed.run("prove", NAME, "--json").document["floor_source"] == "catalogue"
    assert deployed.run("status", NAME, "--json").document["acceptance_floor_source"] == "catalogue"
