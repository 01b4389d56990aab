"""The engines behind one configuration of an endpoint: one for each instance of each variant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from peagle.engine.process import is_alive
from peagle.sandbox.instance import EngineInstance, LaunchFailed
from peagle.sandbox.launch_spec import LaunchSpec

OnChosen = Callable[[EngineInstance], object]


class Fleet:
    """The engines that serve together. ``specs`` has one specification for each variant;
    ``is_empty``: none of their engines runs yet, and ``resize`` starts them."""

    def __init__(self, specs: Sequence[LaunchSpec], is_empty: bool = False) -> None:
        self.specs = tuple(specs)
        self._lock = threading.Lock()
        started = () if is_empty else self.specs
        self._instances = [EngineInstance(spec) for spec in started for _ in range(spec.count)]
        self._credit: dict[str, float] = {}
        self._turn = 0

    @property
    def instances(self) -> tuple[EngineInstance, ...]:
        """The instances, those of the first variant first."""
        with self._lock:
            return tuple(self._instances)

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(spec.variant for spec in self.specs)

    def count(self, variant: str) -> int:
        """How many instances of ``variant`` run."""
        return sum(instance.spec.variant == variant for instance in self.instances)

    def start(self, on_chosen: OnChosen) -> None:
        """Start all engines at the same time; return when every one answers /ping.

        Raises the first LaunchFailed; then nothing is left running. Other errors are raised too.
        """
        self._start(self.instances, on_chosen)

    def resize(self, variant: str, count: int, on_chosen: OnChosen) -> None:
        """Start or end engines of ``variant`` until ``count`` of them run. Raises LaunchFailed;
        then the engines that ran before still do."""
        spec = next(one for one in self.specs if one.variant == variant)
        there = [one for one in self.instances if one.spec.variant == variant]
        added = [EngineInstance(spec) for _ in range(count - len(there))]
        self._start(added, on_chosen)
        removed = there[count:]
        with self._lock:
            self._instances += added
            self._instances = [one for one in self._instances if one not in removed]
        for instance in removed:
            instance.drain()
            instance.end()

    def end_reason(self) -> str | None:
        """Why the first engine ended, once all have; ``None`` while one runs."""
        reasons = [instance.end_reason() for instance in self.instances]
        return reasons[0] if reasons and all(reasons) else None

    def drain(self) -> None:
        """Wait until no engine answers a request, each at most DRAIN_SECONDS."""
        for instance in self.instances:
            instance.drain()

    def end(self) -> None:
        """End every engine; return when nothing is left. May be repeated."""
        _each(self.instances, EngineInstance.end)

    def choose(self, weights: Mapping[str, float], variant: str | None) -> EngineInstance:
        """The instance for the next request: of ``variant``, or shared among the variants by
        ``weights``; then the one with the fewest requests in progress, in turn.

        An engine that has ended is chosen only where no other one runs.
        """
        with self._lock:
            chosen = variant or self._shared(weights)
            self._turn += 1
            ours = [one for one in self._instances if one.spec.variant == chosen]
            alive = [one for one in ours if one.process and is_alive(one.process)] or ours
            turned = [alive[(self._turn + place) % len(alive)] for place in range(len(alive))]
            return min(turned, key=lambda one: one.in_progress)

    def _shared(self, weights: Mapping[str, float]) -> str:
        """The variant for the next request that names none: each collects its share, and the one
        with the most pays for the request. Requests to a variant, and those before a change of the
        weights, do not count."""
        total = sum(weights.get(name) or 0.0 for name in self.variants) or 1.0
        for name in self.variants:
            share = (weights.get(name) or 0.0) / total
            self._credit[name] = self._credit.get(name, 0.0) + share
        weighted = [name for name in self.variants if weights.get(name)] or self.variants
        chosen = max(weighted, key=lambda name: round(self._credit[name], 9))
        self._credit[chosen] -= 1.0
        return chosen

    def _start(self, instances: Sequence[EngineInstance], on_chosen: OnChosen) -> None:
        try:
            _each(instances, lambda instance: instance.start(on_chosen))
        except BaseException:
            _each(instances, EngineInstance.end)
            raise


def _each(instances: Sequence[EngineInstance], do: Callable[[EngineInstance], object]) -> None:
    """Call ``do`` for all instances at the same time; raise the first error once all have ended.

    An engine that cannot start ends the others' waiting: none of them will serve.
    """
    if len(instances) == 1:
        do(instances[0])
        return
    errors: list[BaseException] = []

    def one(instance: EngineInstance) -> None:
        try:
            do(instance)
        except BaseException as error:
            errors.append(error)
            if isinstance(error, LaunchFailed):
                for other in instances:
                    other.give_up()

    threads = [threading.Thread(target=one, args=(each,), daemon=True) for each in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
