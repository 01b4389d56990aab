"""The container's entrypoint under load, without AWS: replaced, and its engines killed."""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from peagle.catalog import load_catalog
from peagle.engine.machine import Engine
from peagle.engine.process import EngineProcess, free_port, start_engine, stop_engine
from peagle.engine.runner import LocalRunner, link_folders, local_folders
from peagle.planning import Options, make_plan
from tests.soak.streams import Events, post
from tests.soak.targets import RESTARTS, SILENCE_SECONDS, kill_engine, wait_until_healthy

_LARGEST_LOG = 50_000_000


class Container:
    """Two containers as processes: one lives through the run, the other is replaced."""

    name = "container"
    routes: tuple[str, ...] = ("/invocations", "/v1/chat/completions")
    refuses_in_drain = True

    def __init__(self, engine: Engine, folder: Path, is_stub: bool) -> None:
        self.events = Events()
        self._engine = engine
        self._folder = folder
        self._started = 0
        self._serving: list[EngineProcess] = []
        self._all: list[EngineProcess] = []
        self._turn = random.Random(0)

    def start(self) -> None:
        plan = make_plan(Options(pair="tiny"), load_catalog())
        os.environ["PEAGLE_ENGINE_PYTHON"] = str(self._engine.python)
        environment, _ = LocalRunner().local_environment(plan)
        self._environment = {**environment, **RESTARTS}
        self._ml_root = self._folder / "ml"
        link_folders(local_folders(plan), self._ml_root)
        self._serving = [self._started_one(), self._started_one()]

    def stream(self, route: str, body: bytes) -> Iterator[bytes]:
        yield from post(self._turn.choice(self._serving).port, route, {}, body, SILENCE_SECONDS)

    def acts(self) -> tuple[Callable[[random.Random], None], ...]:
        return (self._replace, self._kill)

    def processes(self) -> dict[str, list[int]]:
        for process in self._all:
            with contextlib.suppress(FileNotFoundError):
                if Path(process.log).stat().st_size > _LARGEST_LOG:
                    os.truncate(process.log, 0)
        return {"supervisor": [each.pid for each in self._all]}

    def end(self) -> None:
        for process in self._all:
            stop_engine(process)

    def _started_one(self) -> EngineProcess:
        """A container that is healthy."""
        self._started += 1
        log = self._folder / f"{self._started}.log"
        port = free_port()
        process = start_engine(self._engine, self._environment, self._ml_root, port, log)
        self._all.append(process)
        wait_until_healthy(port, process.pid)
        return process

    def _replace(self, chance: random.Random) -> None:
        """As SageMaker updates an endpoint: start another, end the old with SIGTERM. In half of the
        cases clients learn of it only by what they are refused."""
        with self.events.during("update"):
            new = self._started_one()
        steady, old = self._serving
        with self.events.during("drain"):
            if chance.random() < 0.5:
                self._serving = [steady, new]
            os.kill(old.pid, signal.SIGTERM)
            _, status = os.waitpid(old.pid, 0)
            self._serving = [steady, new]
        self._all.remove(old)
        code = os.waitstatus_to_exitcode(status)
        if code:
            self.events.errors.append(f"a drained container exited with {code}")
        Path(old.log).unlink()

    def _kill(self, chance: random.Random) -> None:
        kill_engine(self.events, chance.choice(self._serving).pid, chance)
