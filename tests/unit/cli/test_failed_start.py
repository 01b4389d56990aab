"""``peagle deploy`` of an engine that will never serve: shown at once, and removed if agreed."""

from __future__ import annotations

import json

import pytest

from tests.support import Done
from tests.unit.aws.cloud import START
from tests.unit.aws.test_wait import OUT_OF_MEMORY
from tests.unit.cli.commands import FIRST, NAME, Terminal


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
    monkeypatch.setattr(failing.cloud, "_refuse_busy", lambda endpoint: None)
    return failing


def _kept(done: Done, terminal: Terminal) -> None:
    assert done.code == 4
    assert "CUDA out of memory" in done.error
    assert f"Endpoint {NAME}" in done.err
    assert f"Remove   peagle destroy {NAME}" in done.err
    assert NAME in terminal.cloud.endpoints
    assert terminal.cloud.now - START < 10


def test_with_yes_it_is_removed_at_once_and_the_saving_is_named(deletable: Terminal) -> None:
    done = deletable.run(*FIRST, "--yes")
    assert done.code == 4
    assert f"endpoint {NAME} will never serve: torch.OutOfMemoryError" in done.error
    assert "; removed" in done.error
    assert "non-default args" not in done.err
    assert deletable.cloud.is_empty
    assert deletable.cloud.now - START < 10
    assert deletable.run("list").err == "No deployments.\n"


@pytest.mark.thorough
def test_where_a_creation_cannot_be_deleted_it_is_removed_later(failing: Terminal) -> None:
    done = failing.run(*FIRST, "--yes")
    assert "; removed" in done.error
    assert "Waiting for the endpoint's current change to end" in done.err
    assert done.err.index("CUDA out of memory") < done.err.index("Waiting for the endpoint's")
    assert failing.cloud.is_empty


def test_declined_it_stays(deletable: Terminal) -> None:
    _kept(deletable.run(*FIRST, answers="y\nn\n"), deletable)


def test_json_has_what_remains_and_the_commands_for_it(deletable: Terminal) -> None:
    done = deletable.run(*FIRST, "--yes", "--keep-failed", "--json")
    remaining = json.loads(done.err.splitlines()[-1])["remaining"]
    endpoint = {"type": "Endpoint", "name": NAME, "confirmed": True}
    assert endpoint in remaining["resources"]
    assert remaining["price_per_hour_usd"] == pytest.approx(1.408)
    assert remaining["continue_command"] == ["peagle", *FIRST, "--yes"]
    assert remaining["undo_command"] is None
    assert remaining["remove_command"] == ["peagle", "destroy", NAME, "--yes"]


def test_ctrl_c_during_the_removal_shows_what_remains(failing: Terminal) -> None:
    failing.interrupts("delete_endpoint")
    done = failing.run(*FIRST, "--yes", "--json")
    assert done.code == 130
    assert f"Endpoint {NAME}" in done.err
    assert f"Remove   peagle destroy {NAME}" in done.err
    document = json.loads(done.err.splitlines()[-1])
    assert document["error"]["code"] == "interrupted"
    assert document["remaining"]["remove_command"] == ["peagle", "destroy", NAME, "--yes"]
