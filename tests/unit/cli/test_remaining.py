"""What an error leaves of a change: how it is continued, undone and removed."""

from typing import Any

import click
import pytest

from peagle.account import DeploymentChange
from peagle.cli.main import cli
from peagle.cli.session import CommandSession
from peagle.deploy.apply import RolledBack
from peagle.deploy.comparison import CandidateNotProved
from peagle.deploy.state import Deployment, Resource
from peagle.errors import CloudError, NotProved
from tests.unit.aws.plans import a_plan, a_revision
from tests.unit.aws.world import World

NAME = "peagle-pair"
REVISION = a_revision(a_plan())
LINES = {
    "deploy": ("tiny", "--k", "3", "--yes", "--no-wait", "--json"),
    "rollback": (NAME, "-y"),
    "destroy": (NAME, "--all", "--yes"),
    "compare": (NAME, "--with", "tiny --k 3"),
}
DEPLOY = ("peagle", "deploy", "tiny", "--k", "3", "--yes")
ROLLBACK, DESTROY = ("peagle", "rollback", NAME, "--yes"), ("peagle", "destroy", NAME, "--yes")
REPEATED = {
    "deploy": DEPLOY,
    "rollback": ROLLBACK,
    "destroy": ("peagle", "destroy", NAME, "--all", "--yes"),
    "compare": ("peagle", "compare", NAME, "--with", "tiny --k 3", "--yes"),
}


@pytest.fixture
def world(plain_writes: None) -> World:
    return World()


def remaining(world: World, command: str, error: BaseException, record: Deployment) -> Any:
    """What ``--json`` has next to the error of ``command``."""
    root = click.Context(cli, info_name="peagle", obj={})
    typed = cli.get_command(root, command)
    assert typed
    with typed.make_context(command, [*LINES[command]], parent=root) as ctx:
        session = CommandSession("us-east-1")
        session.report_remaining(DeploymentChange(session, world.aws, record), error)
        return ctx.obj["remaining"]


def a_record(world: World, serving: bool, pending: bool, resources: int = 1) -> Deployment:
    made = [Resource(type="Model", name=f"m{number}", revision="") for number in range(resources)]
    return world.new(NAME).model_copy(
        update={
            "serving": REVISION if serving else None,
            "pending": REVISION if pending else None,
            "resources": tuple(made),
        }
    )


@pytest.mark.parametrize("command", ["deploy", "rollback", "destroy", "compare"])
@pytest.mark.parametrize("serving", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_it_is_continued_undone_and_removed(
    world: World, command: str, serving: bool, pending: bool
) -> None:
    left = remaining(world, command, CloudError("no"), a_record(world, serving, pending))
    undone = serving and pending and command != "rollback"
    assert left["continue_command"] == REPEATED[command]
    assert left["undo_command"] == (ROLLBACK if undone else None)
    assert left["remove_command"] == DESTROY
    assert [resource.name for resource in left["resources"]] == ["m0"]


def test_of_nothing_nothing_is_removed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    left = remaining(world, "deploy", CloudError("no"), a_record(world, True, True, resources=0))
    commands = [value for key, value in left.items() if key.endswith("command")]
    assert (commands, left["price_per_hour_usd"]) == ([None, None, None], 0.0)
    assert "Costs" not in capsys.readouterr().err


@pytest.mark.parametrize(("command", "error", "continues"), [
    ("deploy", NotProved("its acceptance is too low"), True),
    ("deploy", RolledBack("what served before serves"), False),
    ("deploy", KeyboardInterrupt(), True),
    ("rollback", NotProved("its acceptance is too low"), False),
    ("rollback", CloudError("no"), True),
    ("compare", CandidateNotProved("what served before serves"), False),
])  # fmt: skip
def test_what_serves_after_a_failed_proof_is_not_changed_again(
    world: World,
    command: str,
    error: BaseException,
    continues: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = remaining(world, command, error, a_record(world, True, True))
    shown = capsys.readouterr().err
    assert (left["continue_command"] is not None) is continues
    assert ("These resources exist" in shown) is continues
    assert "Costs" in shown


@pytest.mark.parametrize(("command", "removes"), [("destroy", False), ("deploy", True)])
def test_a_removal_is_not_offered_twice(
    world: World, command: str, removes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    remaining(world, command, CloudError("no"), a_record(world, True, False))
    assert ("\nRemove " in capsys.readouterr().err) is removes
