"""A fix that names an option and its value comes with the user's own command, so changed."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.support import Done, in_process


def _error_of(done: Done) -> dict[str, object]:
    error: dict[str, object] = json.loads(done.err.splitlines()[-1])["error"]
    return error


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        (
            "plan gpt-oss-20b --k 99 --region eu-west-1 --json",
            "plan gpt-oss-20b --region eu-west-1 --json --k 7",
        ),
        (
            "plan gpt-oss-20b --instance-type ml.g6e.xlarg --json",
            "plan gpt-oss-20b --json --instance-type ml.g6e.xlarge",
        ),
        (
            "plan gpt-oss-20b --set seed=8 --max-model-len 900k --json",
            "plan gpt-oss-20b --set seed=8 --json --max-model-len 131072",
        ),
        (
            "plan gpt-oss-20b --concurrency 4 --max-price-per-hour 0.5 --json",
            "plan gpt-oss-20b --concurrency 4 --json --max-price-per-hour 1.13",
        ),
        (
            "plan gpt-oss-120b --instance-type ml.g5.xlarge --json",
            "plan gpt-oss-120b --json --instance-type ml.g7e.2xlarge",
        ),
    ],
)
def test_the_command_of_an_error_is_the_users_own_and_works(typed: str, changed: str) -> None:
    refused = in_process(*shlex.split(typed))
    assert refused.code in (2, 3)
    assert _error_of(refused)["command"] == ["peagle", *shlex.split(changed)]
    assert in_process(*shlex.split(changed)).code == 0


def test_people_see_the_command_after_the_sentence() -> None:
    done = in_process("plan", "gpt-oss-20b", "--k", "99")
    shown = "(use --k 10 or less; 7 is recommended: peagle plan gpt-oss-20b --k 7)"
    assert done.error.endswith(shown)


def test_another_spelling_of_the_option_is_replaced() -> None:
    done = in_process("check", "gpt-oss-20b", "--tensor-parallel-size", "3", "--json")
    commands = {one["code"]: one["command"] for one in json.loads(done.out)["findings"]}
    assert commands["tensor-parallel"] == [
        "peagle", "check", "gpt-oss-20b", "--json", "--tp", "2",
    ]  # fmt: skip


def test_another_drafter_replaces_the_pair() -> None:
    typed = ("--concurrency", "10", "--json")
    done = in_process("plan", "gpt-oss-20b", *typed)
    commands = {one["code"]: one["command"] for one in json.loads(done.out)["findings"]}
    longer = ["peagle", "plan", "gpt-oss-20b+p-eagle-long", *typed]
    assert commands["long-context-head"] == longer
    again = in_process(*longer[1:])
    assert "long-context-head" not in {one["code"] for one in json.loads(again.out)["findings"]}


def test_a_command_that_does_not_take_the_option_suggests_none() -> None:
    """`plan` has no --fallback-instance-types, which `deploy` has."""
    done = in_process("plan", "gpt-oss-20b", "--instance-type", "ml.g6e.xlarge", "--json")
    commands = {one["code"]: one["command"] for one in json.loads(done.out)["findings"]}
    assert commands["instance-scarce"] is None


def test_an_unknown_fallback_does_not_change_the_first_type() -> None:
    done = in_process(
        *("deploy", "gpt-oss-20b", "--fallback-instance-types", "ml.g6e.xlarg"),
        *("--sandbox", "--yes", "--json"),
    )
    assert _error_of(done)["command"] is None
