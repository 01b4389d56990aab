"""``python3 containers/peagle_serve serve``, as SageMaker runs it: ``docker run IMAGE serve``.

The signal handlers are installed before anything else is imported. The kernel sends the first
process of a container only signals that it handles, so without them a container that is stopped in
its first moments would wait until it is killed.
"""

import os
import signal
import sys
import time
from types import FrameType

_STANDARD_ERROR = 2


def install_early_handler() -> None:
    """Exit with 0 at SIGTERM or SIGINT, until the supervisor handles the signals."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """Raise SystemExit, so that open files are closed. Writes the line of ``logs`` by itself, which
    may be half imported."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    line = (
        f'{{"time": "{stamp}.000Z", "level": "INFO", "stage": "ended", '
        '"message": "ended by a signal before vLLM started", "event": "ended", "exit_code": 0}\n'
    )
    os.write(_STANDARD_ERROR, line.encode())
    sys.exit(0)


if __name__ == "__main__":
    install_early_handler()
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    from peagle_serve.command import main

    main(sys.argv[1:])
