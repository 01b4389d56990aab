"""The time that ``peagle local up`` adds to vLLM's own start: both of them in turn, of the same
command with the same environment, until the server says that it is healthy.

Goal: 2 s. On the GPUs of this machine (``--here``), where there are some, else on the CPU.
Starts of vLLM differ by seconds, so the engine's log also gives the time before vLLM starts and
after it serves.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import psutil

from measurements.commands import run_peagle, temporary_home
from peagle.engine.gpus import find_gpus
from peagle.engine.process import is_healthy
from peagle.engine.state import locate_folder, log_of, read_local_engine
from peagle.engine_log import log_fields

NAME, ROUNDS, PAUSE = "start-overhead", 2, 0.05
_SERVES = "Application startup complete."
"""vLLM's message; the container then sends a request of its own, before ``/ping`` says healthy."""


def _server() -> tuple[list[str], dict[str, str], int]:
    """Command and environment of the API server that ``local up`` started, and its port."""
    engine = read_local_engine(NAME)
    assert engine is not None  # it is up
    leader, port = psutil.Process(engine.process.pid), str(engine.process.port)
    for process in (leader, *leader.children(recursive=True)):
        if "--port" in (command := process.cmdline()) and port in command:
            with suppress(ValueError):  # the toolkit's own, which needs its supervisor
                at = command.index("--middleware")
                del command[at : at + 2]
            variables = {k: v for k, v in process.environ().items() if not k.startswith("PEAGLE_")}
            return command, variables, int(port)
    raise RuntimeError(f"no process of {leader.pid} listens on port {port}")


def _time_before_and_after(begin: float, end: float) -> tuple[float, float]:
    """Seconds from ``begin`` until vLLM starts, and from when it serves until ``end`` (epoch)."""
    moments = dict[str, float]()
    for line in log_of(NAME).read_text("utf-8").splitlines():
        if entry := log_fields(line):
            moment = datetime.fromisoformat(entry["time"]).timestamp()
            moments.setdefault(entry.get("event") or entry["message"], moment)
    return moments["start"] - begin, end - moments[_SERVES]


def _own_start(command: Sequence[str], environment: Mapping[str, str], port: int) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as server:  # fmt: skip
        while not is_healthy(port):
            if server.poll() is not None:
                raise RuntimeError(f"vLLM ended with {server.returncode}")
            time.sleep(PAUSE)
        taken = time.perf_counter() - begin
        server.terminate()
    return taken


def main() -> None:
    """Print both times and their difference, in seconds."""
    up = ("local", "up", "tiny", "--name", NAME, *(("--here",) if find_gpus() else ()))
    own, ours, outside = list[float](), list[float](), list[tuple[float, float]]()
    with temporary_home() as home:
        folder, kept = locate_folder(NAME), home / "kept"
        for number in range(ROUNDS + 1):
            begin = time.time()
            run_peagle(*up)
            end = time.time()
            server = _server()
            shutil.copytree(folder, kept, symlinks=True)  # the weights, which down removes
            run_peagle("local", "down", NAME)
            kept.rename(folder)
            if number:  # the first one compiles
                ours.append(end - begin)
                outside.append(_time_before_and_after(begin, end))
                own.append(_own_start(*server))
            shutil.rmtree(folder)
    added = statistics.mean(ours) - statistics.mean(own)
    print(f"peagle local up   {' '.join(f'{seconds:.1f}' for seconds in ours)} s")
    print(f"vLLM alone        {' '.join(f'{seconds:.1f}' for seconds in own)} s")
    print(f"added             {added:.1f} s   goal 2 s")
    for before, after in outside:
        print(f"of these          {before:.2f} s before vLLM starts, {after:.2f} s after it serves")


if __name__ == "__main__":
    main()
