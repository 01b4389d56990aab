"""No rule is an invention: what real vLLM does with the pairs that ``peagle check`` refuses.

The same folders are given to both. What vLLM refuses, it refuses with its own words; what it does
not notice shows as a request that ends the engine, or as drafts that nobody accepts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from peagle.checks import Case, Rule, check, rules_found
from peagle.engine.installed import Engine
from tests.engine import expected, trials
from tests.engine.damage import Outcome, Trial, outcomes_of
from tests.engine.verdicts import (
    As,
    Dies,
    Drafts,
    Garbles,
    Refuses,
    Unnoticed,
    Verdict,
    WastesBeyond,
)
from tests.unit.checks.corpus_heads import HEADS
from tests.unit.checks.corpus_rest import REST

# No time limit that a busy machine could break: the driver itself gives up a case that hangs.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(0)]

CORPUS = {broken.name: broken for broken in (*HEADS, *REST)}

NOT_SHOWN = {
    **expected.NOT_SHOWN,
    **{broken.code: broken.not_shown for broken in CORPUS.values() if broken.not_shown},
}

RULES = {rule.code: rule for rule in rules_found()}

SHOWN = {
    *(CORPUS[name].code for name in expected.CORPUS),
    *(code for code, _ in expected.BROKEN.values()),
}

# A rule of which nothing is expected in words is taken at its own: its first line in the corpus.
NEW: dict[str, Verdict] = {
    next(broken.name for broken in CORPUS.values() if broken.code == code): As(rule.vllm_notices)
    for code, rule in RULES.items()
    if code not in SHOWN and code not in NOT_SHOWN
}

FROM_CORPUS = {**expected.CORPUS, **NEW}
TRIALS: dict[str, Trial] = {
    **trials.GOOD,
    **trials.BROKEN,
    **{
        name: Trial(
            CORPUS[name].make,
            engine=expected.ENGINE.get(name, {}),
            before=expected.BEFORE.get(name, ()),
        )
        for name in FROM_CORPUS
    },
}
VERDICTS = {
    **expected.GOOD,
    **{name: verdict for name, (_, verdict) in expected.BROKEN.items()},
    **FROM_CORPUS,
}
CODES = {
    **{name: code for name, (code, _) in expected.BROKEN.items()},
    **{name: CORPUS[name].expected for name in FROM_CORPUS},
}

NOTICED = {
    "at start": (Refuses,),
    "on a request": (Dies,),
    "never": (Drafts, Garbles, Unnoticed, WastesBeyond),
}


@dataclass(frozen=True)
class Tried:
    """All pairs, as the rules see them and as vLLM took them."""

    cases: dict[str, Case]
    outcomes: dict[str, Outcome]


@pytest.fixture(scope="module")
def tried(engine: Engine) -> Iterator[Tried]:
    """Every pair given to the engine, in one process: starting one takes half a minute."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {}
        for number, (pair, trial) in enumerate(TRIALS.items()):
            (folder / str(number)).mkdir()
            cases[pair] = trial.make(folder / str(number))
        given = {pair: (TRIALS[pair], case) for pair, case in cases.items()}
        yield Tried(cases, outcomes_of(given, engine, folder))


@pytest.mark.parametrize("name", [*trials.BROKEN, *FROM_CORPUS])
def test_vllm_does_with_a_broken_pair_what_its_rule_guards_against(name: str, tried: Tried) -> None:
    VERDICTS[name].hold(name, tried.outcomes)

    assert CODES[name] in {finding.code for finding in check(tried.cases[name])}


@pytest.mark.parametrize("name", list(trials.GOOD))
def test_vllm_drafts_with_a_good_pair_and_no_rule_speaks_against_its_head(
    name: str, tried: Tried
) -> None:
    VERDICTS[name].hold(name, tried.outcomes)

    assert check(tried.cases[name], about="head") == ()


def test_what_cannot_be_shown_is_a_rule_and_is_not_shown() -> None:
    assert set(NOT_SHOWN) <= set(RULES)
    assert SHOWN & set(NOT_SHOWN) == set()


@pytest.mark.parametrize("rule", rules_found(), ids=lambda rule: rule.code)
def test_a_rule_says_rightly_whether_vllm_notices(rule: Rule) -> None:
    verdicts = [VERDICTS[name] for name, code in CODES.items() if code == rule.code]

    # That what was expected is what happens is shown above.
    assert rule.code in NOT_SHOWN or any(
        isinstance(verdict, (As, *NOTICED[rule.vllm_notices])) for verdict in verdicts
    )
