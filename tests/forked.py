"""``peagle`` as a process that is a fork of the tests' own: it can be interrupted and killed, and
begins without the second of processor time that its imports take."""

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from typing import NoReturn

from peagle.cli.main import main


@dataclass(frozen=True)
class Forked:
    """A running command. Output that a test does not read must fit into the buffer of a pipe."""

    pid: int
    stdout: TextIOWrapper
    stderr: TextIOWrapper

    def interrupted_at(self, line: str) -> tuple[int, str]:
        """Press Ctrl-C as soon as a line of stderr begins like this; its exit code, and all of
        stderr."""
        output = ""
        for written in self.stderr:
            output += written
            if written.startswith(line):
                os.kill(self.pid, signal.SIGINT)
                break
        output += self.stderr.read()
        return self.wait(), output

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it, when all is read that is needed."""
        for stream in (self.stdout, self.stderr):
            stream.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(*arguments: str, environment: Mapping[str, str]) -> Forked:
    """Start ``peagle`` with these arguments."""
    out, err = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(arguments, environment, (os.open(os.devnull, os.O_RDONLY), out[1], err[1]))
    for _, writing in (out, err):
        os.close(writing)
    return Forked(pid, os.fdopen(out[0], encoding="utf-8"), os.fdopen(err[0], encoding="utf-8"))


def _become(
    arguments: tuple[str, ...], environment: Mapping[str, str], files: tuple[int, int, int]
) -> NoReturn:
    """Be the program, and end as it does, without what the tests do when they end."""
    code = 1
    try:
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        sys.argv = ["peagle", *arguments]
        os.environ.clear()
        os.environ.update(environment)
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)
