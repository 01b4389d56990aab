"""Expectations of real vLLM with a pair, and their comparison with the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.engine.damage import Outcome

_NOTICED = {"config": "at start", "start": "at start", "request": "on a request", "served": "never"}


@dataclass(frozen=True)
class Verdict:
    """When vLLM is expected to notice the problem of a pair (as rules state it), words of its
    error, and for a served pair the limits of the acceptance length.

    ``like``: as many drafts are accepted as of the pair of that name. ``wasted_beyond``: nearly
    none of the tokens after the first so many is accepted.
    """

    noticed: str
    words: str = ""
    at_least: float = 0.0
    at_most: float = float("inf")
    like: str = ""
    wasted_beyond: int = 0

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        """Raise AssertionError if the outcome of the pair ``name`` is another."""
        outcome = outcomes[name]
        assert _NOTICED.get(outcome.stage) == self.noticed, outcome
        assert self.words in outcome.error, outcome.error
        if self.at_least or self.at_most < float("inf"):
            assert self.at_least <= outcome.acceptance_length <= self.at_most
        if self.like:
            good = outcomes[self.like].acceptance_length
            assert abs(outcome.acceptance_length - good) < 0.05
        if self.wasted_beyond:
            beyond = outcome.accepted_at[self.wasted_beyond :]
            assert beyond
            assert sum(beyond) / outcome.drafts / len(beyond) <= 0.02


def refuses(words: str) -> Verdict:
    return Verdict("at start", words)


def dies(words: str) -> Verdict:
    return Verdict("on a request", words)


def drafts(at_most: float) -> Verdict:
    return Verdict("never", at_most=at_most)


def accepts(at_least: float) -> Verdict:
    return Verdict("never", at_least=at_least)


def unnoticed(like: str) -> Verdict:
    return Verdict("never", like=like)
