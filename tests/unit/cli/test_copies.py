"""A deployment whose copies share each instance, as an inference component."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.deploy.state import utc_moment, utc_text
from peagle.render.resources import copies_limit_name, limit_name
from tests.support import with_keys
from tests.unit.cli.commands import NAME, Terminal, without_record

pytestmark = pytest.mark.thorough

COPIES = ("deploy", "tiny", "--instance-type", "ml.g5.12xlarge", "--copies", "4", "--yes")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal(monkeypatch)
    made.cloud.quotas["ml.g5.12xlarge for endpoint usage"] = 4
    return made


def status_of(terminal: Terminal) -> dict[str, Any]:
    """The document of ``peagle status``."""
    found: dict[str, Any] = json.loads(terminal.run("status", NAME, "--json").out)
    return found


def model_of(terminal: Terminal) -> str:
    """The model that the copies serve."""
    found = terminal.cloud.components.by_name[NAME]["now"]
    return str(found["Specification"]["ModelName"])


def test_other_tags_are_added_to_the_copies_without_an_update(terminal: Terminal) -> None:
    assert terminal.run(*COPIES, "--tag", "team=ml").code == 0
    terminal.succeeds(*COPIES, "--tag", "team=web")
    assert "update_inference_component" not in terminal.cloud.calls
    assert len(terminal.cloud.tags) == 4, "component, endpoint, configuration and model"
    assert {tags["team"] for tags in terminal.cloud.tags.values()} == {"web"}


def test_an_update_that_sagemaker_rolls_back_leaves_what_served(terminal: Terminal) -> None:
    assert terminal.run(*COPIES).code == 0
    first = model_of(terminal)
    terminal.cloud.components.scripts = [[("Updating", None), ("InService", "no capacity here")]]
    done = terminal.run(*COPIES, "--k", "3")
    assert (done.code, model_of(terminal)) == (4, first)
    assert "the update was rolled back: no capacity here" in done.err


def test_other_instances_are_refused(terminal: Terminal) -> None:
    assert terminal.run(*COPIES).code == 0
    for words in (("--instance-count", "2"), ("--copies", "1", "--instance-type", "ml.g5.xlarge")):
        done = terminal.run(*COPIES, *words)
        assert (done.code, "update_endpoint" in terminal.cloud.calls) == (3, False)
        assert "replaces their model only" in done.err


def test_copies_are_found_by_tags_and_destroyed(terminal: Terminal) -> None:
    assert terminal.run(*COPIES).code == 0
    assert terminal.run(*COPIES, "--k", "3").code == 0
    without_record(terminal)
    found = status_of(terminal)
    assert (found["copies"], found["copies_running"], found["k"]) == (4, 4, 3)
    assert NAME in terminal.run("list").out
    assert terminal.run("rollback", NAME, "--yes").code == 0
    terminal.succeeds("destroy", NAME, "--yes")
    assert not terminal.cloud.components.by_name
    assert not {**terminal.cloud.endpoints, **terminal.cloud.models, **terminal.cloud.configs}


@pytest.mark.parametrize("call", ["create_endpoint", "create_inference_component"])
def test_an_interrupted_deploy_continues(terminal: Terminal, call: str) -> None:
    terminal.interrupts(call, after=True)
    assert terminal.run(*COPIES).code != 0
    terminal.recovers()
    terminal.succeeds(*COPIES)
    assert terminal.cloud.calls.count("create_endpoint") == 1
    assert terminal.cloud.calls.count("create_inference_component") == 1


def test_copies_are_observed_by_the_metrics_and_the_log_of_the_component(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert terminal.run(*COPIES, "--observe").code == 0
    log = f"/aws/sagemaker/InferenceComponents/{NAME}"
    assert terminal.cloud.retention == {log: 30}
    ((dashboard, body),) = terminal.cloud.dashboards.items()
    widgets = json.loads(body)["widgets"]
    texts = [json.dumps(one["properties"]) for one in widgets]
    metrics = [text for text in texts if "AWS/SageMaker" in text]
    assert metrics
    assert all(f'"InferenceComponentName", "{NAME}"' in text for text in metrics)
    assert not any("EndpointName" in text for text in texts)
    assert any("ConcurrentRequestsPerCopy" in text for text in texts)
    assert all(f"SOURCE '{log}'" in text for text in texts if "SOURCE" in text)
    price = status_of(terminal)["price_per_hour_usd"]
    assert any(f"count_distinct(@logStream) * {price / 4:g}" in text for text in texts)
    asked: list[dict[str, Any]] = []

    def answer(MetricDataQueries: list[dict[str, Any]], **_: Any) -> Any:
        asked.extend(MetricDataQueries)
        return {"MetricDataResults": []}

    monkeypatch.setattr(terminal.cloud, "_get_metric_data", answer)
    assert terminal.run("top", NAME, "--once").code == 0
    dimensions = [one["MetricStat"]["Metric"]["Dimensions"] for one in asked]
    assert dimensions
    assert all(one == [{"Name": "InferenceComponentName", "Value": NAME}] for one in dimensions)
    assert terminal.run("destroy", NAME, "--yes").code == 0
    assert dashboard not in terminal.cloud.dashboards


def test_the_copies_are_deleted_before_their_endpoint_at_its_end(terminal: Terminal) -> None:
    assert terminal.run(*COPIES, "--ttl", "8h").code == 0
    schedules = terminal.cloud.scheduler.schedules
    endpoint, copies = schedules[limit_name("us-east-1", NAME)], schedules[OF_COPIES]
    ends, first = moment_of(endpoint), moment_of(copies)
    assert status_of(terminal)["ends_at"] == utc_text(ends)
    assert ends - first == 600
    operation = "aws-sdk:sagemaker:deleteInferenceComponent"
    assert copies["Target"]["Arn"] == f"arn:aws:scheduler:::{operation}"
    assert json.loads(copies["Target"]["Input"]) == {"InferenceComponentName": NAME}
    statements = json.loads(*terminal.cloud.scheduler.roles.values())["Statement"]
    deletes = {one["Action"]: one for one in statements}["sagemaker:DeleteInferenceComponent"]
    assert deletes["Resource"].endswith(f":inference-component/{NAME}")
    own = deletes["Condition"]["StringEquals"]["aws:ResourceTag/peagle:id"]
    assert terminal.cloud.tags[deletes["Resource"]]["peagle:id"] == own
    terminal.cloud.now = ends - 60
    terminal.cloud.scheduler.fire()
    assert (NAME in terminal.cloud.components.by_name, NAME in terminal.cloud.endpoints) == (
        False,
        True,
    )
    terminal.cloud.now = ends
    terminal.cloud.scheduler.fire()
    assert terminal.cloud.endpoints == {}
    (reaped,) = terminal.run("reap", "--yes", "--json").document["reaped"]
    assert reaped["error"] is None
    assert terminal.cloud.is_empty


OF_COPIES = copies_limit_name("us-east-1", NAME)


def moment_of(schedule: dict[str, Any]) -> float:
    """When it fires, in epoch seconds."""
    found = utc_moment(f"{schedule['ScheduleExpression'][3:-1]}Z")
    assert found is not None
    return found


ROLLING = ("--rollout", "rolling", "--slo", "ttft=0.5")


def test_an_update_replaces_the_copies_in_batches_that_alarms_watch(
    terminal: Terminal, tmp_path: Path
) -> None:
    assert terminal.run(*COPIES).code == 0
    done = terminal.succeeds(*with_keys(tmp_path, COPIES, rollout_step="1"), "--k", "3", *ROLLING)
    assert "1 more instance meanwhile" in " ".join(done.err.split())
    (config,) = terminal.cloud.components.rollouts
    assert config is not None
    policy = config["RollingUpdatePolicy"]
    assert policy["MaximumBatchSize"] == {"Type": "COPY_COUNT", "Value": 1}
    assert policy["WaitIntervalInSeconds"] == 600
    names = {one["AlarmName"] for one in config["AutoRollbackConfiguration"]["Alarms"]}
    assert names == set(terminal.cloud.made_alarms)
    assert f"{NAME}-ttft-p90" in names
    assert terminal.cloud.log_groups == {f"/aws/sagemaker/InferenceComponents/{NAME}"}
    without_record(terminal)
    assert terminal.run("destroy", NAME, "--yes").code == 0
    assert terminal.cloud.made_alarms == terminal.cloud.metric_filters == {}


def test_an_alarm_that_undoes_an_update_of_copies_is_named(terminal: Terminal) -> None:
    assert terminal.run(*COPIES).code == 0
    first = model_of(terminal)
    terminal.cloud.firing = {f"{NAME}-acceptance"}
    terminal.cloud.components.scripts = [[("Updating", None), ("InService", "an alarm")]]
    done = terminal.run(*COPIES, "--k", "3", *ROLLING)
    assert (done.code, model_of(terminal)) == (4, first)
    assert f"rolled back on the alarm {NAME}-acceptance" in done.err
    assert "--no-speculation" in done.err


@pytest.mark.parametrize("rollout", [(), ROLLING])
def test_an_update_has_no_batches_where_one_copy_runs(
    terminal: Terminal, rollout: tuple[str, ...]
) -> None:
    assert terminal.run(*COPIES).code == 0
    assert terminal.run("scale", NAME, "--to", "1", "--yes").code == 0
    terminal.succeeds(*COPIES, "--k", "3", *rollout)
    assert terminal.cloud.components.rollouts == [None]
