"""A program that a command runs until it ends, and what it appends to a file."""

import os
import signal
import sys
from pathlib import Path

import pytest

from peagle.engine.process import AppendedLines, run_program

WAITS = "import signal, sys, time\nprint('ready', flush=True)\n"


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_output_is_in_the_log_and_the_status_is_returned(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    status = run_program(program("print('hi'); exit(3)"), {}, log, lambda: None)
    assert (status, log.read_text()) == (3, "before\nhi\n")


@pytest.mark.parametrize(("handler", "grace", "last"), [
    ("signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit()))", 60.0, "saved"),
    ("signal.signal(15, signal.SIG_IGN)", 0.0, "ready"),
])  # fmt: skip
def test_what_watch_raises_ends_it(handler: str, grace: float, last: str, tmp_path: Path) -> None:
    log, text = tmp_path / "log", f"import signal, sys\n{handler}\n{WAITS}time.sleep(600)"

    def watch() -> None:
        if "ready" in log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(program(text), {}, log, watch, grace)
    assert log.read_text().split()[-1] == last


def test_a_worker_ends_with_its_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = "import subprocess, sys\n"
    worker += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    run_program(program(f"{worker}print(p.pid)"), {}, log, lambda: None)
    pid = int(log.read_text())
    for _ in range(1000):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return
        os.sched_yield()
    pytest.fail("the worker runs")


def test_a_line_is_read_once_and_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = AppendedLines(file)
    assert [*lines.read()] == []
    with file.open("ab", buffering=0) as stream:
        for text, complete in ((b"a\nb", [b"a\n"]), (b"c", []), (b"\n", [b"bc\n"])):
            stream.write(text)
            assert [*lines.read()] == complete
