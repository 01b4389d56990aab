"""Installs ``mini_aiperf`` as if it were aiperf."""

import hashlib
import json
import shlex
import sys
from pathlib import Path

from peagle.bench.load import AIPERF
from peagle.data import data_folder
from peagle.engine.machine import MARKER


def install_mini(home: Path) -> None:
    folder = home / "engines" / f"aiperf-{AIPERF}"
    program = folder / "bin" / "aiperf"
    program.parent.mkdir(parents=True)
    script = Path(__file__).with_name("mini_aiperf.py")
    command = f'exec {shlex.quote(sys.executable)} -S {shlex.quote(str(script))} "$@"'
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    lock = data_folder("requirements") / "aiperf.txt"
    (program.with_name("python")).symlink_to(sys.executable)
    marker = {"lock": hashlib.sha256(lock.read_bytes()).hexdigest()}
    (folder / MARKER).write_text(json.dumps(marker))
