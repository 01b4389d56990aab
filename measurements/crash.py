"""The time until a container exits whose speculation cannot work.

A head that does not fit its target is refused before an engine starts; a fake of vLLM's server
records any start. Other mistakes make the real engine fail: the goal is then at most 5 s from the
engine's exit to the container's, with a cause in the last line of its log.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measurements.entrypoint import VLLM, environment_for, fake_vllm
from measurements.timing import ROUNDS
from peagle.data import entrypoint_folder

GOAL_SECONDS = 5.0
CRASHES = 3
"""Each takes as long as an engine takes to load."""

START_SECONDS = 300
SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"


def main() -> bool:
    """Measure and print; whether both goals are met."""
    refused = refusals()
    middle, worst = statistics.median(refused) * 1000, max(refused) * 1000
    print(f"mismatch refused         {middle:.0f} ms (worst {worst:.0f})   no engine was started")
    ended = [crash() for _ in range(CRASHES)]
    late = max(seconds for seconds, _ in ended)
    causes = ", ".join(sorted({cause for _, cause in ended}))
    print(
        f"crash to container's end {late:.2f} s (worst of {CRASHES}: {causes})   "
        f"goal {GOAL_SECONDS:.0f} s   {late / GOAL_SECONDS:.2f}"
    )
    return late <= GOAL_SECONDS


def refusals() -> list[float]:
    """Seconds from a container's start to its exit, with a head that is not a P-EAGLE head."""
    from peagle.data import data_folder
    from peagle.engine.machine import find_engine

    python = str(find_engine(VLLM).python)
    tiny = data_folder("model_catalog") / "peagle" / "tiny"
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        fake_vllm(place, python)
        environment = environment_for(place, tiny, tiny / "eagle3")
        for _ in range(ROUNDS):
            begin = time.monotonic()
            done = subprocess.run([python, str(entrypoint_folder()), "serve"],
                                  env=environment, capture_output=True, check=False)  # fmt: skip
            taken.append(time.monotonic() - begin)
            last = json.loads(done.stderr.splitlines()[-1])
            assert done.returncode == 2, last
            assert "do not match" in last["message"], last
            assert not (place / "note").exists(), "an engine was started"
    return taken


def crash() -> tuple[float, str]:
    """Seconds from the real engine's exit to the container's, and the cause that the log names.

    One of the head's tensors has a shape that vLLM does not expect.
    """
    from peagle.catalog import load_catalog
    from peagle.engine.machine import find_engine
    from peagle.engine.process import free_port, start_engine, stop_engine
    from peagle.engine.runner import LocalRunner, link_folders, local_folders
    from peagle.planning import Options, make_plan

    plan = make_plan(Options(pair="tiny"), load_catalog())
    environment, _ = LocalRunner().local_environment(plan)
    with tempfile.TemporaryDirectory() as folder:
        ml_root, log = Path(folder, "ml"), Path(folder, "log")
        link_folders(local_folders(plan), ml_root)
        _misshape_head(ml_root / "model" / "drafter")
        process = start_engine(find_engine(VLLM), environment, ml_root, free_port(), log)
        try:
            _wait_for_end(_engine_of(process.pid, log))
            begin = time.monotonic()
            _, status = os.waitpid(process.pid, 0)
            seconds = time.monotonic() - begin
        finally:
            stop_engine(process)
        last = _last_line(log)
    assert os.waitstatus_to_exitcode(status) == 1, last
    return seconds, str(last.get("cause") or "no cause")


def _misshape_head(folder: Path) -> None:
    """Replace the linked head by a copy whose ``norm.weight`` has two columns."""
    original = folder.resolve()
    folder.unlink()
    shutil.copytree(original, folder)
    (file,) = folder.glob("*.safetensors")
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    (size,) = header["norm.weight"]["shape"]
    header["norm.weight"]["shape"] = [size // 2, 2]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def _engine_of(container: int, log: Path) -> int:
    """The process ID of vLLM's server, once the entrypoint has started it."""
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, container, ended) is None:
        children = Path(f"/proc/{container}/task/{container}/children").read_text().split()
        for child in map(int, children):
            if b"api_server" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        time.sleep(0.01)
    raise AssertionError(f"no engine was started: {_last_line(log)}")


def _wait_for_end(pid: int) -> None:
    handle = os.pidfd_open(pid)
    try:
        readable, _, _ = select.select([handle], [], [], START_SECONDS)
        assert readable, f"process {pid} does not exit"
    finally:
        os.close(handle)


def _last_line(log: Path) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    return line


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
