"""``python3 containers/peagle_serve serve``, as SageMaker runs it: ``docker run IMAGE serve``.

The signal handlers are installed before anything else is imported. The kernel sends the first
process of a container only signals that it handles, so without them a container that is stopped in
its first moments would wait until it is killed.
"""

import contextlib
import os
import signal
import sys
import time
from types import FrameType

FAILED = 70
"""The exit code after an unexpected error (EX_SOFTWARE)."""


def _end(number: int, frame: FrameType | None) -> None:
    """Exit with 0, until the supervisor handles the signals; open files are closed."""
    _write("INFO", message="ended by a signal before vLLM started", event="ended", exit_code=0)
    sys.exit(0)


def _report(error: BaseException) -> None:
    """Write what failed and where, without the text of the error, which may hold a secret."""
    places, step = [], error.__traceback__
    while step is not None:
        places.append(f"{os.path.basename(step.tb_frame.f_code.co_filename)}:{step.tb_lineno}")
        step = step.tb_next
    what = f"{type(error).__name__} at {' > '.join(places[-6:])}"
    if isinstance(error, ImportError) or (isinstance(error, OSError) and error.strerror):
        what += f" ({error.strerror if isinstance(error, OSError) else error.msg})"
    _write(
        "ERROR", message=f"the entrypoint failed: {what}", event="crash", restarts=0, reason=what,
        cause="entrypoint", fix="report this line, with the variables and files of the container",
        exit_code=FAILED,
    )  # fmt: skip


def _write(level: str, **fields: str | int) -> None:
    """Write a line as ``logs`` does, without that module: importing it may have failed."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    fields = {"time": stamp, "level": level, "stage": "ended", **fields}
    shown = (
        f'"{name}": {value}' if isinstance(value, int) else f'"{name}": "{_plain(value)}"'
        for name, value in fields.items()
    )
    with contextlib.suppress(OSError):  # the reader has gone
        os.write(2, f"{{{', '.join(shown)}}}\n".encode())


def _plain(text: str) -> str:
    return "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in text)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    try:
        from peagle_serve.command import main

        main(sys.argv[1:])
    except Exception as error:
        _report(error)
        sys.exit(FAILED)
