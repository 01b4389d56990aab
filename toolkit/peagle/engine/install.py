"""Install vLLM for this machine's CPU: one virtual environment per version, from a lock file.

The marker is written last, so a partial installation is never used. Downloads stay in pip's cache:
a second attempt is quick. An image for CPUs contains the same packages.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from peagle.data import data_folder
from peagle.engine.machine import (
    ENGINE_VARIABLE,
    MARKER,
    Engine,
    engine_folder,
    find_engine,
    install_fix,
    run_python,
)
from peagle.engine.torch_wheel import PYTHONS, install_torch, python_version
from peagle.errors import EngineError, EngineMissing, UserError
from peagle.images.build import Packages
from peagle.images.docker import Progress
from peagle.store import locked, read_json, write_json

NEEDED_BYTES = 3 * 2**30
"""Disk space for the environment and for unpacking."""

_ANOTHER_PYTHON = "choose another Python with --python"
_IMPORT_SERVER = "import vllm.entrypoints.openai.api_server"


def lockable_versions() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in _locks().glob("*/requirements.txt")))


def missing_libraries() -> tuple[str, ...]:
    """The system packages that vLLM needs and that are missing, by their Debian names."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return ("libnuma1",)
    return ()


def check_machine() -> None:
    """Raise UserError if no CPU engine can run on this machine."""
    if platform.system() != "Linux":
        raise UserError(
            f"vLLM for CPUs supports Linux only; this is {platform.system()}",
            "use a Linux machine, or deploy to AWS",
            "system-unsupported",
        )
    missing = missing_libraries()
    if missing:
        raise UserError(
            f"vLLM needs the system package {' '.join(missing)}",
            f"install it as root: apt-get install {' '.join(missing)} (Fedora: numactl-libs)",
            "system-package-missing",
        )


def install_engine(
    vllm: str, python: Path | None = None, progress: Progress = lambda line: None
) -> Engine:
    """Install that version of vLLM, unless it is installed, and return it.

    ``python`` runs the engine; by default the Python of this program. Only one process installs a
    version at a time; others wait. Raises UserError for an unsuitable machine, Python or disk, and
    EngineError when pip or the engine fails.
    """
    lock = _locks() / vllm
    if not (lock / "requirements.txt").is_file():
        known = ", ".join(lockable_versions())
        raise UserError(
            f"vLLM {vllm} cannot be installed: no lock file",
            f"choose --vllm from {known}",
            "unknown-version",
        )
    check_machine()
    folder = engine_folder(vllm)
    with _exclusive(folder, progress):
        if not is_installed(vllm):
            _check_python(python or Path(sys.executable))
            _check_disk(folder)
            _build(folder, lock, python or Path(sys.executable), progress)
            write_json(folder / MARKER, {"vllm": vllm, "lock": _digest(lock)})
    return Engine(folder / "bin" / "python", vllm)


def is_installed(vllm: str) -> bool:
    """Whether the engine is completely installed from this toolkit's lock file."""
    folder = engine_folder(vllm)
    return (
        vllm in lockable_versions()
        and (folder / "bin" / "python").exists()
        and lock_of(folder, vllm) is not None
    )


def lock_of(folder: Path, vllm: str) -> str | None:
    """The digest of the lock file of the engine in ``folder``; ``None`` if it differs
    from this toolkit's, or cannot be read."""
    try:
        marker = read_json(folder / MARKER)
    except ValueError:
        return None
    found = marker.get("lock") if isinstance(marker, dict) else None
    return str(found) if found and found == _digest(_locks() / vllm) else None


def _locks() -> Path:
    return data_folder("containers") / "engine"


def _digest(lock: Path) -> str:
    texts = [(lock / name).read_bytes() for name in ("requirements.txt", "torch.txt")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


@contextmanager
def _exclusive(folder: Path, progress: Progress) -> Iterator[None]:
    lock = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            progress("waiting for another installation of this engine")
            held.enter_context(locked(lock))
        yield


def _build(folder: Path, lock: Path, python: Path, progress: Progress) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_name(f"{folder.name}.log")
    log.write_text("", encoding="utf-8")
    progress(f"creating a virtual environment in {folder}")
    if _run([str(python), "-I", "-m", "venv", str(folder)], log):
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{python} cannot create a virtual environment (log: {log})",
            "install its venv module (Debian, Ubuntu: apt-get install python3-venv)",
        )
    pip = [str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check"]
    pip += ["install", "--no-input", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    pip += ["--progress-bar", "off"]
    progress("downloading torch for CPUs (about 190 MB)")
    install_torch(pip, lock / "torch.txt", lambda command: _run(command, log), log)
    locked = ["--require-hashes", "-r", str(lock / "requirements.txt")]
    if _run([*pip, *locked], log, _counting(lock / "requirements.txt", progress)):
        raise _install_error(log)
    progress("checking that the server can be imported")
    if _run([str(folder / "bin" / "python"), "-I", "-c", _IMPORT_SERVER], log):
        raise _install_error(log)


def _run(
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


def _check_python(python: Path) -> None:
    found = python_version(python)
    if not found:
        raise UserError(f"{python} is not a working Python", _ANOTHER_PYTHON, "unusable-python")
    if found not in PYTHONS:
        raise UserError(
            f"{python} is Python {found}; the engine needs one of {', '.join(PYTHONS)}",
            _ANOTHER_PYTHON,
            "unusable-python",
        )


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise UserError(
            f"the engine needs {NEEDED_BYTES / 2**30:.0f} GiB in {folder.parent}, which has "
            f"{free / 2**30:.1f} GiB free",
            "free some space, or set PEAGLE_HOME to a folder on another disk",
            "disk-full",
        )


def _install_error(log: Path) -> EngineError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR:") or re.match(r"\w*Error: ", line)]
    last = (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")
    return EngineError(f"the installation failed: {last}", f"read the log: {log}")


_PRINT_PURELIB = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('purelib'))"
)


def engine_packages(vllm: str) -> Packages:
    """The packages of the engine with that version of vLLM, for an image.

    Raises EngineMissing unless it is installed from the lock file.
    """
    engine = find_engine(vllm)
    lock = lock_of(engine.python.parent.parent, vllm)
    if lock is None:
        raise EngineMissing(
            f"the engine {engine.python} is not from the lock file, as an image requires",
            install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine"),
        )
    version, _, folder = run_python(engine.python, _PRINT_PURELIB).partition(" ")
    return Packages(vllm, version, Path(folder), lock)
