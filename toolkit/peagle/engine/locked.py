"""A virtual environment below ``$PEAGLE_HOME``, from a lock file with hashes.

Only one process makes an environment at a time. All output is in a log beside it. Downloads stay in
pip's cache: a second attempt is quick.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from peagle.engine.torch_wheel import PYTHONS, python_version
from peagle.errors import EngineError, Fix, UserError
from peagle.images.docker import Progress
from peagle.store import locked

_ANOTHER_PYTHON = "choose another Python with --python"


@contextmanager
def exclusive_environment(folder: Path, progress: Progress) -> Iterator[None]:
    """Wait for other installations into ``folder``, and keep them out."""
    lock = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            progress("waiting for another installation of it")
            held.enter_context(locked(lock))
        yield


def new_environment(folder: Path, python: Path, progress: Progress) -> tuple[list[str], Path]:
    """Make an empty environment, in place of one that is there.

    Returns ``pip install`` with its options, and the log. Raises UserError when Python lacks venv.
    The interpreter named in its programs is at the folder's real path: a link to it may be removed.
    """
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_name(f"{folder.name}.log")
    log.write_text("", encoding="utf-8")
    progress(f"creating a virtual environment in {folder}")
    if run_logged([str(python), "-I", "-m", "venv", str(folder)], log):
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{python} cannot create a virtual environment (log: {log})",
            Fix(
                "install its venv module as root (Debian, Ubuntu)",
                ("apt-get", "install", "python3-venv"),
            ),
            code="unusable-python",
        )
    pip = [str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check"]
    pip += ["install", "--no-input", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    return [*pip, "--progress-bar", "off"], log


def install_locked(pip: Sequence[str], requirements: Path, log: Path, progress: Progress) -> None:
    """Install what the lock file lists. Raises EngineError."""
    locked = ["--require-hashes", "-r", str(requirements)]
    if run_logged([*pip, *locked], log, _counting(requirements, progress)):
        raise install_error(log)


def check_import(folder: Path, statement: str, log: Path) -> None:
    """Raise EngineError unless the environment can run ``statement``."""
    if run_logged([str(folder / "bin" / "python"), "-I", "-c", statement], log):
        raise install_error(log)


def run_logged(
    command: Sequence[str], log: Path, each_line: Callable[[str], object] = lambda line: None
) -> int:
    """Run ``command`` with all output in ``log``; an interrupt ends it too."""
    with (
        log.open("a", encoding="utf-8") as stream,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as program,
    ):
        try:
            for line in program.stdout or ():
                stream.write(line)
                each_line(line)
        except BaseException:
            program.terminate()
            raise
    return program.returncode


def _counting(requirements: Path, progress: Progress) -> Callable[[str], None]:
    """Reports progress from pip's output, one line per tenth of the packages."""
    text = requirements.read_text(encoding="utf-8")
    total = len(re.findall(r"^\S+==", text, re.MULTILINE))
    seen = 0

    def each_line(line: str) -> None:
        nonlocal seen
        if line.startswith("Collecting "):
            seen += 1
            if seen % max(1, total // 10) == 0:
                progress(f"downloading packages: {seen} of {total}")
        elif line.startswith("Installing collected packages"):
            progress("installing the packages")

    return each_line


def check_python(python: Path) -> None:
    """Raise UserError unless the environments can use this Python."""
    found = python_version(python)
    if not found:
        raise UserError(f"{python} is not a working Python", _ANOTHER_PYTHON, "unusable-python")
    if found not in PYTHONS:
        raise UserError(
            f"{python} is Python {found}; one of {', '.join(PYTHONS)} is needed",
            _ANOTHER_PYTHON,
            "unusable-python",
        )


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Raise UserError when the disk of ``folder`` has less than ``needed`` bytes free."""
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise UserError(
            f"{what} needs {needed / 2**30:.1f} GiB in {folder.parent}, which has "
            f"{free / 2**30:.1f} GiB free",
            "free some space, or set PEAGLE_HOME to a folder on another disk",
            "disk-full",
        )


def install_error(log: Path) -> EngineError:
    """The error of a failed installation, from the last error line of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR:") or re.match(r"\w*Error: ", line)]
    last = (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")
    return EngineError(
        f"the installation failed: {last}", f"read the log: {log}", code="installation-failed"
    )
