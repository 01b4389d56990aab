"""The verdict from given speeds: winners, ties, crossovers, regret and break-even lengths."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.errors import UserError
from peagle.speed.acceptance import Acceptance, Basis, Performance
from peagle.speed.estimate import break_even_length
from peagle.speed.ranking import NO_SPECULATION, Setting, rank_settings
from peagle.speed.verdict import SettingResult, WorkloadVerdict, decide_workload
from peagle.workload import Slo, Workload, parse_slo
from tests.support import examples, raises_code

SHORT = Workload(128, 400)
K3, K7 = Setting(drafter="p-eagle", k=3), Setting(drafter="p-eagle", k=7)
RIVAL = Setting(drafter="eagle3", k=3)
LOADS = (1, 8, 64)
Curve = Sequence[float | None]


def performance(
    speed: float | None,
    length: float = 1.0,
    basis: Basis = "measured",
    spread: float = 0.05,
    first: float | None = None,
) -> Performance:
    acceptance = Acceptance(length, "imposed", "a test")
    if speed is None:
        return Performance("unknown", acceptance, "nothing is known")
    low, high = speed * (1 - spread), speed * (1 + spread)
    return Performance(basis, acceptance, "a test", speed, low, high, ttft_seconds=first)


def verdict(
    curves: Mapping[Setting, Curve],
    estimated: Sequence[Setting] = (),
    loads: Sequence[int] = LOADS,
    spread: float = 0.05,
) -> WorkloadVerdict:
    def compared(setting: Setting, at: int) -> SettingResult:
        basis: Basis = "estimated" if setting in estimated else "measured"
        length = 1.0 if setting == NO_SPECULATION else 2.5
        return SettingResult(performance(curves[setting][at], length, basis, spread))

    by_load = {
        load: {setting: compared(setting, at) for setting in curves}
        for at, load in enumerate(loads)
    }
    prices = dict.fromkeys(by_load, 36.0)
    return decide_workload("short-prompt", SHORT, by_load, prices, "p-eagle")


def best(decision: WorkloadVerdict) -> list[Setting | None]:
    return [load.best for load in decision.loads]


@pytest.mark.parametrize(("curves", "estimated", "spread", "winners"), [
    ({NO_SPECULATION: (100, 500, 3000), K3: (180, 900, 2500), K7: (240, 800, 2000)}, (), 0.05,
     [K7, K3, NO_SPECULATION]),
    # A narrow measured interval tells them apart.
    ({NO_SPECULATION: (98, 98, 98), K3: (100, 100, 100)}, (), 0.01, [K3, K3, K3]),
    # A rival wins no tie against the default drafter.
    ({NO_SPECULATION: (50, 50, 50), RIVAL: (100, 100, 110), K3: (99, 100, 100)}, (), 0.05,
     [K3, K3, RIVAL]),
    # An estimate of another drafter must be clearly faster.
    ({NO_SPECULATION: (50, 50, 50), K3: (100, 100, 100), RIVAL: (109, 112, 90)}, [RIVAL], 0.05,
     [K3, RIVAL, K3]),
    # Of a measured drafter an estimate of another K must be faster by more than 3 %.
    ({NO_SPECULATION: (50, 50, 50), K3: (100, 100, 100), K7: (103, 104, 90)}, [K7], 0.05,
     [K3, K7, K3]),
    # And by more than half of what the repetitions of the measured one differ.
    ({NO_SPECULATION: (50, 50, 50), K3: (100, 100, 100), K7: (109, 111, 90)}, [K7], 0.2,
     [K3, K7, K3]),
])  # fmt: skip
def test_the_fastest_setting_wins_at_each_load(
    curves: Mapping[Setting, Curve],
    estimated: Sequence[Setting],
    spread: float,
    winners: list[Setting],
) -> None:
    assert best(verdict(curves, estimated, spread=spread)) == winners


MEASURED, ESTIMATED = "measured", "estimated"


@pytest.mark.parametrize(("speeds", "tied", "fastest"), [
    # Measured speeds tie up to 3 %, estimates up to 2 %, and a measured one with an estimate.
    ({K3: (100, MEASURED), K7: (97, MEASURED)}, [K3, K7], 100),
    ({K3: (100, MEASURED), K7: (96.9, MEASURED)}, [K3], 100),
    ({K3: (100, ESTIMATED), K7: (98, ESTIMATED)}, [K3, K7], 100),
    ({K3: (100, ESTIMATED), K7: (97.9, ESTIMATED)}, [K3], 100),
    ({NO_SPECULATION: (97, ESTIMATED), K3: (100, MEASURED)}, [NO_SPECULATION, K3], 100),
    # The estimate of another drafter wins from more than 10 % on, and never ties below.
    ({K3: (100, MEASURED), RIVAL: (110, ESTIMATED)}, [K3], 100),
    ({K3: (100, MEASURED), RIVAL: (110.2, ESTIMATED)}, [RIVAL], 110.2),
    # The simpler one is first: without drafts, the default drafter, the smaller K.
    ({K7: (100, MEASURED), K3: (100, MEASURED), RIVAL: (100, MEASURED)}, [K3, K7, RIVAL], 100),
    ({RIVAL: (100, MEASURED), NO_SPECULATION: (100, MEASURED)}, [NO_SPECULATION, RIVAL], 100),
    # An estimate of a measured drafter counts if it is faster by more than 3 %, also than a
    # measured rival; an unknown speed does not.
    ({K3: (100, MEASURED), K7: (103, ESTIMATED)}, [K3], 100),
    ({K3: (100, MEASURED), K7: (103.1, ESTIMATED)}, [K7], 103.1),
    ({K3: (100, MEASURED), K7: (149, ESTIMATED), RIVAL: (145, MEASURED)}, [RIVAL], 145),
    ({K3: (100, MEASURED), K7: (150, ESTIMATED), RIVAL: (145, MEASURED)}, [K7], 150),
    ({K3: (None, MEASURED), NO_SPECULATION: (1, ESTIMATED)}, [NO_SPECULATION], 1),
    ({K3: (None, MEASURED)}, [], 0),
    ({}, [], 0),
])  # fmt: skip
def test_what_ties_with_the_fastest(
    speeds: Mapping[Setting, tuple[float | None, Basis]], tied: list[Setting], fastest: float
) -> None:
    ranking = rank_settings(
        {setting: performance(speed, basis=basis) for setting, (speed, basis) in speeds.items()},
        "p-eagle",
    )
    assert (list(ranking.tied), ranking.fastest) == (tied, fastest)


def test_an_estimate_above_the_winner_does_not_count() -> None:
    speeds = {K3: performance(100), RIVAL: performance(105, basis="estimated")}
    assert rank_settings(speeds).counted == {K3}
    slower = speeds | {RIVAL: performance(100, basis="estimated")}
    assert rank_settings(slower).counted == {K3, RIVAL}


@pytest.mark.parametrize(("drafter", "k"), [(None, 1), ("p-eagle", 0)])
def test_a_drafter_and_a_k_come_together(drafter: str | None, k: int) -> None:
    with pytest.raises(ValueError, match="needs a K"):
        Setting(drafter, k)


def test_within_three_percent_the_simpler_setting_wins() -> None:
    decision = verdict({NO_SPECULATION: (98, 96, 100), K3: (100, 100, 99), K7: (50, 99, 100)})
    assert best(decision) == [NO_SPECULATION, K3, NO_SPECULATION]
    assert [load.ties for load in decision.loads] == [(K3,), (K7,), (K3, K7)]


def test_nothing_wins_where_no_speed_is_known() -> None:
    decision = verdict({NO_SPECULATION: (None, 100, None), K3: (None, None, None)})
    assert best(decision) == [None, NO_SPECULATION, None]
    assert decision.crossovers == ()
    assert decision.robust == NO_SPECULATION


def test_the_crossover_is_interpolated() -> None:
    decision = verdict({NO_SPECULATION: (100, 1000, 4000), K3: (200, 1500, 3000)})
    (crossover,) = decision.crossovers
    assert crossover.direction == "stops"
    # The ratio falls from 1.5 with 8 requests to 0.75 with 64: it is 1 after two thirds.
    assert crossover.requests == pytest.approx(8 * 8 ** (2 / 3), abs=0.1)
    assert crossover.basis == "measured"


def test_speculation_can_start_to_pay_with_more_requests() -> None:
    decision = verdict({NO_SPECULATION: (100, 100, 100), RIVAL: (90, 120, 130)}, estimated=[RIVAL])
    (crossover,) = decision.crossovers
    assert (crossover.direction, crossover.basis) == ("starts", "estimated")


def test_the_steady_setting_loses_least_where_it_loses_most() -> None:
    decision = verdict(
        {NO_SPECULATION: (100, 500, 3000), K3: (180, 900, 2700), K7: (240, 800, 2000)}
    )
    assert decision.robust == K3
    assert decision.robust_regret_percent == 25.0
    speeds = decision.loads[0].speed(K3)
    assert speeds is not None
    assert speeds.regret_percent == 25.0


def test_a_crossover_may_have_ties_on_its_way() -> None:
    curves = {NO_SPECULATION: (100, 100, 100, 100), K3: (150, 101, 99, 80)}
    (crossover,) = verdict(curves, loads=(1, 8, 64, 128)).crossovers
    assert crossover.direction == "stops"
    assert 8 < crossover.requests < 64


def test_an_unmeasured_k_that_is_about_as_fast_is_not_recommended() -> None:
    curves = {NO_SPECULATION: (50, 50, 80), K3: (100, 100, 90), K7: (102, 103, 92)}
    decision = verdict(curves, estimated=[K7])
    assert decision.robust == K3
    shown = decision.loads[0].speed(K7)
    assert shown is not None, "a measurement may show that it is the best"
    assert shown.regret_percent is None


def test_settings_that_never_matter_are_left_out() -> None:
    many = {Setting(drafter="p-eagle", k=k): (50.0 + k, 50, 50) for k in range(1, 11)}
    decision = verdict({NO_SPECULATION: (100, 100, 100), **many})
    shown = {speed.setting for speed in decision.loads[0].speeds}
    assert shown == {NO_SPECULATION, Setting(drafter="p-eagle", k=1)}


def test_at_its_break_even_length_speculation_is_as_fast_as_the_target_alone() -> None:
    """Four requests of 401 tokens; the first token takes 0.2 s, each step of drafting 10 ms."""

    def drafting(length: float) -> Performance:
        seconds = 0.2 + 400 * 0.010 / length
        return performance(4 * 401 / seconds, length, first=0.2)

    alone = performance(4 * 401 / (0.1 + 400 * 0.005), first=0.1)
    length = break_even_length(drafting(3.0), alone, Workload(128, 401), 4)
    assert length is not None
    assert drafting(length).tokens_per_second == pytest.approx(alone.tokens_per_second)


def test_break_even_is_unknown_where_a_speed_is_and_where_drafts_cannot_help() -> None:
    assert break_even_length(performance(None), performance(10), SHORT, 1) is None
    assert break_even_length(performance(10), performance(None), SHORT, 1) is None
    slow_prefill = performance(10, 3.0, first=39.0)
    assert break_even_length(slow_prefill, performance(400), SHORT, 1) is None
    decision = verdict({NO_SPECULATION: (100, 100, 100), K3: (200, 20, 100)}, loads=(1, 2, 4))
    speeds = [speed for load in decision.loads if (speed := load.speed(K3))]
    lengths = [speed.break_even_acceptance_length for speed in speeds]
    assert lengths == [1.25, None, 2.5], "at most K + 1 tokens come from a step"


SETTINGS = (NO_SPECULATION, K3, K7, RIVAL)
SPEED = st.none() | st.floats(1, 1e6)
CURVES = st.fixed_dictionaries({each: st.tuples(SPEED, SPEED, SPEED) for each in SETTINGS})


@pytest.mark.thorough
@settings(max_examples=examples(200), deadline=None)
@given(CURVES, st.sets(st.sampled_from(SETTINGS)), st.floats(0, 0.6))
def test_any_speeds(curves: dict[Setting, Curve], estimated: set[Setting], spread: float) -> None:
    """Whatever the speeds: the winner is within 3 % of the fastest measured setting, no estimate is
    clearly faster, and the crossovers are between the loads."""
    decision = verdict(curves, tuple(estimated), spread=spread)
    for index, load in enumerate(decision.loads):
        speeds = {setting: curve[index] or 0 for setting, curve in curves.items() if curve[index]}
        assert (load.best is None) == (not speeds)
        for speed in load.speeds:
            assert speed.regret_percent is None or 0 <= speed.regret_percent <= 100
        if load.best is None:
            continue
        chosen = load.speed(load.best)
        assert chosen is not None
        assert chosen.regret_percent is not None
        assert chosen.regret_percent <= 3
        measured = [speed for setting, speed in speeds.items() if setting not in estimated]
        assert speeds[load.best] >= 0.97 * max(measured, default=0)
        tried = {setting.drafter for setting in speeds if setting not in estimated}
        rivals = [speed for setting, speed in speeds.items() if setting.drafter not in tried]
        clearly = max(1.1, 1 + spread / 2)
        assert speeds[load.best] >= 0.97 * max(rivals, default=0) / clearly
        assert NO_SPECULATION not in load.ties, "the simpler setting wins a tie"
    assert len(decision.crossovers) <= len(LOADS) - 1
    for crossover in decision.crossovers:
        assert LOADS[0] <= crossover.requests <= LOADS[-1]
    assert WorkloadVerdict.model_validate_json(decision.model_dump_json()) == decision


# The objective ``ttft=0.5,itl=0.02``: what it means, and what it does not accept.
@pytest.mark.parametrize(("text", "slo"), [
    ("ttft=0.5,itl=0.02", Slo(0.5, 0.02)),
    ("itl=0.02", Slo(None, 0.02)),
    (" ttft = 1 ", Slo(1.0, None)),
    ("ttft=0.000001", Slo(0.000001, None)),
])  # fmt: skip
def test_times_are_seconds(text: str, slo: Slo) -> None:
    assert parse_slo(text) == slo
    assert parse_slo(slo.text) == slo


@pytest.mark.parametrize("text", [
    "", "0.5", "tpot=0.1", "ttft=500", "itl=20", "ttft=1,ttft=2", "ttft=0.5,itl", "ttft=",
    "ttft=0", "ttft=-1", "ttft=nan", "ttft=inf", "itl=20ms",
])  # fmt: skip
def test_another_text_is_one_error(text: str) -> None:
    with raises_code("invalid-slo", UserError):
        parse_slo(text)


def test_the_excess_is_that_of_the_worse_time() -> None:
    slo = Slo(ttft=0.5, itl=0.02)
    assert slo.excess(0.25, 0.01) == 0.5
    assert slo.excess(0.25, 0.04) == 2
    assert slo.excess(None, 0.01) is None
    assert Slo(ttft=0.5).excess(0.25, None) == 0.5
    assert Slo().excess(None, None) == 0


def test_where_the_cache_does_not_hold_the_load_a_drafter_pays_no_more() -> None:
    by_load = {
        load: {
            NO_SPECULATION: SettingResult(performance(100, basis="estimated")),
            K3: SettingResult(performance(150, 2.5, "estimated"), holds_load),
        }
        for load, holds_load in ((1, True), (8, False))
    }
    prices = dict.fromkeys(by_load, 36.0)
    decision = decide_workload("short-prompt", SHORT, by_load, prices, "p-eagle")
    assert best(decision) == [K3, NO_SPECULATION]
    assert decision.crossovers == ()
