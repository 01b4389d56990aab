"""A program that a command runs until it ends, and what it appends to a file."""

import fcntl
import sys
from pathlib import Path

import pytest

from peagle.engine.process import AppendedLines, run_program


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
    log, text = (
        tmp_path / "log",
        f"import signal, sys, time\n{handler}\nprint('ready', flush=True)\ntime.sleep(600)",
    )

    def watch() -> None:
        if "ready" in log.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(program(text), {}, log, watch, grace)
    assert log.read_text().split()[-1] == last


def test_a_worker_ends_with_its_program(tmp_path: Path) -> None:
    """It holds a lock while it lives."""
    worker = "import fcntl, time; file = open('lock', 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
    worker += "print(flush=True); time.sleep(600)"
    text = f"import subprocess, sys\nargv = [sys.executable, '-c', {worker!r}]\n"
    text += "subprocess.Popen(argv, stdout=subprocess.PIPE).stdout.readline()"
    assert run_program(program(text), {}, tmp_path / "log", lambda: None) == 0
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_line_is_read_once_and_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = AppendedLines(file)
    assert [*lines.read()] == []
    with file.open("ab", buffering=0) as stream:
        for text, complete in ((b"a\nb", [b"a\n"]), (b"c", []), (b"\n", [b"bc\n"])):
            stream.write(text)
            assert [*lines.read()] == complete
