"""Ways to run ``peagle``: in this process, as fast as a function, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from toolkit.cli.main import main


def run_in_process(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    input: str = "",
    **_: object,
) -> subprocess.CompletedProcess[str]:
    """``peagle`` with these arguments, ended as ``main()`` ends; what it printed is text.

    ``env``, ``cwd`` and ``input`` mean what they mean to ``subprocess.run``. Environment, folder
    and streams belong to the whole process, so only one command may run at a time. Nothing that
    the command itself starts as a process writes into the output.
    """
    encoding = (os.environ if env is None else env).get("PYTHONIOENCODING", "utf-8")
    out, err = _stream(encoding), _stream(encoding)
    with (
        mock.patch.object(sys, "argv", ["peagle", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode()), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _environment(env),
        contextlib.chdir(cwd or Path.cwd()),
    ):
        code = _code_of_main()
    return subprocess.CompletedProcess(["peagle", *arguments], code, _text(out), _text(err))


def run_as_process(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """``peagle`` as a process; keywords go to ``subprocess.run``."""
    command = [sys.executable, "-m", "toolkit.cli", *arguments]
    # Python's view of the environment: a library that pytest loads puts COLUMNS beside it.
    options: dict[str, object] = {"env": dict(os.environ), "capture_output": True, "text": True,
                                  "timeout": 300}  # fmt: skip
    return subprocess.run(command, check=False, **{**options, **settings})  # type: ignore[call-overload,no-any-return]


def _code_of_main() -> int:
    """The exit code, as the interpreter makes it of what ``main()`` raises."""
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str] | None) -> Iterator[None]:
    """The whole environment for a while; as it was, afterwards."""
    with mock.patch.dict(os.environ, wanted or {}, clear=wanted is not None):
        yield


def _stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    """What was written, with line ends as ``text=True`` reads them."""
    stream.flush()
    raw: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return raw.decode(stream.encoding).replace("\r\n", "\n")
