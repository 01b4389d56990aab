"""``peagle prove``: what it prints and how it ends."""

from __future__ import annotations

import pytest

from tests.unit.cli.commands import NAME, Terminal, without_record


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


@pytest.mark.thorough
def test_an_endpoint_needs_no_record(deployed: Terminal) -> None:
    without_record(deployed)
    assert deployed.run("prove", "--endpoint", NAME).code == 0
