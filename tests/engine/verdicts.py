"""Expectations of real vLLM with a pair, and their comparison with the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.engine.damage import Outcome


class Verdict(Protocol):
    """What vLLM is expected to do with a pair."""

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        """Raise AssertionError if the outcome of the pair ``name`` is another."""


@dataclass(frozen=True)
class Refuses:
    """vLLM does not start; its error contains these words."""

    words: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage in ("config", "start"), outcome
        assert self.words in outcome.error, outcome.error


@dataclass(frozen=True)
class Dies:
    """vLLM starts, and a request ends the engine with an error that contains these words."""

    words: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "request", outcome
        assert self.words in outcome.error, outcome.error


@dataclass(frozen=True)
class Drafts:
    """vLLM starts and answers; the acceptance length is at most this."""

    at_most: float

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "served", outcome
        assert outcome.acceptance_length <= self.at_most


@dataclass(frozen=True)
class Unnoticed:
    """vLLM does not notice: it accepts as many drafts as of the good pair of that name."""

    like: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome, good = outcomes[name], outcomes[self.like]
        assert outcome.stage == "served", outcome
        assert abs(outcome.acceptance_length - good.acceptance_length) < 0.05


@dataclass(frozen=True)
class WastesBeyond:
    """vLLM drafts and verifies tokens after the first ``k``, and nearly none is accepted."""

    k: int
    at_most: float

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "served", outcome
        beyond = outcome.accepted_at[self.k :]
        assert beyond
        assert sum(beyond) / outcome.drafts / len(beyond) <= self.at_most


@dataclass(frozen=True)
class As:
    """vLLM notices the problem when the rule states, with any error: ``at start``, ``on a request``
    or ``never``."""

    noticed: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        stages = {"at start": ("config", "start"), "on a request": ("request",)}
        outcome = outcomes[name]
        assert outcome.stage in stages.get(self.noticed, ("served",)), outcome


@dataclass(frozen=True)
class Accepts:
    """A good pair: the acceptance length is at least this."""

    at_least: float

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "served", outcome
        assert outcome.acceptance_length >= self.at_least
