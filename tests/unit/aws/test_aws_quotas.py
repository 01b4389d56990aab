"""Quotas: zero, too small, unreadable."""

import shlex
from datetime import date

import pytest

from peagle.aws import prices
from peagle.aws.prices import quota_findings
from peagle.catalog.tables import Instance, InstanceTable
from peagle.errors import CloudError
from peagle.findings import Finding
from peagle.store import SANDBOX
from tests.unit.aws.network import denied
from tests.unit.aws.world import World

TYPE = "ml.g5.xlarge"
NAME = f"{TYPE} for endpoint usage"
CODE = "L-1928E07B"


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


@pytest.mark.parametrize(("value", "count", "code", "sandbox", "command"), [
    (0, 2, "quota-zero", False,
     "aws service-quotas request-service-quota-increase --service-code sagemaker "
     f"--quota-code {CODE} --desired-value 2 --region us-east-1"),
    (0, 1, "quota-zero", True, f"peagle sandbox quota set {TYPE} 1 --region us-east-1"),
    (2, 3, "quota-too-small", False,
     "aws service-quotas request-service-quota-increase --service-code sagemaker "
     f"--quota-code {CODE} --desired-value 3 --region us-east-1"),
    (2, 3, "quota-too-small", True, f"peagle sandbox quota set {TYPE} 3 --region us-east-1"),
])  # fmt: skip
def test_the_command_raises_the_quota_of_the_account_or_of_the_sandbox(
    world: World, value: int, count: int, code: str, sandbox: bool, command: str
) -> None:
    world.cloud.quotas, world.cloud.quota_codes = {NAME: value}, {NAME: CODE}
    world.aws.record_scope = SANDBOX if sandbox else None
    finding = only(quota_findings(world.aws, TYPE, count, TABLE))
    assert (finding.code, finding.level) == (code, "error")
    assert shlex.join(finding.command or ()) == command


@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException"])
def test_an_unreadable_quota_is_a_warning(world: World, code: str) -> None:
    world.cloud.before = denied("get_service_quota", "list_service_quotas", code=code)
    finding = only(quota_findings(world.aws, TYPE, 1, TABLE))
    assert (finding.code, finding.level) == ("quota-unknown", "warning")


def test_only_a_plan_has_a_note_about_a_quota_that_suffices(world: World) -> None:
    world.cloud.quotas = {NAME: 1}
    assert quota_findings(world.aws, TYPE, 1, TABLE) == ()
    enough = only(quota_findings(world.aws, TYPE, 1, TABLE, at_plan=True))
    assert (enough.code, enough.level) == ("quota-enough", "note")


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
    finding = only(quota_findings(world.aws, TYPE, 1, table))
    assert ("7.5" in finding.message) is bool(usual)
    assert "7.5" not in only(quota_findings(world.aws, "ml.g9.xlarge", 1, table)).message


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
    quota = prices.endpoint_quota(world.aws, TYPE)
    assert quota is not None
    assert quota["Value"] == 3.0
    assert prices.endpoint_quota(world.aws, "ml.g9.xlarge") is None
