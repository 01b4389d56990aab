"""A sweep: what it measures, how it continues, what ends it, its estimates, and its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.evidence import read_result
from peagle.bench.measure import Measure
from peagle.bench.result import BenchLoad, BenchRow, BenchSetting, BenchWorkload
from peagle.bench.sweep import (
    Budget,
    ResultFile,
    Sweep,
    SweepProgress,
    SweepRequest,
    catalog_name,
)
from peagle.errors import EngineError, UserError
from tests.support import raises_code
from tests.unit.bench.made import ALONE, K3, K7, RESULT, SHORT, row

FRESH = replace(RESULT, rows=())
FROM_FILE = replace(SHORT, name="mine", prompts=("secret",), digest="ab12")
SWEEP = Sweep(
    (ALONE, K3),
    tuple(BenchLoad(one, load, 4 * load) for one in (SHORT, FROM_FILE) for load in (1, 8)),
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
def test_the_same_sweep_continues_where_it_ended(
    at: int, error: BaseException, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    first = Engines(stop_at(at, error))
    with pytest.raises(type(error)):
        run(first, path)
    assert first.ended == first.started
    second = Engines()
    rows = run(second, path)
    assert len(rows) == SWEEP.total
    assert first.measured + second.measured == [
        (setting.text, load.workload.name, load.concurrency)
        for setting in SWEEP.settings
        for load in SWEEP.loads
    ]
    third = Engines()
    assert run(third, path) == rows
    assert third.started == []
    assert second.ended == second.started


def test_a_row_that_ended_early_is_kept_and_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"

    @contextmanager
    def opened(setting: BenchSetting) -> Iterator[Measure]:
        yield lambda load, _: replace(
            row(setting, load.concurrency, 5.0), load=load, incomplete="the endpoint died"
        )

    with raises_code("load-failed", EngineError):
        SWEEP.run(ResultFile.continued(path, FRESH), opened)
    (kept,) = read_result(path)[0].rows
    assert kept.incomplete == "the endpoint died"
    engines = Engines()
    assert all(not one.incomplete for one in run(engines, path))
    assert len(engines.measured) == SWEEP.total


def test_a_larger_sweep_measures_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run(Engines(), path)
    longer = BenchWorkload(SHORT.name, replace(SHORT.size, output_tokens=64))
    others = (replace(FROM_FILE, prompts=("other",), digest="cd34"), longer)
    for load in (BenchLoad(other, 8, 32) for other in others):
        engines = Engines()
        run(engines, tmp_path / "others.json", Sweep((ALONE,), (load,)))
        assert engines.measured == [("no speculation", load.workload.name, 8)]
    engines = Engines()
    rows = run(engines, path, Sweep((ALONE, K3, K7), SWEEP.loads[:1]))
    assert engines.measured == [("p-eagle K=7", "short-prompt", 1)]
    assert [one.setting for one in rows] == [ALONE, K3, K7]
    assert len(read_result(path)[0].rows) == SWEEP.total + 1


@pytest.mark.thorough
def test_rows_of_something_else_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run(Engines(), path)
    server = FRESH.server
    changes: list[dict[str, Any]] = [{"pair": "a/b"}, {"vllm": "0.30.0"}, {"gpu": "H100"}]
    for changed in changes:
        other = replace(FRESH, server=replace(server, **changed))
        with raises_code("other-result", UserError):
            ResultFile.continued(path, other)
        assert ResultFile.continued(path, other, again=True).result.rows == ()
    path.write_text('{"rows": [')
    with raises_code("damaged-result"):
        ResultFile.continued(path, FRESH)


def test_progress_estimates_the_time_left(tmp_path: Path) -> None:
    seen: list[SweepProgress] = []
    run(Engines(), tmp_path / "r.json", seen=seen)
    texts = [one.text for one in seen]
    assert texts[0] == "row 1 of 8: no speculation, short-prompt x 1"
    # One row is measured: seven of 10 s and a start of 30 s are left.
    assert "row 2 of 8: no speculation, short-prompt x 8, about 1m 40s left" in texts
    # Half of the last row is done.
    assert texts[-1] == "row 8 of 8: p-eagle K=3, mine x 8, 50%, about 5s left"


def test_a_budget_ends_a_sweep_before_the_row_that_exceeds_it(tmp_path: Path) -> None:
    engines = Engines(row_seconds=100)
    path = tmp_path / "r.json"
    # 36 USD an hour is a cent a second; the first row is estimated with 60 s and 260 s.
    with raises_code("budget-too-small"):
        run(engines, path, budget=Budget(3.25, 36.0, clock=engines.clock))
    assert engines.ended == engines.started == ["no speculation"]
    assert engines.now == 230
    assert len(read_result(path)[0].rows) == len(engines.measured) == 2


def test_a_budget_counts_earlier_runs_and_the_start_at_the_end(tmp_path: Path) -> None:
    engines, path = Engines(row_seconds=100), tmp_path / "r.json"
    budget = Budget(6.0, 36.0, clock=engines.clock, before=2.0, end_seconds=60)
    with raises_code("budget-too-small"):
        run(engines, path, budget=budget)
    # 60 s of a start and 260 s of a row would be $3.20, after $2.00 and before $0.60.
    assert budget.spent > 2.0
    assert read_result(path)[0].spent_usd == round(budget.spent, 4)
    with raises_code("budget-too-small"):
        run(engines, path, budget=Budget(3.0, 36.0, clock=engines.clock, before=2.0))
    assert ResultFile.continued(path, read_result(path)[0]).result.spent_usd == round(
        budget.spent, 4
    )


def test_settings_of_a_sweep() -> None:
    assert SweepRequest("k=none,1, 3,3", ()).ks == (0, 1, 3)
    for text in ("", "k", "k=", "k=0", "k=-1", "k=65", "k=1.5", "j=1", "k=none,x", "k=²", "1,3"):
        with raises_code("invalid-sweep"):
            assert SweepRequest(text, ()).ks


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 SE"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_gpus_have_the_names_of_the_catalogue(gpu: str, name: str) -> None:
    known = ["H100", "H200", "L4", "L40S", "T4", "A100", "A10G", "RTX PRO 4500", "RTX PRO 6000 SE"]
    assert catalog_name(gpu, known) == name
