"""Soak test: streaming clients, while the engines behind them are updated, drained and killed.

64 clients stream through the AWS sandbox (InvokeEndpointWithResponseStream and the
OpenAI-compatible path), and 64 through the container's entrypoint; ``--target`` takes one alone.
Goals (exit code 1 where one is missed): no stream breaks at an update or a drain, or without a
reason; every request of a killed engine gets an error and not silence; the servers' memory stays
within 5 % of what it is after a tenth of the run. Ctrl-C and SIGTERM report what there is.
"""

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.engine.machine import Engine, find_engine
from tests.soak.container import Container
from tests.soak.memory import MAX_GROWTH, MIN_SECONDS, Memory
from tests.soak.sandbox import Sandbox
from tests.soak.streams import Client, Tally
from tests.soak.targets import SILENCE_SECONDS, START_SECONDS, VLLM, Target, stub_engine

TARGETS: dict[str, Callable[[Engine, Path, bool], Target]] = {
    "sandbox": Sandbox,
    "container": Container,
}
_PROGRESS_SECONDS = 5.0
ACTS_APART = (1.0, 6.0)
"""Seconds between two acts on one target, from a uniform distribution."""


@dataclass
class Soak:
    """One target under load."""

    target: Target
    clients: int
    seed: int
    numbered: bool
    tally: Tally = field(default_factory=Tally)
    memory: Memory = field(default_factory=Memory)
    began: float = 0.0
    seconds: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self.target.start()
        self.began = time.monotonic()
        for number in range(self.clients):
            client = Client(
                self.target.stream, self.target.routes, self.target.events, self.tally, self._stop,
                f"{self.seed}-{number}", self.numbered, self.target.refuses_in_drain,
            )  # fmt: skip
            self._threads.append(threading.Thread(target=client.run, daemon=True))
        self._acts = threading.Thread(target=self._disturb, daemon=True)
        for thread in (*self._threads, self._acts):
            thread.start()

    def sample(self) -> None:
        self.memory.sample(time.monotonic() - self.began, self.target.processes())

    def finish(self) -> None:
        """Let streams end, and count the rest as silent."""
        self._stop.set()
        self.seconds = time.monotonic() - self.began if self.began else 0.0
        until = time.monotonic() + 2 * SILENCE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self.tally.add("silent (never ended)", thread.name)
        if self.began:
            self._acts.join(START_SECONDS)  # the last act

    def _disturb(self) -> None:
        chance = random.Random(f"{self.seed}-acts")
        left: list[Callable[[random.Random], None]] = []
        while not self._stop.wait(chance.uniform(*ACTS_APART)):
            if not left:
                left = chance.sample(self.target.acts(), len(self.target.acts()))
            try:
                left.pop()(chance)
            except Exception as error:
                traceback.print_exc()
                self.target.events.errors.append(f"{type(error).__name__}: {error}")

    def line(self) -> str:
        """The state of the run, in one line."""
        counts = self.tally.counts
        acts = ", ".join(f"{count} {kind}s" for kind, count in self.target.events.counts().items())
        sizes = ", ".join(f"{k} {v >> 20} MB" for k, v in self.memory.latest().items())
        bad = sum(count for name, count in counts.items() if is_bad(name))
        killed = sum(count for name, count in counts.items() if name.startswith("killed"))
        return (
            f"{self.target.name:9} {counts['complete']} complete, {bad} missed, {killed} killed "
            f"with an error; {acts or 'no acts'}; {sizes}"
        )

    def document(self) -> dict[str, Any]:
        events, growth = self.target.events, self.memory.growth(self.seconds)
        judged = self.seconds >= MIN_SECONDS
        large = {role: rate for role, rate in growth.items() if rate > MAX_GROWTH} if judged else {}
        bad = {name: count for name, count in self.tally.counts.items() if is_bad(name)}
        return {
            "target": self.target.name,
            "seconds": round(self.seconds, 1),
            "streams": dict(sorted(self.tally.counts.items())),
            "acts": events.counts(),
            "memory_mb": {role: _thinned(series) for role, series in self.memory.series.items()},
            "memory_growth": {role: round(rate, 3) for role, rate in growth.items()},
            "missed": {
                **bad,
                **{f"memory of {role}": round(rate, 3) for role, rate in large.items()},
                **({"failed acts": len(events.errors)} if events.errors else {}),
                **({} if self.tally.counts["complete"] else {"no complete stream": 1}),
            },
            "examples": [*self.tally.examples, *events.errors[:10]],
        }


def is_bad(name: str) -> bool:
    """Whether a count of that name must stay 0."""
    return name.startswith(("broken", "silent"))


def _thinned(samples: Sequence[tuple[float, int]]) -> list[tuple[int, float]]:
    """At most 100 samples, as (second, MB)."""
    step = max(1, len(samples) // 100)
    return [(round(at), round(size / 2**20, 1)) for at, size in samples[::step]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and report. The exit code."""
    options = _options(arguments)
    seconds = options.hours * 3600 if options.hours else options.minutes * 60
    names = [options.target] if options.target else list(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        is_stub = options.engine == "stub"
        engine: Engine = stub_engine(Path(folder)) if is_stub else find_engine(VLLM)
        soaks = []
        for name in names:
            place = Path(folder, name)
            place.mkdir()
            target = TARGETS[name](engine, place, is_stub)
            soaks.append(Soak(target, options.clients, options.seed, is_stub))
        ended_before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                _run(soaks, seconds)
            for soak in soaks:
                soak.finish()
        finally:
            for soak in soaks:
                soak.target.end()
            signal.signal(signal.SIGTERM, ended_before)
        documents = [soak.document() for soak in soaks]
    for document in documents:
        _show(document)
    if options.json:
        settings = {name: getattr(options, name) for name in ("clients", "engine", "seed")}
        text = json.dumps({"settings": settings, "targets": documents}, indent=1)
        options.json.write_text(text + "\n")
    return 1 if any(document["missed"] for document in documents) else 0


def _run(soaks: Sequence[Soak], seconds: float) -> None:
    for soak in soaks:
        soak.start()
    began = shown = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        for soak in soaks:
            soak.sample()
        if now - shown >= _PROGRESS_SECONDS:
            shown = now
            for soak in soaks:
                print(f"{now - began:6.0f} s  {soak.line()}", flush=True)
        time.sleep(min(1.0, seconds / 100))


def _show(document: dict[str, Any]) -> None:
    print(f"\n{document['target']}: {document['seconds']:.0f} s, {document['acts']}")
    for name, count in document["streams"].items():
        print(f"  {name:30} {count}")
    goal = f"goal {100 * (MAX_GROWTH - 1):+.1f} %"
    for role, rate in document["memory_growth"].items():
        print(f"  memory of {role:20} {100 * (rate - 1):+.1f} %   {goal}")
    for example in document["examples"]:
        print(f"  {example}")
    missed = ", ".join(f"{name} {count}" for name, count in document["missed"].items())
    print(f"  missed: {missed}" if missed else "  every goal is met")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--hours", type=float, help="instead of --minutes")
    parser.add_argument("--clients", type=int, default=64, help="of each target")
    parser.add_argument("--target", choices=TARGETS, help="default: both")
    parser.add_argument("--engine", choices=("stub", "vllm"), default="stub")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
