"""``python3 containers/peagle_serve serve``, as SageMaker runs it: ``docker run IMAGE serve``.

The signal handlers are installed before anything else is imported. The kernel sends the first
process of a container only signals that it handles, so without them a container that is stopped in
its first moments would wait until it is killed.
"""

import os
import signal
import sys

FAILED = 70
"""The exit code after an unexpected error (EX_SOFTWARE)."""


def _report(error: BaseException) -> None:
    """Log what failed and where, without the text of the error, which may hold a secret."""
    from peagle_serve.logs import ENDED, Log, Redactor

    places, step = [], error.__traceback__
    while step is not None:
        places.append(f"{os.path.basename(step.tb_frame.f_code.co_filename)}:{step.tb_lineno}")
        step = step.tb_next
    reason = f"{type(error).__name__} at {' > '.join(places[-6:])}"
    if isinstance(error, OSError):
        reason += f" ({error.strerror})"
    log = Log(Redactor({}))
    log.stage = ENDED
    log.error(
        f"the entrypoint failed: {reason}",
        "report this line, with the variables and files of the container",
        event="crash", cause="entrypoint", restarts=0, reason=reason, exit_code=FAILED,
    )  # fmt: skip


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    try:
        from peagle_serve.command import main

        main(sys.argv[1:])
    except Exception as error:
        _report(error)
        sys.exit(FAILED)
