"""Copies in the requests, and in the formats that can express them."""

import re
import subprocess
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
import yaml

from peagle.planning import Options, Plan, make_plan
from peagle.render import render, requests
from tests.support import rejected_values
from tests.unit.rendering.plans import CATALOG


@cache
def plan_of_copies(**more: Any) -> Plan:
    options = Options(pair="gpt-oss-20b", instance_type="ml.p5.48xlarge", copies=8, **more)
    return make_plan(options, CATALOG)


def resources(plan: Plan) -> Any:
    template, *_ = render("cloudformation", plan, CATALOG)
    return yaml.safe_load(template.content)["Resources"]


def test_another_model_keeps_the_configuration_of_the_instances() -> None:
    plan = plan_of_copies()
    changed = plan.model_copy(update={"environment": {**plan.environment, "A": "b"}})

    def names(plan: Plan) -> tuple[str, str]:
        model, config, *_ = (request.parameters for request in requests(plan))
        return model["ModelName"], config["EndpointConfigName"]

    assert names(plan)[0] != names(changed)[0]
    assert names(plan)[1] == names(changed)[1]
    assert rejected_values(plan) == []


BSD_DATE = """
date() {
    [ "$1 $2" != "-u -d" ] || { echo "illegal option -- d" >&2; return 1; }
    seconds=${2#-v+}
    command date -u -d "+${seconds%S} seconds" "$3"
}
"""
"""The ``date`` of macOS, as far as the commands need it."""


@pytest.mark.thorough
def test_a_stack_deletes_the_copies_at_a_time_of_their_own() -> None:
    made = resources(plan_of_copies(ttl=8 * 3600))
    assert {"Schedule", "CopiesSchedule"} <= {*made["Endpoint"]["DependsOn"]}
    schedule = made["CopiesSchedule"]["Properties"]
    assert schedule["ScheduleExpression"] == {"Fn::Sub": "at(${CopiesEndAt})"}
    assert schedule["Target"]["Arn"]["Fn::Sub"].endswith(":deleteInferenceComponent")
    policy = made["SchedulerRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    assert "sagemaker:DeleteInferenceComponent" in [each["Action"] for each in policy["Statement"]]


@pytest.mark.parametrize("date", ["", BSD_DATE])
@pytest.mark.parametrize(("name", "seconds"), [("EndsAt", 28_800), ("CopiesEndAt", 28_200)])
def test_a_shell_computes_the_end_with_the_date_of_linux_or_of_macos(
    name: str, seconds: int, date: str
) -> None:
    _, readme, *_ = render("cloudformation", plan_of_copies(ttl=8 * 3600), CATALOG)
    ends = re.search(rf'  {name}=("\$\([^"]*"[^"]*"[^"]*\)")', readme.content.decode())
    assert ends is not None
    script = f"{date}\nprintf %s {ends[1]}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    moment = datetime.strptime(f"{done.stdout}Z", "%Y-%m-%dT%H:%M:%S%z")
    assert abs((moment - datetime.now(UTC)).total_seconds() - seconds) < 300
    assert done.stderr == ""


@pytest.mark.thorough
def test_templates_update_the_copies_in_batches() -> None:
    made = resources(plan_of_copies(rollout="rolling"))
    assert "DeploymentConfig" not in made["Endpoint"]["Properties"]
    config = made["InferenceComponent"]["Properties"]["DeploymentConfig"]
    batch = config["RollingUpdatePolicy"]["MaximumBatchSize"]
    assert batch == {"Type": "COPY_COUNT", "Value": 4}
    assert made["AcceptedTokensFilter"]["DependsOn"] == "InferenceComponent"
