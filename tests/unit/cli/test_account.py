"""Which AWS a session reaches, and how it finds a deployment there."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

import peagle
from peagle.account import NOT_SEARCHED, Account, default_region, leads_to_sandbox, make_observer
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.deploy import records
from peagle.deploy.context import Progress
from peagle.engine.state import log_of
from peagle.errors import NotFound, UserError
from peagle.store import SANDBOX
from tests.support import raises_code
from tests.unit.aws.network import denied
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World

URL = "http://127.0.0.1:18300"


@pytest.fixture
def world(plain_writes: None, monkeypatch: pytest.MonkeyPatch) -> World:
    """An account that sessions reach, with a deployment."""
    world = World()
    world.deploy(a_plan())
    monkeypatch.setattr(Account, "aws", lambda *_: world.aws)
    return world


def the_sandbox_runs(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    address = SimpleNamespace(url=url) if url else None
    monkeypatch.setattr("peagle.sandbox.state.read_daemon", lambda: address)


@pytest.mark.parametrize(("chosen", "running", "leads"), [
    (URL, URL, True),
    ("http://localhost:18300", URL, True),
    ("http://127.0.0.1:18301", URL, False),
    ("http://10.0.0.1:18300", URL, False),
    ("http://127.0.0.1:x", URL, False),
    (URL, None, False),
    ("", URL, False),
])  # fmt: skip
def test_an_endpoint_url_leads_to_the_sandbox_that_runs(
    monkeypatch: pytest.MonkeyPatch, chosen: str, running: str | None, leads: bool
) -> None:
    the_sandbox_runs(monkeypatch, running)
    assert leads_to_sandbox({"AWS_ENDPOINT_URL": chosen}) is leads
    monkeypatch.setenv("AWS_ENDPOINT_URL", chosen)
    assert peagle.Session().sandbox is leads
    assert peagle.Session().scope == (SANDBOX if leads else None)


@pytest.mark.parametrize(("region", "default", "chosen"), [
    ("eu-west-1", "us-west-2", "eu-west-1"),
    ("", "us-west-2", "us-west-2"),
    ("", "", "us-east-1"),
])  # fmt: skip
def test_the_region_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, region: str, default: str, chosen: str
) -> None:
    monkeypatch.setenv("AWS_REGION", region)
    monkeypatch.setenv("AWS_DEFAULT_REGION", default)
    assert default_region() == chosen


def test_a_deployment_is_found_by_its_record_or_its_tags(world: World) -> None:
    session = peagle.Session("us-east-1")
    by_record, _ = session.find(NAME)
    world.forget()
    by_tags, aws = session.find(NAME)
    assert (by_tags.id, by_tags.name, aws) == (by_record.id, NAME, world.aws)
    with raises_code("no-such-deployment", NotFound):
        session.find("another")


def _without_credentials(*_: object) -> Aws:
    raise UserError("there are no credentials", "log in", "no-credentials")


@pytest.mark.parametrize(("scope", "code"), [("", NOT_SEARCHED), (SANDBOX, "no-such-deployment")])
def test_without_credentials_an_unknown_name_may_be_in_the_account(
    world: World, monkeypatch: pytest.MonkeyPatch, scope: str, code: str
) -> None:
    monkeypatch.setattr(Account, "aws", _without_credentials)
    if scope:
        records.save(world.saved().model_copy(update={"scope": scope, "name": "tried"}))
    with raises_code(code, NotFound) as unknown:
        peagle.Session().find("tried")
    assert ("--sandbox" in unknown.value.fix) is bool(scope)


@pytest.mark.parametrize("has_credentials", [True, False])
def test_a_misspelt_engine_of_this_machine_is_suggested(
    world: World, monkeypatch: pytest.MonkeyPatch, has_credentials: bool
) -> None:
    if not has_credentials:
        monkeypatch.setattr(Account, "aws", _without_credentials)
    log = log_of("mine-small")
    log.parent.mkdir(parents=True)
    log.touch()
    with raises_code("no-such-deployment" if has_credentials else NOT_SEARCHED) as unknown:
        peagle.Session().find("mine-smal")
    assert "mine-small" in unknown.value.fix
    assert unknown.value.command == ()


def test_an_endpoint_without_a_deployment_is_served_too(world: World) -> None:
    session = peagle.Session("us-east-1")
    config = world.serves()
    world.cloud.call("create_endpoint", EndpointName="theirs", EndpointConfigName=config)
    assert session.find_served(NAME)[0] is not None
    assert session.find_served("theirs") == (None, world.aws)
    with raises_code("no-such-deployment", NotFound):
        session.find_served("nobodys")


@pytest.mark.parametrize(
    "hook", [denied("get_resources"), denied("get_resources", "describe_endpoint")]
)
def test_an_account_that_may_not_be_searched_may_have_the_endpoint(
    world: World, hook: Callable[[str], None]
) -> None:
    world.forget()
    world.cloud.before = hook
    session = peagle.Session("us-east-1")
    with pytest.raises(AccessDenied):
        session.find(NAME)
    assert session.find_served(NAME) == (None, world.aws)


@pytest.mark.parametrize(("choice", "name", "is_deployments"), [
    ({}, "unknown", False),
    ({}, NAME, True),
    ({"region": "us-east-1"}, "unknown", True),
    ({"profile": "work"}, "unknown", True),
    ({"sandbox": True}, "unknown", True),
])  # fmt: skip
def test_what_chooses_an_account_excludes_engines_of_this_machine(
    world: World, choice: dict[str, object], name: str, is_deployments: bool
) -> None:
    session = peagle.Session(**choice)  # type: ignore[arg-type]
    assert session.names_deployment(name) is is_deployments


def test_a_prompt_in_place_of_the_name_is_not_sent_to_aws(world: World) -> None:
    with pytest.raises(UserError, match="'What does x do\\?' is not a deployment's name"):
        peagle.Session("us-east-1").find_served("What does x do?")


def test_each_state_is_said_once() -> None:
    lines: list[str] = []
    observe = make_observer(lines.append)
    for progress in (Progress("A", line="x"), Progress("A", 9.0, line="x"), Progress("B")):
        observe(progress)
    observe(Progress("A", line="x"))
    make_observer(None)(Progress("A"))
    assert lines == ["A | x", "B", "A | x"]
