"""``peagle deploy``: what it refuses, and what AWS refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from tests.unit.aws.cloud import service_error
from tests.unit.cli.commands import FIRST, NAME, Terminal, nothing_was_created

REFUSED: list[tuple[list[str], int, str]] = [
    (["--name", "under_score"], 2, "under_score"),
    (["--name", "x" * 64], 2, "63"),
    (["--name", "-x"], 2, "-x"),
    (["--k", "99"], 3, "99"),
    (["--k", "0"], 2, "0"),
    (["--region", "us-est-1"], 2, "us-est-1"),
    (["--role", "no-such-role"], 2, "no-such-role"),
    (["--vllm", "0.0.1"], 3, "0.0.1"),
]


@pytest.mark.parametrize(("options", "code", "words"), REFUSED, ids=lambda value: str(value)[:24])
def test_an_impossible_deployment_is_one_line_and_creates_nothing(
    terminal: Terminal, options: list[str], code: int, words: str
) -> None:
    done = terminal.run(*FIRST, "--yes", *options)
    assert done.error.startswith("error:")
    assert words in done.error
    assert done.code == code
    assert done.out == ""
    assert nothing_was_created(terminal)


def test_a_quota_of_0_is_refused_by_name_before_any_resource_exists(terminal: Terminal) -> None:
    terminal.cloud.quotas = {"ml.g5.xlarge for endpoint usage": 0}
    done = terminal.run(*FIRST, "--yes")
    assert done.code == 3
    assert "'ml.g5.xlarge for endpoint usage' is 0" in done.error
    assert "Service Quotas" in done.error
    assert nothing_was_created(terminal)


def test_a_name_in_use_is_refused(terminal: Terminal) -> None:
    terminal.cloud._create_model("theirs", [])
    terminal.cloud._create_endpoint_config(
        "theirs", [], ProductionVariants=[{"ModelName": "theirs"}]
    )
    terminal.cloud._create_endpoint(NAME, "theirs", [])
    done = terminal.run(*FIRST, "--yes")
    assert done.code == 3
    assert "that this toolkit did not create" in done.error
    assert "--name" in done.error
    assert set(terminal.cloud.models) == {"theirs"}


@pytest.mark.thorough
def test_an_unknown_price_is_refused_until_it_is_accepted(terminal: Terminal) -> None:
    unpriced = [i.type for i in load_catalog().instances.instances if not i.prices]
    if not unpriced:
        pytest.skip("the catalogue knows every price")
    terminal.cloud.quotas = {f"{unpriced[0]} for endpoint usage": 1}
    options = ["deploy", "tiny", "--instance-type", unpriced[0], "--yes"]
    refused = terminal.run(*options)
    assert refused.code == 3
    assert "--accept-unknown-price" in refused.error
    assert nothing_was_created(terminal)
    assert terminal.run(*options, "--accept-unknown-price").code == 0


def test_another_region_than_the_plans_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    terminal.run("plan", *FIRST[1:], "--out", str(file))
    done = terminal.run("deploy", str(file), "--region", "eu-west-1", "--yes")
    assert done.code == 2
    assert "--region" in done.error
    assert nothing_was_created(terminal)


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("ExpiredTokenException", 4, "expired"),
        ("UnrecognizedClientException", 4, "rejects these credentials in us-east-1"),
        ("AccessDenied", 4, "access denied: sts:GetCallerIdentity"),
    ],
)
def test_credentials_that_aws_refuses(
    terminal: Terminal, code: str, exit_code: int, words: str
) -> None:
    def refuse(operation: str) -> None:
        raise service_error(code, "The security token is not good", "GetCallerIdentity")

    terminal.cloud.before = refuse
    done = terminal.run(*FIRST, "--yes")
    assert done.code == exit_code
    assert words in done.error
    assert "Traceback" not in done.err


def test_a_rejected_endpoint_costs_nothing(terminal: Terminal) -> None:
    terminal.rejects("create_endpoint", "ResourceLimitExceeded", 400)
    done = terminal.run(*FIRST, "--yes")
    assert done.code == 4
    assert "  EndpointConfig " in done.err
    assert f"  Endpoint {NAME}" not in done.err
    assert "Costs    $0" in done.err


@pytest.mark.parametrize(
    ("pair", "ending"),
    [
        (["tiny+eagle3"], "eagle3"),
        (["tiny", "--drafter", "eagle3"], "eagle3"),
        (["tiny", "--no-speculation"], "plain"),
    ],
)
def test_another_drafter_or_none_makes_no_second_paid_endpoint_unasked(
    terminal: Terminal, pair: list[str], ending: str
) -> None:
    assert terminal.run(*FIRST, "--yes").code == 0
    typed = ["deploy", *pair, "--instance-type", "ml.g5.xlarge"]
    refused = terminal.run(*typed, "--yes")
    asked = terminal.run(*typed, answers="n\n")
    assert (refused.code, set(terminal.cloud.endpoints)) == (3, {NAME})
    assert f"add --name {NAME} to update it, or --name {NAME}-{ending} for" in refused.error
    assert f"To update it instead, add --name {NAME}" in asked.err
    assert terminal.run(*typed, "--yes", "--name", NAME).code == 0
    assert set(terminal.cloud.endpoints) == {NAME}
