"""Every rule is right: what real vLLM does with the pairs that ``peagle check`` refuses.

Rules and vLLM get the same folders. vLLM refuses some pairs with an error; others show their
problem as a request that ends the engine, or as drafts that are not accepted.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from peagle.checks import Case, Rule, check, list_rules
from peagle.engine.machine import Engine
from tests.engine import expected, trials
from tests.engine.damage import FEW_TOKENS, Outcome, Trial, outcomes_of
from tests.engine.verdicts import Verdict
from tests.unit.checks.corpus_heads import HEADS
from tests.unit.checks.corpus_rest import REST

# A time limit would fail on a busy machine; the driver itself kills a case that hangs.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(0)]
CORPUS = {broken.name: broken for broken in (*HEADS, *REST)}
SHOWN = {
    *(CORPUS[name].code for name in expected.CORPUS),
    *(code for code, _ in expected.BROKEN.values()),
}
NOT_SHOWN = expected.NOT_SHOWN | {
    broken.code for broken in CORPUS.values() if broken.not_shown and broken.code not in SHOWN
}
RULES = {rule.code: rule for rule in list_rules()}

# A rule without an expectation must behave as the rule states: its first case in the corpus.
NEW: dict[str, Verdict] = {
    next(name for name, broken in CORPUS.items() if broken.code == code): Verdict(rule.vllm_notices)
    for code, rule in RULES.items()
    if code not in SHOWN and code not in NOT_SHOWN
}


def _accepts_nothing(verdict: Verdict) -> bool:
    """Whether hardly any draft is expected to be accepted, which few tokens show: such pairs take
    a step for each token, and so most of the time."""
    return verdict.at_least == 1.0 or verdict.at_most <= 1.3


FROM_CORPUS = {**expected.CORPUS, **NEW}
VERDICTS = {
    **expected.GOOD,
    **{name: verdict for name, (_, verdict) in expected.BROKEN.items()},
    **FROM_CORPUS,
}
ALL_TRIALS: dict[str, Trial] = {
    **trials.GOOD,
    **trials.BROKEN,
    **{
        name: Trial(
            CORPUS[name].make,
            engine=expected.ENGINE.get(name, {}),
        )
        for name in FROM_CORPUS
    },
}
TRIALS = {
    name: replace(trial, tokens=FEW_TOKENS) if _accepts_nothing(VERDICTS[name]) else trial
    for name, trial in ALL_TRIALS.items()
}
CODES = {
    **{name: code for name, (code, _) in expected.BROKEN.items()},
    **{name: CORPUS[name].expected for name in FROM_CORPUS},
}


@dataclass(frozen=True)
class Tried:
    """All pairs: their cases for the rules, and their outcomes with vLLM."""

    cases: dict[str, Case]
    outcomes: dict[str, Outcome]


@pytest.fixture(scope="module")
def tried(engine: Engine) -> Iterator[Tried]:
    """Every pair in one process that has imported vLLM."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {}
        for number, (pair, trial) in enumerate(TRIALS.items()):
            (folder / str(number)).mkdir()
            cases[pair] = trial.make(folder / str(number))
        trials_and_cases = {pair: (TRIALS[pair], case) for pair, case in cases.items()}
        yield Tried(cases, outcomes_of(trials_and_cases, engine, folder))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*trials.BROKEN, *FROM_CORPUS])
def test_a_broken_pair_has_the_problem_that_its_rule_reports(name: str, tried: Tried) -> None:
    VERDICTS[name].hold(name, tried.outcomes)
    assert CODES[name] in {finding.code for finding in check(tried.cases[name])}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(trials.GOOD))
def test_vllm_drafts_with_a_good_pair_and_no_rule_refuses_its_head(name: str, tried: Tried) -> None:
    VERDICTS[name].hold(name, tried.outcomes)
    assert check(tried.cases[name], about="head") == ()


def test_rules_listed_as_not_shown_exist_and_have_no_case() -> None:
    assert set(RULES) >= NOT_SHOWN
    assert SHOWN.isdisjoint(NOT_SHOWN)


@pytest.mark.parametrize("rule", list_rules(), ids=lambda rule: rule.code)
def test_a_rule_states_correctly_whether_vllm_notices(rule: Rule) -> None:
    verdicts = [VERDICTS[name] for name, code in CODES.items() if code == rule.code]
    # The test of broken pairs compares the verdicts with vLLM.
    assert rule.code in NOT_SHOWN or any(
        verdict.noticed == rule.vllm_notices for verdict in verdicts
    )
