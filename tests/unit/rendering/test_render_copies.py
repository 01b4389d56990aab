"""Copies in the requests, and in the formats that can express them."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from peagle.planning import Options, Plan, make_plan
from peagle.render import render, requests
from peagle.request_validation import request_findings
from tests.unit.rendering.plans import CATALOG, filled


@pytest.fixture(scope="module")
def plan() -> Plan:
    options = Options(pair="gpt-oss-20b", instance_type="ml.p5.48xlarge", copies=8)
    return make_plan(options, CATALOG)


def calls(plan: Plan) -> dict[str, Any]:
    return {request.operation: request.parameters for request in requests(plan)}


def test_another_model_keeps_the_configuration_of_the_instances(plan: Plan) -> None:
    changed = plan.model_copy(update={"environment": {**plan.environment, "A": "b"}})
    before, after = calls(plan), calls(changed)

    def names(made: dict[str, Any]) -> tuple[str, str]:
        config = made["create_endpoint_config"]["EndpointConfigName"]
        return made["create_model"]["ModelName"], config

    assert names(before)[0] != names(after)[0]
    assert names(before)[1] == names(after)[1]


def test_aws_accepts_the_requests(plan: Plan) -> None:
    made = [type(one)(one.service, one.operation, filled(one.parameters)) for one in requests(plan)]

    assert [*request_findings(made, plan.region)] == []


BSD_DATE = """
date() {
    [ "$1 $2" != "-u -d" ] || { echo "illegal option -- d" >&2; return 1; }
    seconds=${2#-v+}
    command date -u -d "+${seconds%S} seconds" "$3"
}
"""
"""The ``date`` of macOS, as far as the commands need it."""


@pytest.fixture(scope="module")
def limited() -> Plan:
    options = Options(pair="gpt-oss-20b", instance_type="ml.p5.48xlarge", copies=8, ttl=8 * 3600)
    return make_plan(options, CATALOG)


@pytest.mark.thorough
def test_a_stack_deletes_the_copies_at_a_time_of_their_own(limited: Plan) -> None:
    template, readme, *_ = render("cloudformation", limited, CATALOG)
    stack = yaml.safe_load(template.content)
    resources = stack["Resources"]

    assert {"EndsAt", "CopiesEndAt"} <= stack["Parameters"].keys()
    assert {"Schedule", "CopiesSchedule"} <= {*resources["Endpoint"]["DependsOn"]}
    schedule = resources["CopiesSchedule"]["Properties"]
    assert schedule["ScheduleExpression"] == {"Fn::Sub": "at(${CopiesEndAt})"}
    assert schedule["Target"]["Arn"]["Fn::Sub"].endswith(":deleteInferenceComponent")
    policy = resources["SchedulerRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    assert "sagemaker:DeleteInferenceComponent" in [one["Action"] for one in policy["Statement"]]
    shown = readme.content.decode()
    assert (
        'CopiesEndAt="$(date -u -d "+28200 seconds" +%FT%T 2>/dev/null || date -u -v+28200S'
        in shown
    )


@pytest.mark.parametrize("date", ["", BSD_DATE])
def test_a_shell_computes_the_end_with_the_date_of_linux_or_of_macos(
    limited: Plan, date: str
) -> None:
    _, readme, *_ = render("cloudformation", limited, CATALOG)
    ends = re.search(r'  EndsAt=("\$\(.*\)")', readme.content.decode())
    assert ends is not None
    script = f"{date}\nprintf %s {ends[1]}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)

    moment = datetime.strptime(f"{done.stdout}Z", "%Y-%m-%dT%H:%M:%S%z")
    assert abs((moment - datetime.now(UTC)).total_seconds() - 8 * 3600) < 600
    assert done.stderr == ""


@pytest.mark.thorough
def test_templates_update_the_copies_in_batches() -> None:
    options = Options(
        pair="gpt-oss-20b", instance_type="ml.p5.48xlarge", copies=8, rollout="rolling"
    )
    rolling = make_plan(options, CATALOG)
    template, *_ = render("cloudformation", rolling, CATALOG)
    resources = yaml.safe_load(template.content)["Resources"]

    assert "DeploymentConfig" not in resources["Endpoint"]["Properties"]
    config = resources["InferenceComponent"]["Properties"]["DeploymentConfig"]
    batch = config["RollingUpdatePolicy"]["MaximumBatchSize"]
    assert batch == {"Type": "COPY_COUNT", "Value": 4}
    assert resources["AcceptedTokensFilter"]["DependsOn"] == "InferenceComponent"
