"""What can be expected of real vLLM with a broken pair, and whether that is what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.engine.damage import Outcome


class Verdict(Protocol):
    """What vLLM is expected to do with a pair."""

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        """AssertionError when vLLM did something else with the pair of that name."""


@dataclass(frozen=True)
class Refuses:
    """vLLM does not start, and says these words."""

    words: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage in ("config", "start"), outcome
        assert self.words in outcome.error, outcome.error


@dataclass(frozen=True)
class Dies:
    """vLLM starts, and a request ends the engine with these words."""

    words: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "request", outcome
        assert self.words in outcome.error, outcome.error


@dataclass(frozen=True)
class Drafts:
    """vLLM starts and answers; its drafts are accepted to this length at most."""

    at_most: float

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "served", outcome
        assert outcome.acceptance_length <= self.at_most


@dataclass(frozen=True)
class Unnoticed:
    """vLLM starts and accepts what it accepts of the good pair of that name: it does not look."""

    like: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome, good = outcomes[name], outcomes[self.like]
        assert outcome.stage == "served", outcome
        assert abs(outcome.acceptance_length - good.acceptance_length) < 0.05


@dataclass(frozen=True)
class Garbles:
    """vLLM starts and gives other answers than the good pair of that name: the target is broken."""

    unlike: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome, good = outcomes[name], outcomes[self.unlike]
        assert outcome.stage == "served", outcome
        assert outcome.answers != good.answers


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
    """vLLM does what the rule says of it, in whatever words: ``at start``, ``on a request`` or
    ``never``."""

    noticed: str

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        stages = {"at start": ("config", "start"), "on a request": ("request",)}
        outcome = outcomes[name]
        assert outcome.stage in stages.get(self.noticed, ("served",)), outcome


@dataclass(frozen=True)
class Accepts:
    """A good pair: its drafts are accepted to this length at least."""

    at_least: float

    def hold(self, name: str, outcomes: Mapping[str, Outcome]) -> None:
        outcome = outcomes[name]
        assert outcome.stage == "served", outcome
        assert outcome.acceptance_length >= self.at_least
