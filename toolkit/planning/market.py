"""Every instance type as a place for the asked load: how it fits, drafts, how fast, how dear."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from toolkit.catalog.models import SpeedRun
from toolkit.catalog.tables import Instance, InstanceTable
from toolkit.fit.gpus import capability_of
from toolkit.planning.hosting import Hosting, fit_key, holds, host, needed_capability
from toolkit.planning.memory import Workload
from toolkit.planning.models import Options
from toolkit.planning.prices import price_of_all, usd_per_million
from toolkit.planning.speeds import measured_loads, names_of, runs_on
from toolkit.planning.verdict import Asked, Verdict, judge
from toolkit.planning.words import at_a_time

MOST_TRIED = 100
"""Numbers of instances of one type that are tried to make a speed."""


@dataclass(frozen=True)
class Place:
    """``count`` instances of one type that share the load.

    ``load`` is the most requests that one of them has at a time. ``usd_per_hour`` and
    ``tokens_per_second`` are of all of them, ``None`` where not known.
    """

    hosting: Hosting
    verdict: Verdict
    count: int
    load: int
    usd_per_hour: float | None
    tokens_per_second: float | None

    @property
    def instance(self) -> Instance:
        """The instance type."""
        return self.hosting.instance

    @property
    def holds_load(self) -> bool:
        """Whether the cache of each holds enough of the load."""
        return holds(self.hosting.fit, self.load)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """USD for a million output tokens while the load lasts."""
        return usd_per_million(self.usd_per_hour, self.tokens_per_second)

    @property
    def cost(self) -> tuple[bool, float, str]:
        """Sorts from cheap to dear, what has no price last."""
        return (self.usd_per_hour is None, self.usd_per_hour or 0.0, self.instance.type)

    @property
    def source(self) -> str | None:
        """Where the speed comes from, in words; ``None`` where it is not known."""
        speed = self.verdict.speed
        if speed is None or self.count == 1:
            return speed.source if speed else None
        return f"{speed.source}; {self.count} times what one makes of {at_a_time(speed.load)}"


class Market:
    """The table of instances, seen by who wants to serve this work.

    ``work`` is with the drafter and K of ``asked``; its concurrency is the whole endpoint's.
    """

    def __init__(
        self,
        options: Options,
        table: InstanceTable,
        runs: tuple[SpeedRun, ...],
        asked: Asked,
        work: Workload,
        region: str,
    ) -> None:
        self.options, self.asked, self.work = options, asked, work
        self._table, self._runs, self._region = table, runs, region
        self._hosted: dict[tuple[object, ...], Hosting] = {}

    def fitting(self) -> list[Place]:
        """A place on every instance type that is new and large enough, from cheap to dear."""
        oldest = needed_capability(self.work.target)
        places = (self.place(i) for i in self._table.instances if capability_of(i) >= oldest)
        return sorted((p for p in places if p.hosting.fit.fits), key=lambda place: place.cost)

    def alone(self) -> Market:
        """The same market for the target without a drafter."""
        asked = replace(self.asked, drafter=None, k=None)
        work = replace(self.work, drafter=None, k=0)
        return Market(self.options, self._table, self._runs, asked, work, self._region)

    def largest(self) -> Place:
        """The type with most GPU memory."""
        types = self._table.instances
        return self.place(max(types, key=lambda i: (i.gpu_count * i.gpu_memory_mib, i.type)))

    def place(self, instance: Instance) -> Place:
        """On so many of these as the user says; else on as many as make the speed asked for.

        Where no number of them is known to make it, on those that make most.
        """
        if self.options.instance_count is not None:
            return self.shared(instance, self.options.instance_count)
        one, wanted = self.shared(instance, 1), self.options.min_tokens_per_second
        if wanted is None or reaches(one, wanted) or not self.runs(one.hosting):
            return one
        best = one
        for place in self._more(instance, one):
            if (place.tokens_per_second or 0) > (best.tokens_per_second or 0):
                best = place
            if reaches(place, wanted):
                break
        return best

    def shared(self, instance: Instance, count: int, load: int | None = None) -> Place:
        """``count`` of these share the load evenly; ``load`` is another than the asked one."""
        load = self.work.concurrency if load is None else load
        busy = min(count, load)
        most = math.ceil(load / busy)
        hosting = self._host(instance, self.asked.drafter is not None, self.asked.usual_k, most)
        verdict = judge(self.asked, self.runs(hosting), load / busy)
        if verdict.k != self.asked.usual_k:
            again = self._host(instance, verdict.drafter is not None, verdict.k, most)
            if again.fit.tensor_parallel_size == hosting.fit.tensor_parallel_size:
                hosting = again
            else:  # the evidence is not of so many GPUs
                verdict = Verdict(self.asked.drafter, self.asked.usual_k)
        speed = verdict.speed
        return Place(
            hosting,
            verdict,
            count,
            most,
            price_of_all(instance, count, self._region),
            None if speed is None else round(speed.tokens_per_second * busy, 1),
        )

    def starts(self, instance: Instance, concurrency: int) -> bool:
        """Whether an engine that is told to take so many requests at a time fits there."""
        return host(replace(self.work, concurrency=concurrency), instance, 0).fit.fits

    def work_on(self, place: Place) -> Workload:
        """The work with what drafts there."""
        return replace(self.work, drafter=place.verdict.drafter, k=place.verdict.k)

    def runs(self, hosting: Hosting) -> tuple[SpeedRun, ...]:
        """The evidence for such GPUs."""
        parallel = hosting.fit.tensor_parallel_size
        return runs_on(self._runs, hosting.instance.gpu, parallel, self.work.vllm)

    def loads(self, place: Place) -> tuple[int, ...]:
        """The loads of one engine that were measured on such GPUs with what drafts there."""
        names = names_of(place.verdict.drafter, self.asked.own)
        return measured_loads(self.runs(place.hosting), names)

    def _more(self, instance: Instance, one: Place) -> Iterator[Place]:
        """More than one instance, from so many that each has a load that somebody measured."""
        loads = self.loads(one)
        first = max(2, math.ceil(self.work.concurrency / loads[-1])) if loads else 2
        for count in range(first, min(self.work.concurrency, first + MOST_TRIED) + 1):
            place = self.shared(instance, count)
            if place.tokens_per_second is None:
                return
            yield place

    def _host(self, instance: Instance, drafts: bool, k: int, load: int) -> Hosting:
        """The fit, reckoned once for all types that are alike in what it depends on."""
        key = (*fit_key(instance), drafts, k, load)
        if key not in self._hosted:
            drafter = self.asked.drafter if drafts else None
            self._hosted[key] = host(replace(self.work, drafter=drafter, k=k), instance, load)
        return replace(self._hosted[key], instance=instance)


def reaches(place: Place, wanted: float) -> bool:
    """Whether evidence says that it makes so many tokens per second."""
    return place.tokens_per_second is not None and place.tokens_per_second >= wanted
