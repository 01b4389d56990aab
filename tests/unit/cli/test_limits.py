"""``deploy --ttl`` and ``--budget``, what ``list`` and ``status`` say of it, and ``reap``."""

import re

import pytest

from peagle.deploy.state import utc_moment, utc_text
from peagle.render.resources import limit_name
from tests.unit.aws.cloud import ACCOUNT, START
from tests.unit.aws.network import denied
from tests.unit.aws.plans import a_plan
from tests.unit.aws.templates import by_template
from tests.unit.cli.commands import FIRST, NAME, Terminal, find_price, without_record

DEPLOY = (*FIRST, "--yes", "--role", "peagle-execution")
SCHEDULE = limit_name("us-east-1", NAME)
HOUR = 3600


@pytest.fixture
def limited(terminal: Terminal) -> Terminal:
    """Deployed for 8 hours."""
    terminal.succeeds(*DEPLOY, "--ttl", "8h")
    return terminal


def end_of(terminal: Terminal) -> float:
    """The end time in the schedule, in epoch seconds."""
    text = terminal.cloud.schedules[SCHEDULE].schedule_expression
    moment = utc_moment(f"{text[3:-1]}Z")
    assert moment is not None
    return moment


def status(terminal: Terminal) -> dict[str, object]:
    document: dict[str, object] = terminal.run("status", NAME, "--json").document
    return document


def test_a_new_role_is_waited_for(terminal: Terminal) -> None:
    terminal.cloud.role_delay = 10
    assert terminal.run(*DEPLOY, "--ttl", "8h").code == 0
    assert terminal.cloud.calls.count("create_schedule") > 1


def test_status_and_list_show_the_end_and_the_cost(limited: Terminal) -> None:
    limited.cloud.now = START + 2 * HOUR
    price = find_price()
    assert price is not None
    document = status(limited)
    assert document["ends_at"] == limited.cloud.tags[endpoint_arn()]["peagle:ends"]
    assert document["seconds_left"] == pytest.approx(6 * HOUR, abs=600)
    assert document["cost_so_far_usd"] == pytest.approx(2 * price, rel=0.1)
    assert document["price_per_day_usd"] == round(24 * price, 2)
    (row,) = limited.run("list", "--json").document["deployments"]
    assert {key: row[key] for key in ("ends_at", "seconds_left", "cost_so_far_usd")} == {
        key: document[key] for key in ("ends_at", "seconds_left", "cost_so_far_usd")
    }


def endpoint_arn() -> str:
    return f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:endpoint/{NAME}"


def test_an_endpoint_that_may_not_be_deleted_keeps_the_schedule_that_ends_it(
    limited: Terminal,
) -> None:
    limited.cloud.before = denied("delete_endpoint")
    done = limited.run("destroy", NAME, "--yes")
    assert done.code == 4
    assert "sagemaker:DeleteEndpoint" in done.err
    assert SCHEDULE in limited.cloud.schedules
    limited.recovers()
    assert limited.run("destroy", NAME, "--yes").code == 0
    assert limited.cloud.is_empty


def ended(terminal: Terminal) -> None:
    """Let the end pass, and the scheduler delete the endpoint."""
    terminal.cloud.now = START + 9 * HOUR
    terminal.cloud.fire_schedules()
    assert terminal.cloud.endpoints == {}


@pytest.mark.thorough
@pytest.mark.parametrize("elsewhere", [False, True])
def test_reap_removes_what_the_scheduler_left(limited: Terminal, elsewhere: bool) -> None:
    ended(limited)
    assert status(limited)["state"] == "Ended"
    if elsewhere:
        without_record(limited)
    done = limited.succeeds("reap", "--yes", "--json")
    (reaped,) = done.document["reaped"]
    assert {"EndpointConfig", "Model", "S3Objects"} < {
        resource["type"] for resource in reaped["removed"]
    }
    assert limited.cloud.is_empty
    assert limited.cloud.schedule_roles == set()
    assert limited.run("list").err == "No deployments.\n"


@pytest.mark.parametrize("code", ["AccessDeniedException", "UnrecognizedClientException"])
def test_reap_does_not_hide_a_region_that_it_cannot_search(limited: Terminal, code: str) -> None:
    ended(limited)
    limited.rejects("get_resources", code)
    done = limited.run("reap", "--yes", "--json", "--region", "us-east-1")
    assert done.code == 4
    if code == "AccessDeniedException":
        assert "ended at" in done.err  # this machine's record
        assert [failure["region"] for failure in done.document["unknown"]] == ["us-east-1"]


def test_reap_leaves_what_a_template_made_to_its_owner(terminal: Terminal) -> None:
    by_template(terminal.world, a_plan(), "terraform")
    arn = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:endpoint/peagle-pair"
    terminal.cloud.tags[arn]["peagle:ends"] = "2020-01-31T20:00:00Z"
    done = terminal.succeeds("reap", "--yes", "--json")
    assert [resource["owner"] for resource in done.document["left"]] == ["a Terraform module"]
    assert "peagle-pair" in terminal.cloud.endpoints


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["48h", "2h", None])
def test_a_rollback_keeps_the_end_of_now(limited: Terminal, then: str | None) -> None:
    words = ("--no-limit",) if then is None else ("--ttl", then)
    assert limited.run(*DEPLOY, "--k", "3", *words).code == 0
    tag = limited.cloud.tags[endpoint_arn()]["peagle:ends"]
    limited.succeeds("rollback", NAME, "--yes")
    assert_ends(limited, tag)
    if then != "2h":
        limited.cloud.now = START + 9 * HOUR  # the end of the first deploy
        assert limited.run("reap", "--yes", "--json").document["ended"] == []
        assert NAME in limited.cloud.endpoints


@pytest.mark.thorough
def test_the_return_after_a_failed_proof_keeps_the_end_that_the_update_set(
    limited: Terminal,
) -> None:
    limited.cloud.engine.acceptance = 1.2
    done = limited.run(*DEPLOY, "--k", "3", "--ttl", "48h")
    assert "was rolled back" in done.err
    assert_ends(limited, utc_text(end_of(limited)))
    assert end_of(limited) > START + 47 * HOUR


def assert_ends(terminal: Terminal, tag: str) -> None:
    """Endpoint, configuration in service, schedule and status have the same end."""
    cloud = terminal.cloud
    config = cloud.endpoints[NAME].endpoint_config_name
    arn = endpoint_arn().replace(f"endpoint/{NAME}", f"endpoint-config/{config}")
    assert (cloud.tags[endpoint_arn()]["peagle:ends"], cloud.tags[arn]["peagle:ends"]) == (tag, tag)
    assert bool(cloud.schedules) is (tag != "none")
    if cloud.schedules:
        assert utc_text(end_of(terminal)) == tag
    assert (status(terminal)["ends_at"] or "none") == tag


def test_an_end_is_in_an_update(terminal: Terminal) -> None:
    assert terminal.run(*DEPLOY, "--ttl", "90m").code == 0
    update = terminal.run(*DEPLOY, "--k", "3")
    end = utc_text(end_of(terminal))
    assert re.search(rf"ends +{end}; --ttl or --no-limit changes it", update.err)
