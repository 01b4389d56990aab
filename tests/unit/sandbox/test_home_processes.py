"""Which processes the tests count as those of a home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.sandbox.sandboxes import Sandbox, until

_ENDING = """
import ctypes, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
threading.Thread(target=child.wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A process in the state of one that was killed and has a thread that still ends, with a child."""


@pytest.mark.thorough
def test_a_process_counts_while_its_killed_parent_ends(tmp_path: Path) -> None:
    home = Sandbox(tmp_path / "home", Path(sys.executable))
    with subprocess.Popen(
        [sys.executable, "-c", _ENDING],
        env={**os.environ, **home.settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as ending:
        assert ending.stdout is not None
        child = psutil.Process(int(ending.stdout.readline()))
        status = psutil.Process(ending.pid).status
        until(status, lambda found: found == psutil.STATUS_ZOMBIE)
        until(child.cmdline, lambda line: bool(line) and "sys.stdin.read()" in line[-1])

        assert child.ppid() == ending.pid
        assert home.processes() == [child.pid]

        ending.communicate()
        assert home.processes() == []


def test_what_all_homes_share_is_of_none(tmp_path: Path) -> None:
    home = Sandbox(tmp_path / "home", Path(sys.executable))
    program = "import sys; print('begun', flush=True); sys.stdin.read()  # import forked_server"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **home.settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shared:
        assert shared.stdout is not None
        assert shared.stdout.readline() == "begun\n"
        assert home.processes() == []
