"""``peagle rollback``, and what ``peagle deploy`` shows of updates that fail their proof."""

from __future__ import annotations

import pytest

from tests.unit.cli.commands import FIRST, NAME, Terminal, price_shown


@pytest.fixture
def updated(deployed: Terminal) -> Terminal:
    """K 7 served before, K 3 serves."""
    assert deployed.run(*FIRST, "--k", "3", "--yes").code == 0
    return deployed


@pytest.mark.thorough
def test_a_failed_update_reports_what_failed_and_what_serves(deployed: Terminal) -> None:
    before = deployed.cloud.endpoints[NAME].config
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
def test_an_unproved_update_stays_if_asked_to(deployed: Terminal) -> None:
    deployed.cloud.engine.acceptance = 1.2
    done = deployed.run(*FIRST, "--k", "3", "--yes", "--json", "--keep-unproved")
    assert done.code == 3
    assert (done.document["state"], done.document["k"]) == ("Unproved", 3)
    assert done.document["rolled_back"] is False
    assert f'"command": ["peagle", "rollback", "{NAME}"]' in done.error


@pytest.mark.thorough
def test_rollback_shows_what_changes_and_asks(updated: Terminal) -> None:
    done = updated.run("rollback", NAME, answers="n\n")
    assert done.code == 2
    assert "changes     K 3 -> 7" in done.err
    assert price_shown() in done.err
    assert "not rolled back" in done.error
    assert updated.run("status", NAME, "--json").document["k"] == 3


@pytest.mark.thorough
def test_an_interrupted_rollback_says_how_to_continue(updated: Terminal) -> None:
    updated.interrupts("update_endpoint", after=True)
    done = updated.run("rollback", NAME, "--yes")
    updated.recovers()
    assert done.code == 130
    assert f"Continue peagle rollback {NAME}" in done.err
    assert updated.run("rollback", NAME, "--yes", "--json").document["k"] == 7


@pytest.mark.thorough
def test_a_rollback_interrupted_at_its_end_is_finished_and_says_so(updated: Terminal) -> None:
    def interrupt(operation: str) -> None:
        if operation == "invoke_endpoint":
            updated.cloud.before = at_the_end

    def at_the_end(operation: str) -> None:
        if operation == "list_tags":  # the result is about to be shown
            raise KeyboardInterrupt

    updated.cloud.before = interrupt
    assert updated.run("rollback", NAME, "--yes").code == 130
    updated.recovers()
    done = updated.run("rollback", NAME, "--yes", "--json")
    assert "the rollback to it had begun, and is continued" in done.err
    assert done.document["k"] == 7
    assert updated.run("rollback", NAME, "--yes", "--json").document["k"] == 3


def test_without_a_previous_revision_nothing_is_rolled_back(deployed: Terminal) -> None:
    done = deployed.run("rollback", NAME, "--yes")
    assert done.code == 3
    assert "there is no revision" in done.error
