"""A sweep on a deployment: one update per setting, the limit of its cost, and the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peagle.aws.client import Aws
from peagle.bench import measure, sweep
from peagle.bench.result import BenchLoad, BenchRow, BenchSetting
from peagle.bench.sweep import EndpointSweep, SweepRequest, plan_with
from peagle.catalog import load_catalog
from peagle.deploy.state import Deployment
from peagle.errors import EngineError, UserError
from peagle.planning import Options, Plan, make_plan
from peagle_serve.contract import SPECULATION
from tests.support import raises_code
from tests.unit.bench.made import ALONE, RESULT, row

CATALOG = load_catalog()
PLAN = make_plan(Options(pair="tiny", name="chat"), CATALOG)
REQUEST = SweepRequest("k=none,3", (1,), output_tokens=32)


def record_of(plan: Plan | None) -> Deployment:
    """A deployment with this plan, as far as a sweep looks at it."""
    made = SimpleNamespace(
        name="chat", scope="123456789012", region="us-east-1", current=SimpleNamespace(plan=plan)
    )
    return cast(Deployment, made)


@dataclass
class Endpoint:
    """Counts what is deployed; ``fail`` is called before each row."""

    fail: Callable[[int], object] = lambda number: None
    plans: list[Plan] = field(default_factory=list)
    rows: int = 0

    def deploy(self, _: object, found: SimpleNamespace, __: object) -> None:
        self.plans.append(found.plan)

    def measure(self, target: Any, load: BenchLoad, *_: object) -> BenchRow:
        self.rows += 1
        self.fail(self.rows)
        return replace(row(target.setting, load.concurrency, 50.0, load.workload), load=load)


@pytest.fixture
def endpoint(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    made = Endpoint()

    @dataclass(frozen=True)
    class Target:
        server: object = None
        facts: object = RESULT.server
        setting: BenchSetting = ALONE
        usd_per_hour: float | None = 1.125
        price_source: str | None = "AWS"

    sender = SimpleNamespace(version="1")
    monkeypatch.setattr("peagle.bench.aiperf.find_sender", lambda: sender)
    monkeypatch.setattr(sweep, "target_of_endpoint", lambda *_: Target())
    monkeypatch.setattr(sweep, "find_record", lambda *_: record_of(PLAN))
    monkeypatch.setattr(measure, "probe", lambda server: None)
    monkeypatch.setattr(measure, "measure_load", made.measure)
    monkeypatch.setattr(sweep, "deploy", made.deploy)
    monkeypatch.setattr(
        sweep, "preflight", lambda aws, plan, _: SimpleNamespace(plan=plan, findings=())
    )
    return made


def prepared(path: Path, record: Deployment | None = None) -> EndpointSweep:
    aws = cast(Aws, SimpleNamespace(scope="123456789012", region="us-east-1"))
    return EndpointSweep(
        REQUEST, path, aws, record or record_of(PLAN), CATALOG, lambda progress: None
    )


def ks(plans: list[Plan]) -> list[int]:
    return [plan.speculation.k if plan.speculation else 0 for plan in plans]


def test_each_setting_is_an_update_and_the_endpoint_ends_as_it_was(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    one = prepared(tmp_path / "r.json")

    result = one.run(None, lambda progress: None)

    assert [r.setting.k for r in result.rows] == [0, 3]
    assert ks(endpoint.plans) == [0, 3, 7]
    assert endpoint.plans[-1] == PLAN
    assert one.plan_to_return_to is None
    # Three updates of 10 minutes with twice the instances, two rows of 13 answers at 20 tokens/s.
    assert one.usd == pytest.approx((3 * 2 * 600 + 2 * 13 * 32 / 20) / 3600 * 1.125, rel=0.05)


def test_an_interrupted_sweep_continues_and_then_returns_to_the_first_plan(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise EngineError("died")

    endpoint.fail = fail
    first = prepared(tmp_path / "r.json")
    with pytest.raises(EngineError):
        first.run(None, lambda progress: None)
    kept = first.plan_to_return_to
    assert kept
    assert ks(endpoint.plans) == [0, 3]
    endpoint.fail = lambda number: None
    # The endpoint now has the plan of a setting.
    again = prepared(tmp_path / "r.json", record_of(endpoint.plans[-1]))
    assert again.plan_to_return_to == kept

    again.run(None, lambda progress: None)

    assert ks(endpoint.plans) == [0, 3, 3, 7]
    assert not kept.exists()


def test_the_limit_counts_what_earlier_runs_have_spent(endpoint: Endpoint, tmp_path: Path) -> None:
    first = prepared(tmp_path / "r.json")
    assert first.usd is not None
    assert first.default_limit == pytest.approx(1.5 * first.usd)
    first.file.add(None, 7.0)
    again = prepared(tmp_path / "r.json")
    assert again.default_limit == pytest.approx(7.0 + 1.5 * first.usd)
    with raises_code("budget-too-small"):
        again.run(7.5, lambda progress: None)
    assert endpoint.plans == []
    result = again.run(None, lambda progress: None)
    assert result.spent_usd is not None
    assert result.spent_usd >= 7.0


def test_what_is_refused_changes_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    one = prepared(tmp_path / "r.json")
    sandbox = cast(Aws, SimpleNamespace(scope="sandbox", region="us-east-1"))
    with raises_code("budget-too-small"):
        one.run(0.01, lambda progress: None)
    one.usd_per_hour = None
    with raises_code("price-unknown", UserError):
        one.run(5.0, lambda progress: None)
    imposing = replace(REQUEST, acceptance=tmp_path / "acceptance.json")
    with raises_code("imposes-on-gpu-only", UserError):
        EndpointSweep(
            imposing, tmp_path / "r.json", sandbox, record_of(PLAN), CATALOG, lambda progress: None
        )
    assert endpoint.plans == []


def test_a_plan_with_another_k_differs_in_its_speculation_only() -> None:
    changed = plan_with(PLAN, BenchSetting("p-eagle", 2))
    assert json.loads(changed.environment[SPECULATION])["num_speculative_tokens"] == 2
    at = changed.engine_arguments.index("--speculative-config") + 1
    assert changed.engine_arguments[at] == changed.environment[SPECULATION]
    assert changed.speculation
    assert changed.speculation.acceptance_floor is None
    same = {"speculation": PLAN.speculation, "environment": PLAN.environment,
            "engine_arguments": PLAN.engine_arguments}  # fmt: skip
    assert changed.model_copy(update=same) == PLAN


def test_a_plan_without_speculation_has_none_anywhere() -> None:
    alone = plan_with(PLAN, ALONE)
    assert (alone.speculation, alone.drafter, alone.pair) == (None, None, "peagle/tiny")
    assert SPECULATION not in alone.environment
    assert "--speculative-config" not in alone.engine_arguments


@pytest.mark.parametrize("plan", [None, plan_with(PLAN, ALONE)])
def test_a_deployment_without_a_plan_or_a_drafter_is_refused(
    plan: Plan | None, endpoint: Endpoint, tmp_path: Path
) -> None:
    with raises_code("no-plan", UserError):
        prepared(tmp_path / "r.json", record_of(plan))
