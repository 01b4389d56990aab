"""A fake vLLM server that fails, drains and lingers on demand.

Tests copy it to where the entrypoint looks for vLLM. ``HOW`` in its environment is Python code that
runs with the names below; ``STARTS`` is a file that gets a line for every start.
"""

import os
import signal
import socket
import sys
import time

with open(os.environ["STARTS"], "a", encoding="utf-8") as record:
    record.write(f"{os.getpid()}\n")
START = sum(1 for _ in open(os.environ["STARTS"], encoding="utf-8"))  # noqa: SIM115
SUPERVISOR = socket.socket(fileno=int(os.environ["PEAGLE_SUPERVISOR_SOCKET"]))


def send(words: str) -> None:
    SUPERVISOR.send(words.encode() + b"\n")


def receive() -> str:
    return SUPERVISOR.recv(100).decode().strip()


def linger() -> None:
    """Start a child that keeps the output open and ignores SIGTERM."""
    import subprocess  # takes as long as the rest of the fake

    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.2)


def sleep(seconds: float = 60) -> None:
    time.sleep(seconds)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


exec(os.environ["HOW"])
