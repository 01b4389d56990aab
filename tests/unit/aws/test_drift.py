"""Drift: each field that someone changes in the account is found, and nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.aws.errors import AccessDenied
from peagle.catalog import load_catalog
from peagle.deploy.drift import Drift, find_drift, find_template_drift
from peagle.errors import UserError
from peagle.planning import Options, make_plan
from peagle.planning.company import Company
from peagle.planning.plan import Capture, Limit, Observe, Plan
from peagle.render import render
from peagle.render.resources import limit_name
from peagle.text import plain
from peagle.workload import Slo
from tests.support import raises_code
from tests.unit.aws.cloud import Cloud
from tests.unit.aws.network import denied
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.test_scaling import SCALING, TARGET
from tests.unit.aws.test_updates import ACCEPTANCE, ERRORS, rolled_out
from tests.unit.aws.world import NAME, World

DASHBOARD = f"{NAME}-us-east-1"
FILTER = "peagle-AcceptedTokens"
LOG = f"/aws/sagemaker/Endpoints/{NAME}"
ENDS = limit_name("us-east-1", NAME)
S3 = "s3://peagle-captured/prompts/"
TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"
KEY = "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"


def full_plan() -> Plan:
    """A plan with every topic that is compared."""
    plan = a_plan(
        scaling=SCALING,
        observe=Observe(
            dashboard=True, alarm_topic=TOPIC, log_retention_days=30,
            capture=Capture(s3_uri=S3, percent=10, kms_key=None, retention_days=7),
        ),
        company=Company(
            subnets=("subnet-0a1b2c3d",), security_groups=("sg-0a1b2c3d",), kms_key=KEY,
            tags={"team": "search"},
        ),
        limit=Limit(ttl_seconds=3600, budget_usd=20.0),
        slo=Slo(ttft=0.5),
    )  # fmt: skip
    return rolled_out(plan)


@pytest.fixture
def deployed(world: World) -> World:
    world.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 20
    world.deploy(full_plan())
    return world


def drift_of(world: World, plan: Plan | None = None) -> Drift:
    return find_drift(world.aws, plan or full_plan(), load_catalog().instances)


def fields(drift: Drift) -> dict[str, tuple[Any, Any]]:
    return {change.setting: (change.after, change.before) for change in drift.fields}


@pytest.mark.thorough
def test_a_deployment_as_planned_has_no_drift(deployed: World) -> None:
    deployed.cloud.calls.clear()
    drift = drift_of(deployed)
    assert drift.fields == ()
    assert drift.unknown == {}
    assert all(call.startswith(("describe", "get", "list")) for call in deployed.cloud.calls)


def test_a_rollback_of_another_machines_update_is_no_drift(
    world: World, head: Path, tmp_path: Path
) -> None:
    """Equal weights are at one prefix, whichever machine plans and whatever was deployed since."""
    checkout = tmp_path / "another-checkout"
    shutil.copytree(head, checkout)
    world.deploy(a_plan(head))
    world.forget()
    world.deploy(another(a_plan(checkout)))
    (bucket,) = world.cloud.buckets.values()
    assert len(bucket) == 2, "no second copy of equal weights"
    world.forget()
    world.rollback()
    for forget in (False, True):
        if forget:
            world.forget()
        assert drift_of(world, a_plan(head)).fields == ()
        assert drift_of(world, a_plan(checkout)).fields == ()
    assert world.preflight(a_plan(head)).change == "nothing"


Change = Callable[[Cloud], object]


def model(cloud: Cloud) -> dict[str, Any]:
    return next(iter(cloud.models.values()))


def container(cloud: Cloud) -> dict[str, Any]:
    return model(cloud)["PrimaryContainer"]  # type: ignore[no-any-return]


def config(cloud: Cloud) -> dict[str, Any]:
    return next(iter(cloud.configs.values()))


def variant(cloud: Cloud) -> dict[str, Any]:
    return config(cloud)["ProductionVariants"][0]  # type: ignore[no-any-return]


def tags(cloud: Cloud, kind: str) -> dict[str, str]:
    return next(listed for arn, listed in cloud.tags.items() if f":{kind}/" in arn)


def widget(cloud: Cloud) -> None:
    body = json.loads(cloud.dashboards[DASHBOARD])
    body["widgets"][1]["properties"]["title"] = "Mine"
    cloud.call("put_dashboard", DashboardName=DASHBOARD, DashboardBody=json.dumps(body))


def captured_rule(cloud: Cloud) -> dict[str, Any]:
    (rule,) = cloud.lifecycles["peagle-captured"]
    return rule


CHANGES: dict[str, Change] = {
    "model.image": lambda c: container(c).update(Image="123456789012.dkr.ecr/other:1"),
    "model.variable.LEVEL": lambda c: container(c)["Environment"].update(LEVEL="debug"),
    "model.engine.kv-cache-dtype": lambda c: container(c)["Environment"].update(
        SM_VLLM_KV_CACHE_DTYPE="fp8"
    ),
    "model.k": lambda c: container(c)["Environment"].update(
        SM_VLLM_SPECULATIVE_CONFIG='{"method": "eagle3", "num_speculative_tokens": 3,'
        ' "parallel_drafting": true}'
    ),
    "model.weights.model": lambda c: container(c).update(
        ModelDataSource={"S3DataSource": {"S3Uri": "s3://other/weights/"}}
    ),
    "model.subnets": lambda c: model(c)["VpcConfig"].update(Subnets=["subnet-11111111"]),
    "model.network_isolation": lambda c: model(c).update(EnableNetworkIsolation=True),
    "model.role": lambda c: model(c).update(ExecutionRoleArn="arn:aws:iam::1:role/other"),
    "configuration.instance_type": lambda c: variant(c).update(InstanceType="ml.g6.xlarge"),
    "configuration.kms_key": lambda c: config(c).pop("KmsKeyId"),
    "configuration.DataCaptureConfig.InitialSamplingPercentage": lambda c: config(c)[
        "DataCaptureConfig"
    ].update(InitialSamplingPercentage=100),
    "configuration.RoutingConfig.RoutingStrategy": lambda c: variant(c)["RoutingConfig"].update(
        RoutingStrategy="RANDOM"
    ),
    "endpoint.instance_count": lambda c: setattr(c.endpoints[NAME], "count", 5),
    "endpoint.status": lambda c: setattr(c.endpoints[NAME], "script", [("OutOfService", None)]),
    "scaling.max_instances": lambda c: c.add_scalable_target(TARGET, 9),
    f"alarm.{ACCEPTANCE}.Threshold": lambda c: c.put_alarm(ACCEPTANCE, Threshold=1.0),
    f"alarm.{ERRORS}.ActionsEnabled": lambda c: c.put_alarm(ERRORS, ActionsEnabled=False),
    f"alarm.{ACCEPTANCE}.OKActions": lambda c: c.put_alarm(
        ACCEPTANCE, OKActions=[TOPIC, f"{TOPIC}-other"]
    ),
    f"alarm.{ERRORS}": lambda c: c.call("delete_alarms", AlarmNames=[ERRORS]),
    "dashboard": lambda c: c.call("delete_dashboards", DashboardNames=[DASHBOARD]),
    "dashboard.widgets[1].properties.title": widget,
    f"metric_filter.{FILTER}": lambda c: c.call(
        "delete_metric_filter", logGroupName=LOG, filterName=FILTER
    ),
    f"metric_filter.{FILTER}.filterPattern": lambda c: c.metric_filters[FILTER].update(
        filterPattern="accepted"
    ),
    "captured": lambda c: c.lifecycles.clear(),
    "captured.Expiration.Days": lambda c: captured_rule(c).update(Expiration={"Days": 900}),
    "log.retention_days": lambda c: c.call("delete_retention_policy", logGroupName=LOG),
    f"schedule.{ENDS}": lambda c: c.schedules.clear(),
    f"schedule.{ENDS}.ScheduleExpression": lambda c: setattr(
        c.schedules[ENDS], "schedule_expression", "at(2036-01-01T00:00:00)"
    ),
    "limit.ends_at": lambda c: tags(c, "endpoint").update({"peagle:ends": "none"}),
    "limit.budget_usd": lambda c: tags(c, "endpoint").update({"peagle:budget": "900"}),
    "tags.Endpoint.team": lambda c: tags(c, "endpoint").pop("team"),
    "tags.EndpointConfig.team": lambda c: tags(c, "endpoint-config").update(team="ads"),
}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_that_someone_changes_is_found_alone(deployed: World, field: str) -> None:
    CHANGES[field](deployed.cloud)
    drifted = fields(drift_of(deployed))
    assert list(drifted) == [field]
    planned, there = drifted[field]
    assert planned != there


_OUTSIDE = ("alarm", "captured", "dashboard", "log", "metric_filter", "schedule")
OUTSIDE = [field for field in CHANGES if field.startswith(_OUTSIDE)]


@pytest.mark.parametrize("field", OUTSIDE)
@pytest.mark.parametrize("change", [full_plan, lambda: another(full_plan())])
def test_what_an_update_gives_back_its_planned_value_is_shown_before(
    deployed: World, field: str, change: Callable[[], Plan]
) -> None:
    """The same fields as in a drift, whether the endpoint changes or not."""
    CHANGES[field](deployed.cloud)
    shown = {each.setting: each for each in deployed.preflight(change()).changes}
    assert shown[field].after is not None
    assert shown[field].before != shown[field].after
    deployed.deploy(change())
    assert field not in {each.setting for each in deployed.preflight(change()).changes}


@pytest.mark.parametrize(("operation", "area"), [
    ("describe_alarms", "alarms"), ("get_dashboard", "dashboard"), ("get_schedule", "schedule"),
])  # fmt: skip
def test_what_may_not_be_read_before_an_update_is_unknown(
    deployed: World, operation: str, area: str
) -> None:
    deployed.cloud.before = denied(operation)
    shown = {each.setting: each.before for each in deployed.preflight(full_plan()).changes}
    shown.pop("end")
    assert shown == {area: "unknown"}


def test_a_number_of_instances_that_scaling_chose_is_no_drift(deployed: World) -> None:
    deployed.cloud.endpoints[NAME].count = 3
    assert drift_of(deployed).fields == ()


def test_a_plan_that_was_not_deployed_yet_is_drift(deployed: World) -> None:
    assert list(fields(drift_of(deployed, another(full_plan())))) == ["model.engine.k"]


def test_what_may_not_be_read_is_unknown_and_the_rest_is_compared(deployed: World) -> None:
    cloud = deployed.cloud
    cloud.call("delete_alarms", AlarmNames=[*cloud.made_alarms])
    cloud.before = denied("get_dashboard")
    drift = drift_of(deployed)
    assert list(drift.unknown) == ["dashboard"]
    assert isinstance(drift.unknown["dashboard"], AccessDenied)
    assert len(drift.fields) == 2
    assert plain(drift)["unknown"][0]["area"] == "dashboard"


def test_a_rendered_template_is_compared_with_the_plan(tmp_path: Path) -> None:
    catalog = load_catalog()
    plan = make_plan(Options(pair="tiny", instance_type="ml.g5.xlarge"), catalog)
    for file in render("terraform", plan, catalog):
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(file.content)
    assert find_template_drift(plan, tmp_path, catalog) == ()
    other = plan.model_copy(update={"instance_count": 2})
    (tmp_path / "main.tf").write_text("# mine\n")
    changed = {change.setting for change in find_template_drift(other, tmp_path, catalog)}
    assert {"template.main.tf", "template.values.json"} <= changed


@pytest.mark.parametrize("format", ["hyperpod", "kserve"])
@pytest.mark.parametrize("edited", ["inference.yaml", "gate.yaml"])
def test_formats_with_same_files_are_told_apart(tmp_path: Path, format: str, edited: str) -> None:
    catalog = load_catalog()
    plan = make_plan(Options(pair="tiny", instance_type="ml.g5.xlarge"), catalog)
    for file in render(format, plan, catalog):
        (tmp_path / file.path).write_bytes(file.content)
    assert find_template_drift(plan, tmp_path, catalog) == ()
    (tmp_path / edited).write_text("kind: Mine\n")
    paths = [change.setting for change in find_template_drift(plan, tmp_path, catalog)]
    assert paths == [f"template.{edited}"]


def test_a_folder_without_a_template_is_an_error(tmp_path: Path) -> None:
    catalog = load_catalog()
    with raises_code("no-rendered-files", UserError):
        find_template_drift(a_plan(), tmp_path, catalog)
