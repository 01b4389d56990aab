"""A sweep: what it measures, how it continues, what ends it, its estimates, its budget; and on a
deployment: one update per setting, the limit of its cost, and the way back."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peagle.bench import load, sweep
from peagle.bench.evidence import read_result
from peagle.bench.load import Measure
from peagle.bench.result import BenchLoad, BenchRow, BenchSetting, BenchWorkload
from peagle.bench.sweep import (
    Budget,
    EndpointSweep,
    Imposed,
    ResultFile,
    Sweep,
    SweepProgress,
    SweepRequest,
    make_sweep,
    parse_imposed,
    parse_ks,
    plan_with,
)
from peagle.bench.workloads import make_loads
from peagle.catalog import load_catalog
from peagle.cli.view.bench import progress_text
from peagle.errors import EngineError, UserError
from peagle.planning import Options, Plan, make_plan
from peagle_serve.contract import SPECULATION
from tests.support import raises_code
from tests.unit.bench.made import ALONE, K3, K7, RESULT, SHORT, row

FRESH = replace(RESULT, rows=())
FROM_FILE = replace(SHORT, name="mine", prompts=("secret",), digest="ab12")
SWEEP = Sweep(
    (ALONE, K3),
    tuple(
        BenchLoad(workload, load, 4 * load) for workload in (SHORT, FROM_FILE) for load in (1, 8)
    ),
)


@dataclass
class Engines:
    """Serves each setting; a start takes 30 s. ``fail`` is called before each row."""

    fail: Callable[[int], object] = lambda number: None
    row_seconds: float = 10.0
    now: float = 0.0
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    measured: list[tuple[str, str, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    @contextmanager
    def opened(self, setting: BenchSetting) -> Iterator[Measure]:
        self.now += 30
        self.started.append(setting.text)

        def measure(load: BenchLoad, progress: Callable[[int, int], object]) -> BenchRow:
            progress(1, 2)
            self.fail(len(self.measured) + 1)
            self.now += self.row_seconds
            self.measured.append((setting.text, load.workload.name, load.concurrency))
            made = row(setting, load.concurrency, 100.0 * load.concurrency, load.workload)
            return replace(made, load=replace(load, workload=replace(load.workload, prompts=())))

        try:
            yield measure
        finally:
            self.ended.append(setting.text)


def run(
    engines: Engines,
    path: Path,
    sweep: Sweep = SWEEP,
    seen: list[SweepProgress] | None = None,
    budget: Budget | None = None,
) -> tuple[BenchRow, ...]:
    file = ResultFile.continued(path, FRESH)
    seen = [] if seen is None else seen
    return sweep.run(
        file, engines.opened, seen.append, budget, start_seconds=60, clock=engines.clock
    ).rows


def stop_at(number: int, error: BaseException) -> Callable[[int], object]:
    def fail(now: int) -> None:
        if now == number:
            raise error

    return fail


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineError("the engine died")])
@pytest.mark.parametrize("at", [1, 3, 5, 8])
def test_same_sweep_continues_where_it_ended(at: int, error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    first, second, third = Engines(stop_at(at, error)), Engines(), Engines()
    with pytest.raises(type(error)):
        run(first, path)
    rows = run(second, path)
    assert first.measured + second.measured == [
        (setting.text, load.workload.name, load.concurrency)
        for setting in SWEEP.settings
        for load in SWEEP.loads
    ]
    assert (run(third, path), third.started) == (rows, [])
    assert (first.ended, second.ended) == (first.started, second.started)


def test_a_row_that_ended_early_is_kept_and_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"

    @contextmanager
    def opened(setting: BenchSetting) -> Iterator[Measure]:
        yield lambda load, _: replace(
            row(setting, load.concurrency, 5.0), load=load, incomplete="the endpoint died"
        )

    with raises_code("load-failed", EngineError):
        SWEEP.run(ResultFile.continued(path, FRESH), opened)
    (kept,) = read_result(path).rows
    assert kept.incomplete == "the endpoint died"
    engines = Engines()
    assert all(not row.incomplete for row in run(engines, path))
    assert len(engines.measured) == SWEEP.total


def test_a_larger_sweep_measures_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run(Engines(), path)
    longer = BenchWorkload(SHORT.name, replace(SHORT.size, output_tokens=64))
    for other in (replace(FROM_FILE, prompts=("other",), digest="cd34"), longer):
        engines = Engines()
        run(engines, tmp_path / "others.json", Sweep((ALONE,), (BenchLoad(other, 8, 32),)))
        assert engines.measured == [("no speculation", other.name, 8)]
    engines = Engines()
    rows = run(engines, path, Sweep((ALONE, K3, K7), SWEEP.loads[:1]))
    assert engines.measured == [("p-eagle K=7", "short-prompt", 1)]
    assert [each.setting for each in rows] == [ALONE, K3, K7]
    assert len(read_result(path).rows) == SWEEP.total + 1


@pytest.mark.thorough
def test_rows_of_something_else_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run(Engines(), path)
    changes: list[dict[str, Any]] = [{"pair": "a/b"}, {"vllm": "0.30.0"}, {"gpu": "H100"}]
    for changed in changes:
        other = replace(FRESH, server=replace(FRESH.server, **changed))
        with raises_code("other-result", UserError):
            ResultFile.continued(path, other)
        assert ResultFile.continued(path, other, again=True).result.rows == ()
    path.write_text('{"rows": [')
    with raises_code("damaged-result"):
        ResultFile.continued(path, FRESH)


def test_progress_estimates_the_time_left(tmp_path: Path) -> None:
    seen: list[SweepProgress] = []
    run(Engines(), tmp_path / "r.json", seen=seen)
    texts = [*map(progress_text, seen)]
    assert texts[0] == "row 1 of 8: no speculation, short-prompt x 1"
    # One row is measured: seven of 10 s and a start of 30 s are left.
    assert "row 2 of 8: no speculation, short-prompt x 8, about 1m 40s left" in texts
    # Half of the last row is done.
    assert texts[-1] == "row 8 of 8: p-eagle K=3, mine x 8, 50%, about 5s left"


def test_a_budget_ends_a_sweep_before_the_row_that_exceeds_it(tmp_path: Path) -> None:
    # 36 USD an hour is a cent a second; the first row is estimated with 60 s, twice, and
    # 260 s.
    engines, path = Engines(row_seconds=100), tmp_path / "r.json"
    with raises_code("budget-too-small") as refused:
        run(engines, path, budget=Budget(0.01, 36.0))
    assert (engines.started, "about $3.80" in refused.value.message) == ([], True)
    with raises_code("budget-too-small"):
        run(engines, path, budget=Budget(3.85, 36.0))
    assert engines.ended == engines.started == ["no speculation"]
    assert engines.now == 330
    assert len(read_result(path).rows) == len(engines.measured) == 3


def test_a_budget_counts_earlier_runs_and_the_start_at_the_end(tmp_path: Path) -> None:
    engines, path = Engines(row_seconds=100), tmp_path / "r.json"
    budget = Budget(6.5, 36.0, 2.0, end_seconds=30)
    with raises_code("budget-too-small"):
        run(engines, path, budget=budget)
    # 60 s of a start and 260 s of a row would be $3.80, after $2.00 and before $0.60.
    assert budget.spent > 2.0
    kept = read_result(path)
    assert kept.spent_usd == round(budget.spent, 4)
    with raises_code("budget-too-small"):
        run(engines, path, budget=Budget(3.0, 36.0, 2.0))
    assert ResultFile.continued(path, kept).result.spent_usd == kept.spent_usd


def test_settings_of_a_sweep() -> None:
    assert parse_ks("k=none,1, 3,3") == (0, 1, 3)
    for text in ("", "k", "k=", "k=0", "k=-1", "k=65", "k=1.5", "j=1", "k=none,x", "k=²", "1,3"):
        with raises_code("invalid-sweep"):
            parse_ks(text)


CATALOG = load_catalog()
PLAN = make_plan(Options(pair="tiny", name="chat"), CATALOG)


@pytest.mark.parametrize(("text", "imposed"), [
    ("published", "published"), ("2.5", 2.5), ("3", 3.0), ("a.json", Path("a.json")),
])  # fmt: skip
def test_an_imposed_acceptance_is_a_file_a_length_or_published(text: str, imposed: Imposed) -> None:
    assert parse_imposed(text) == imposed


REQUEST = SweepRequest((0, 3), make_loads("short-prompt", (1,), output_tokens=32))


def record_of(plan: Plan | None) -> Any:
    """A deployment with this plan, as far as a sweep looks at it."""
    return SimpleNamespace(
        name="chat", scope="123456789012", region="us-east-1", current=SimpleNamespace(plan=plan)
    )


@dataclass
class Endpoint:
    """Counts what is deployed; ``fail`` is called before each row."""

    fail: Callable[[int], object] = lambda number: None
    plans: list[Plan] = field(default_factory=list)
    rows: int = 0

    def deploy(self, plan: Plan) -> Any:
        self.plans.append(plan)
        return record_of(plan)

    def measure(self, target: Any, load: BenchLoad, *_: object) -> BenchRow:
        self.rows += 1
        self.fail(self.rows)
        return replace(row(target.setting, load.concurrency, 50.0, load.workload), load=load)

    @property
    def ks(self) -> list[int]:
        return [plan.speculation.k if plan.speculation else 0 for plan in self.plans]


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
    monkeypatch.setattr("peagle.bench.load.find_sender", lambda: sender)
    monkeypatch.setattr(sweep, "open_endpoint", lambda *_: Target())
    monkeypatch.setattr(load, "probe", lambda server: None)
    monkeypatch.setattr(load, "measure_load", made.measure)
    return made


def prepared(
    endpoint: Endpoint,
    folder: Path,
    plan: Plan | None = PLAN,
    scope: str = "123456789012",
    **changes: Any,
) -> EndpointSweep:
    aws = cast(Any, SimpleNamespace(scope=scope, region="us-east-1"))
    request = replace(REQUEST, **changes)
    return EndpointSweep(request, folder / "r.json", aws, record_of(plan), CATALOG, endpoint.deploy)


def silent(progress: SweepProgress) -> None:
    """Show nothing."""


def test_each_setting_is_an_update_and_the_endpoint_ends_as_it_was(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    swept = prepared(endpoint, tmp_path)
    result = swept.run(None, silent)
    assert [each.setting.k for each in result.rows] == [0, 3]
    assert (endpoint.ks, endpoint.plans[-1]) == ([0, 3, 7], PLAN)
    assert swept.plan_to_return_to is None
    # Three updates of 10 minutes with twice the instances, two rows of 13 answers at 20 tokens/s.
    assert swept.usd == pytest.approx((3 * 2 * 600 + 2 * 13 * 32 / 20) / 3600 * 1.125, rel=0.05)


def test_an_interrupted_sweep_continues_and_then_returns_to_the_first_plan(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.fail = stop_at(2, EngineError("died"))
    first = prepared(endpoint, tmp_path)
    with pytest.raises(EngineError):
        first.run(None, silent)
    kept = first.plan_to_return_to
    assert (kept is None, endpoint.ks) == (False, [0, 3])
    # The endpoint now has the plan of a setting.
    again = prepared(endpoint, tmp_path, endpoint.plans[-1])
    assert again.plan_to_return_to == kept
    again.run(None, silent)
    assert endpoint.ks == [0, 3, 3, 7]
    assert again.plan_to_return_to is None


def test_the_limit_counts_what_earlier_runs_have_spent(endpoint: Endpoint, tmp_path: Path) -> None:
    first = prepared(endpoint, tmp_path)
    assert first.usd is not None
    assert first.default_limit == pytest.approx(1.5 * first.usd)
    first.file.add(None, 7.0)
    again = prepared(endpoint, tmp_path)
    assert again.default_limit == pytest.approx(7.0 + 1.5 * first.usd)
    with raises_code("budget-too-small"):
        again.run(7.5, silent)
    assert endpoint.plans == []
    assert (again.run(None, silent).spent_usd or 0) >= 7.0


def test_what_is_refused_changes_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    assert prepared(endpoint, tmp_path, scope="sandbox").default_limit is None
    swept = prepared(endpoint, tmp_path)
    with raises_code("budget-too-small"):
        swept.run(0.01, silent)
    swept.usd_per_hour = None
    with raises_code("price-unknown", UserError):
        swept.run(5.0, silent)
    with raises_code("imposes-on-gpu-only", UserError):
        prepared(endpoint, tmp_path, scope="sandbox", acceptance=tmp_path / "acceptance.json")
    for plan in (None, plan_with(PLAN, ALONE)):  # of another machine, and without a drafter
        with raises_code("no-plan", UserError):
            prepared(endpoint, tmp_path, plan)
    assert endpoint.plans == []


def test_a_plan_with_another_k_differs_in_its_speculation_only() -> None:
    changed, alone = plan_with(PLAN, BenchSetting("p-eagle", 2)), plan_with(PLAN, ALONE)
    assert json.loads(changed.environment[SPECULATION])["num_speculative_tokens"] == 2
    at = changed.engine_arguments.index("--speculative-config") + 1
    assert changed.engine_arguments[at] == changed.environment[SPECULATION]
    assert changed.speculation
    assert changed.speculation.acceptance_floor is None
    names = ("speculation", "environment", "engine_arguments")
    assert changed.model_copy(update={name: getattr(PLAN, name) for name in names}) == PLAN
    assert (alone.speculation, alone.drafter, alone.pair) == (None, None, "peagle/tiny")
    assert SPECULATION not in alone.environment
    assert "--speculative-config" not in alone.engine_arguments


def test_a_length_is_imposed_as_rates_by_position() -> None:
    def sweep_with(length: str) -> Sweep:
        request = SweepRequest((0, 4), make_loads("short-prompt", (1,)), parse_imposed(length))
        return make_sweep(request, lambda setting: plan_with(PLAN, setting), CATALOG)[0]

    alone, drafting = sweep_with("2.5").settings
    assert (alone.imposed_rates, len(drafting.imposed_rates)) == ((), 4)
    assert 1 + sum(drafting.imposed_rates) == pytest.approx(2.5, abs=1e-3)
    for length in ("1", "5", "nan"):  # none accepted, more than K + 1
        with raises_code("acceptance-file", UserError):
            sweep_with(length)
