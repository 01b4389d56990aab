"""The sandbox keeps a bounded part of what engines log, and nothing that was deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from moto.core.common_models import BaseModel

from peagle.sandbox import operations
from peagle.sandbox.logs import KEPT_EVENTS, limit_events


def streams(*lengths: int) -> dict[str, Any]:
    return {
        str(place): SimpleNamespace(events=list(range(length)))
        for place, length in enumerate(lengths)
    }


def test_the_oldest_events_after_the_start_of_an_engine_are_forgotten() -> None:
    kept = streams(3000, 4000)
    limit_events(kept)
    assert kept["0"].events == list(range(1000))
    assert kept["1"].events == list(range(4000))

    kept["1"].events += range(4000, 5000)
    limit_events(kept)
    assert kept["1"].events == [*range(1000), *range(2000, 5000)]
    assert sum(len(one.events) for one in kept.values()) == KEPT_EVENTS


def test_the_oldest_streams_are_forgotten() -> None:
    kept = streams(*[1000] * 150)
    limit_events(kept)
    assert list(kept) == [str(number) for number in range(50, 150)]


def test_moto_keeps_no_list_of_all_objects() -> None:
    class Thing(BaseModel):
        def __init__(self, name: str) -> None:
            self.name = name

    operations.install_quick_start()
    assert Thing("a").name == "a"
    assert Thing.instances_tracked == []  # type: ignore[attr-defined]
