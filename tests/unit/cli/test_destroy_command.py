"""``peagle destroy``: shows the resources, asks, and removes them."""

from __future__ import annotations

import pytest

from tests.unit.aws.plans import a_plan
from tests.unit.aws.templates import by_template
from tests.unit.cli.commands import NAME, Terminal, price_shown


def test_destroy_shows_resources_and_asks(deployed: Terminal) -> None:
    done = deployed.run("destroy", NAME, answers="n\n")
    assert done.code == 2
    assert f"Endpoint {NAME}" in done.err
    assert price_shown() in done.err
    assert NAME in deployed.cloud.endpoints


@pytest.mark.thorough
def test_an_endpoint_without_our_tags_is_not_said_to_be_gone(deployed: Terminal) -> None:
    config = deployed.cloud.endpoints[NAME].config
    deployed.cloud._create_endpoint("somebody-elses", config, [])
    done = deployed.run("destroy", "somebody-elses", "--all", "--yes")
    assert done.code == 3
    assert "the endpoint somebody-elses in us-east-1 exists" in done.err
    assert "somebody-elses" in deployed.cloud.endpoints


def test_destroy_waits_for_an_endpoint_that_is_being_changed(deployed: Terminal) -> None:
    deployed.cloud.endpoints[NAME].script = [("Updating", None)] * 12 + [("InService", "")]
    done = deployed.succeeds("destroy", NAME, "--yes")
    assert "Waiting for the endpoint's current change to end" in done.err
    assert deployed.cloud.is_empty


def test_concurrent_commands_exclude_each_other(deployed: Terminal) -> None:
    from peagle.deploy import records

    with records.deployment_lock("111122223333", "us-east-1", NAME):
        done = deployed.run("destroy", NAME, "--yes")
    assert done.code == 2
    assert "another peagle command" in done.error
    assert NAME in deployed.cloud.endpoints


def _with_leftovers(deployed: Terminal) -> None:
    deployed.cloud.log_groups = {f"/aws/sagemaker/Endpoints/{NAME}", "/aws/sagemaker/other"}
    deployed.cloud.alarms = {"slow": NAME, "theirs": "another"}
    deployed.cloud.scaled = {f"endpoint/{NAME}/variant/AllTraffic", "endpoint/x/variant/y"}


def test_what_an_earlier_endpoint_left_is_removed(deployed: Terminal) -> None:
    _with_leftovers(deployed)
    deployed.run("destroy", NAME, "--yes")
    done = deployed.succeeds("destroy", NAME, "--all", "--yes")
    assert f"removed LogGroup /aws/sagemaker/Endpoints/{NAME}" in done.out
    assert "Nothing to remove" in deployed.run("destroy", NAME, "--all", "--yes").err


def test_without_the_permission_to_list_them_leftovers_are_unknown(deployed: Terminal) -> None:
    deployed.rejects("describe_alarms", "AccessDenied")
    everything = deployed.run("destroy", NAME, "--all", "--yes")
    done = deployed.run("destroy", NAME, "--yes")
    assert everything.code == 4
    assert "cloudwatch:DescribeAlarms" in everything.error
    assert done.code == 0
    assert "are unknown" in done.err


def test_what_a_removed_template_left_is_removed(terminal: Terminal) -> None:
    by_template(terminal.world, a_plan(), "terraform")
    endpoint = terminal.cloud.endpoints.pop("peagle-pair")
    del terminal.cloud.tags[endpoint.arn]
    refused = terminal.run("destroy", "peagle-pair", "--yes")
    done = terminal.run("destroy", "peagle-pair", "--all", "--yes")
    assert refused.code == 3
    assert done.code == 0
    assert terminal.cloud.is_empty
