"""What tests share: ``peagle`` as a process, and ``peagle`` within this process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.cli.main import main

Peagle = Callable[..., subprocess.CompletedProcess[str]]
"""Runs ``peagle`` as a process with these arguments; keywords go to ``subprocess.run``."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The last line on stderr, which must be the only error."""
        lines = self.err.splitlines()
        assert sum(line.startswith("error:") for line in lines) <= 1
        return lines[-1] if lines else ""


def in_process(
    *arguments: str,
    stdin: bytes = b"",
    terminal: bool = False,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Done:
    """Run ``peagle`` with these arguments in this process; it ends as the program would.

    ``stdin`` comes from a pipe, or with ``terminal`` from a terminal. ``environment`` replaces the
    whole environment, ``folder`` the working folder. Streams, argv, environment, folder and signal
    handlers are as before afterwards. What the program would end of with a traceback is raised.
    """
    typed = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    typed.isatty = lambda: terminal  # type: ignore[method-assign]
    out, err = _paper(), _paper()
    with _as_program(["peagle", *arguments], (typed, out, err), environment, folder):
        try:
            main()
        except SystemExit as ended:
            code = _exit_code(ended)
    return Done(code, _written(out), _written(err))


@contextmanager
def _as_program(
    argv: list[str],
    streams: tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper],
    environment: Mapping[str, str] | None,
    folder: Path | None,
) -> Iterator[None]:
    """This process as a program that was just started; all is put back at the end."""
    before = (sys.argv, sys.stdin, sys.stdout, sys.stderr)
    variables, place = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        sys.argv, (sys.stdin, sys.stdout, sys.stderr) = argv, streams
        if environment is not None:
            _set_environment(environment)
        os.chdir(folder or place)
        yield
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        _set_environment(variables)
        os.chdir(place)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _set_environment(variables: Mapping[str, str]) -> None:
    if os.environ != variables:
        os.environ.clear()
        os.environ.update(variables)


def _exit_code(ended: SystemExit) -> int:
    """The exit code that Python gives a program that ends like this."""
    if ended.code is None:
        return 0
    return ended.code if isinstance(ended.code, int) else 1


def _paper() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return content.decode("utf-8")
