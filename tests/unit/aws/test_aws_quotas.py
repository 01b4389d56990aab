"""Quotas: zero, too small, in use, unreadable."""

import shlex
from datetime import date

import pytest

from peagle.aws import prices
from peagle.aws.prices import QuotaNeed, quota_findings, quotas_at_plan
from peagle.catalog.tables import Instance, InstanceTable
from peagle.errors import CloudError
from peagle.findings import Finding
from peagle.store import SANDBOX
from tests.unit.aws.network import denied
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import World

TYPE = "ml.g5.xlarge"
NAME = f"{TYPE} for endpoint usage"
CODE = "L-1928E07B"
ONE = QuotaNeed(TYPE, 1, 1)


TABLE = InstanceTable(
    checked=date(2026, 7, 1),
    source="test",
    instances=(
        Instance(type=TYPE, gpu="A10G", gpu_count=1, gpu_memory_mib=23028,
                 gpu_architecture="sm_86", vcpus=4, memory_gib=16, quota_code=CODE),
    ),
)  # fmt: skip


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_a_plan_has_a_note_that_the_quota_suffices(world: World) -> None:
    world.cloud.quotas = {NAME: 4}
    assert only(quotas_at_plan(world.aws, TYPE, 1, TABLE)).code == "quota-enough"
    world.deploy(a_plan(instance_count=2))
    finding = only(quotas_at_plan(world.aws, TYPE, 1, TABLE))
    assert (finding.code, finding.level) == ("quota-enough", "note")
    assert "peagle-pair" in finding.message


@pytest.mark.parametrize(("value", "need", "code", "sandbox", "command"), [
    (0, QuotaNeed(TYPE, 2, 2), "quota-zero", False,
     "aws service-quotas request-service-quota-increase --service-code sagemaker "
     f"--quota-code {CODE} --desired-value 2 --region us-east-1"),
    (0, ONE, "quota-zero", True, f"peagle sandbox quota set {TYPE} 1 --region us-east-1"),
    (2, QuotaNeed(TYPE, 2, 2), "quota-in-use", False,
     "aws service-quotas request-service-quota-increase --service-code sagemaker "
     f"--quota-code {CODE} --desired-value 4 --region us-east-1"),
    (2, QuotaNeed(TYPE, 2, 1), "quota-in-use", True,
     f"peagle sandbox quota set {TYPE} 3 --region us-east-1"),
])  # fmt: skip
def test_the_command_raises_the_quota_of_the_account_or_of_the_sandbox(
    world: World, value: int, need: QuotaNeed, code: str, sandbox: bool, command: str
) -> None:
    world.cloud.quotas, world.cloud.quota_codes = {NAME: 2}, {NAME: CODE}
    world.deploy(a_plan(instance_count=2))
    world.cloud.quotas = {NAME: value}
    world.aws.record_scope = SANDBOX if sandbox else None
    finding = only(quota_findings(world.aws, need, TABLE))
    assert (finding.code, finding.level) == (code, "error")
    assert shlex.join(finding.command or ()) == command


@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException"])
def test_an_unreadable_quota_is_a_warning(world: World, code: str) -> None:
    world.cloud.before = denied("get_service_quota", "list_service_quotas", code=code)
    finding = only(quota_findings(world.aws, ONE, TABLE))
    assert (finding.code, finding.level) == ("quota-unknown", "warning")


def test_nothing_is_said_of_a_quota_whose_use_may_not_be_listed(world: World) -> None:
    world.cloud.before = denied("list_endpoints")
    assert quota_findings(world.aws, ONE, TABLE, at_plan=True) == ()


def test_requested_instances_count(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.endpoints["peagle-pair"].production_variants[0]["DesiredInstanceCount"] = 3
    assert prices.instances_in_use(world.aws, TYPE) == {"peagle-pair": 3}
    assert prices.instances_in_use(world.aws, "ml.g5.2xlarge") == {}
    assert prices.instances_in_use(world.aws, TYPE, but="peagle-pair") == {}


@pytest.mark.parametrize(("value", "used", "count", "more", "code"), [
    (0, 0, 1, 1, "quota-zero"),
    (1, 0, 1, 1, None),
    (1, 0, 2, 2, "quota-too-small"),
    (2, 0, 2, 2, None),
    (3, 1, 2, 2, None),
    (3, 2, 2, 2, "quota-in-use"),
    (2, 3, 2, 2, "quota-in-use"),
    (3, 2, 2, 1, None),
    (2, 2, 2, 1, "quota-in-use"),
    (2.9, 2, 2, 1, "quota-in-use"),
    (2, 2, 2, 0, None),
    (2, 3, 2, 0, None),
])  # fmt: skip
def test_a_quota_suffices_for_what_is_needed_beside_what_is_in_use(
    value: float, used: int, count: int, more: int, code: str | None
) -> None:
    need = QuotaNeed(TYPE, count, more)
    busy = {"other": used} if used else {}
    findings = list(prices.compare_quota(prices.Quota(NAME, value, CODE), busy, need, "us-east-1"))
    assert [finding.code for finding in findings] == ([code] if code else [])
    for finding in findings:
        assert finding.level == "error"
        assert finding.command is not None
        assert finding.command[-3] == str(max(count, used + more))


@pytest.mark.parametrize(("endpoints", "shown"), [(1, "a"), (3, "a, b, c"), (4, "a, b, c, ...")])
def test_at_most_three_endpoints_are_named(endpoints: int, shown: str) -> None:
    used = dict.fromkeys("abcd"[:endpoints], 1)
    quota = prices.Quota(NAME, endpoints, CODE)
    finding = only(tuple(prices.compare_quota(quota, used, ONE, "us-east-1")))
    assert f" {shown}, " in finding.message


def test_endpoints_that_end_do_not_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deploy(a_plan(instance_count=2))
    for status in ("Failed", "Deleting"):
        entry = {"EndpointName": "peagle-pair", "EndpointStatus": status}
        monkeypatch.setattr(world.aws, "items", lambda *_, entry=entry, **__: iter([entry]))
        assert prices.instances_in_use(world.aws, TYPE) == {}
    entry = {"EndpointName": "peagle-pair", "EndpointStatus": "Updating"}
    monkeypatch.setattr(world.aws, "items", lambda *_, **__: iter([entry]))
    assert prices.instances_in_use(world.aws, TYPE) == {"peagle-pair": 2}
    monkeypatch.setattr(prices, "MAX_ENDPOINTS", 0)
    assert prices.instances_in_use(world.aws, TYPE) == {}


def test_a_deploy_has_no_note_about_a_quota_that_suffices(world: World) -> None:
    world.cloud.quotas = {NAME: 4}
    assert quota_findings(world.aws, ONE, TABLE) == ()
    assert only(quota_findings(world.aws, ONE, TABLE, at_plan=True)).code == "quota-enough"


@pytest.mark.parametrize("usual", [7.5, None])
def test_an_unreadable_quota_has_the_usual_one(
    world: World, monkeypatch: pytest.MonkeyPatch, usual: float | None
) -> None:
    def fail(*_: object) -> None:
        raise CloudError("no answer")

    monkeypatch.setattr(prices, "endpoint_quota", fail)
    (row,) = TABLE.instances
    table = TABLE.model_copy(
        update={"instances": (row.model_copy(update={"quota_default": usual}),)}
    )
    finding = only(quota_findings(world.aws, ONE, table))
    assert ("7.5" in finding.message) is bool(usual)
    other = QuotaNeed("ml.g9.xlarge", 1, 1)
    assert "7.5" not in only(quota_findings(world.aws, other, table)).message


def test_a_quota_that_aws_still_computes_is_read_from_the_next_listing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: dict[str, list[dict[str, object]]] = {
        "list_service_quotas": [{"QuotaName": NAME}, {"QuotaName": "another", "Value": 9.0}],
        "list_aws_default_service_quotas": [{"QuotaName": NAME, "Value": 3.0, "QuotaCode": CODE}],
    }
    monkeypatch.setattr(
        world.aws, "items", lambda service, listing, *_, **__: iter(listings[listing])
    )
    assert prices.endpoint_quota(world.aws, TYPE) == prices.Quota(NAME, 3.0, CODE)
    assert prices.endpoint_quota(world.aws, "ml.g9.xlarge") is None
