"""How the sandbox shares requests among the variants of an endpoint."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.sandbox import fleet
from peagle.sandbox.fleet import Fleet
from tests.unit.sandbox.test_rolling_copies import Engine

SHARES = {"AllTraffic": 0.75, "Candidate": 0.25}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Two variants with an engine each."""
    monkeypatch.setattr(fleet, "EngineInstance", Engine)
    specs: Any = [SimpleNamespace(variant=name, count=1) for name in SHARES]
    return Fleet(specs)


def chosen(engines: Fleet, weights: dict[str, float], count: int) -> Counter[str]:
    return Counter(engines.choose(weights, None).spec.variant for _ in range(count))


def test_requests_to_one_variant_do_not_change_the_shares(engines: Fleet) -> None:
    for _ in range(50):  # a proof
        assert engines.choose(SHARES, "Candidate").spec.variant == "Candidate"

    assert chosen(engines, SHARES, 40) == {"AllTraffic": 30, "Candidate": 10}


def test_another_share_holds_from_its_change_on(engines: Fleet) -> None:
    chosen(engines, SHARES, 100)

    half = dict.fromkeys(SHARES, 1.0)
    assert chosen(engines, half, 20) == {"AllTraffic": 10, "Candidate": 10}
    assert chosen(engines, half | {"Candidate": 0.0}, 3) == {"AllTraffic": 3}
