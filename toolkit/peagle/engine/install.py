"""Install vLLM for this machine's CPU: a virtual environment from a locked list, once per version.

Whoever looks for an engine sees a whole one or none: the marker is written last. What was
downloaded stays in pip's cache, so that a second try after a broken first one is quick.

The CPU engine's packages, for who puts them somewhere else: into a container image.
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
from peagle.engine.installed import ENGINE_VARIABLE, MARKER, Engine, engine_folder, find_engine
from peagle.errors import EngineError, EngineMissing, UserError
from peagle.images.build import Packages
from peagle.store import locked, read_json, write_json

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where torch for CPUs is, for a pip that does not find it in its own sources."""

NEEDED_BYTES = 3 * 2**30
"""What the environment takes on the disk, with room for unpacking."""

_PYTHONS = ((3, 11), (3, 12), (3, 13))
_TRY_SERVER = "import vllm.entrypoints.openai.api_server"

Progress = Callable[[str], object]


def lockable_versions() -> tuple[str, ...]:
    """The versions of vLLM for which there is a locked list."""
    return tuple(sorted(path.parent.name for path in _locks().glob("*/requirements.txt")))


def missing_libraries() -> tuple[str, ...]:
    """What vLLM needs from the system and does not find, as Debian packages."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return ("libnuma1",)
    return ()


def check_machine() -> None:
    """Raise UserError if no CPU engine can run on this machine, with what would mend it."""
    if platform.system() != "Linux":
        raise UserError(
            f"vLLM for a CPU exists for Linux only, and this is {platform.system()}",
            "use a Linux machine, or deploy to AWS",
        )
    missing = missing_libraries()
    if missing:
        raise UserError(
            f"vLLM needs the system's {' '.join(missing)}",
            f"as root: apt-get install {' '.join(missing)}; Fedora: dnf install numactl-libs",
        )


def install_engine(
    vllm: str, python: Path | None = None, progress: Progress = lambda line: None
) -> Engine:
    """Install vLLM of that version, unless it is there, and return it.

    ``python`` runs the engine; by default the Python of this program. Two installs of the same
    version wait for each other. Raises UserError for what the user can mend, EngineError for what
    pip or the engine refused.
    """
    lock = _locks() / vllm
    if not (lock / "requirements.txt").is_file():
        known = ", ".join(lockable_versions())
        raise UserError(f"there is no locked list for vLLM {vllm}", f"there is one for {known}")
    check_machine()
    folder = engine_folder(vllm)
    with _alone(folder, progress):
        if not is_installed(vllm):
            _check_python(python or Path(sys.executable))
            _check_disk(folder)
            _build(folder, lock, python or Path(sys.executable), progress)
            write_json(folder / MARKER, {"vllm": vllm, "lock": _digest(lock)})
    return Engine(folder / "bin" / "python", vllm)


def is_installed(vllm: str) -> bool:
    """Whether the engine is there, whole, and from today's locked list."""
    folder = engine_folder(vllm)
    return (folder / "bin" / "python").exists() and lock_of(folder, vllm) is not None


def lock_of(folder: Path, vllm: str) -> str | None:
    """The digest of the locked list that the engine in ``folder`` is from; ``None`` if it is not
    from today's."""
    marker = read_json(folder / MARKER) or {}
    found = marker.get("lock")
    return str(found) if found and found == _digest(_locks() / vllm) else None


def _locks() -> Path:
    return data_folder("containers") / "engine"


def _digest(lock: Path) -> str:
    texts = [(lock / name).read_bytes() for name in ("requirements.txt", "torch.txt")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


@contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
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
    progress(f"making a virtual environment in {folder}")
    if _run([str(python), "-I", "-m", "venv", str(folder)], log):
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{python} cannot make a virtual environment (see {log})",
            "Debian, Ubuntu: apt-get install python3-venv",
        )
    pip = [str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check"]
    pip += ["install", "--no-input", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    pip += ["--progress-bar", "off"]
    _install_torch(pip, lock / "torch.txt", log, progress)
    locked = ["--require-hashes", "-r", str(lock / "requirements.txt")]
    if _run([*pip, *locked], log, _counting(lock / "requirements.txt", progress)):
        raise _refused(log)
    progress("trying whether the server loads")
    if _run([str(folder / "bin" / "python"), "-I", "-c", _TRY_SERVER], log):
        raise _refused(log)


def _install_torch(pip: list[str], wanted: Path, log: Path, progress: Progress) -> None:
    progress("fetching torch for CPUs (about 190 MB)")
    if _run([*pip, "-r", str(wanted)], log) == 0:
        return
    if "No matching distribution found" not in log.read_text(encoding="utf-8"):
        raise _refused(log)
    elsewhere = ["--extra-index-url", PYTORCH_CPU_INDEX, "--retries", "1", "--timeout", "30"]
    if _run([*pip, *elsewhere, "-r", str(wanted)], log):
        raise EngineError(
            f"torch for CPUs is neither in pip's own sources nor found in {PYTORCH_CPU_INDEX}",
            f"let pip reach it, or name a folder with its wheel in PIP_FIND_LINKS; see {log}",
        )


def _run(
    command: Sequence[str], log: Path, each_line: Callable[[str], object] = lambda line: None
) -> int:
    """Run to the end, with all output in ``log``. An interrupt ends the program too."""
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
    """Turns pip's output into one line of progress for each tenth of the packages."""
    text = requirements.read_text(encoding="utf-8")
    total = len(re.findall(r"^\S+==", text, re.MULTILINE))
    seen = 0

    def each_line(line: str) -> None:
        nonlocal seen
        if line.startswith("Collecting "):
            seen += 1
            if seen % max(1, total // 10) == 0:
                progress(f"fetching packages: {seen} of {total}")
        elif line.startswith("Installing collected packages"):
            progress("installing the packages")

    return each_line


def _check_python(python: Path) -> None:
    ask = "import sys; print(*sys.version_info[:2])"
    try:
        said = subprocess.run(
            [str(python), "-I", "-c", ask], capture_output=True, text=True, check=True, timeout=60
        )
        version = tuple(int(part) for part in said.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        raise UserError(f"{python} is no Python that runs", "name another with --python") from None
    if version not in _PYTHONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _PYTHONS)
        raise UserError(
            f"{python} is Python {'.'.join(map(str, version))}; the engine needs one of {known}",
            "name another with --python",
        )


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise UserError(
            f"the engine needs {NEEDED_BYTES / 2**30:.0f} GiB below {folder.parent}, where "
            f"{free / 2**30:.1f} GiB are free",
            "make room, or set PEAGLE_HOME to another disk",
        )


def _refused(log: Path) -> EngineError:
    lines = log.read_text(encoding="utf-8").splitlines()
    errors = [line for line in lines if line.startswith("ERROR:") or re.match(r"\w*Error: ", line)]
    said = (errors or lines or ["no word"])[-1].removeprefix("ERROR: ")
    return EngineError(f"the engine was not installed: {said}", f"the whole log: {log}")


_ASK = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('purelib'))"


def engine_packages(vllm: str) -> Packages:
    """The packages of the engine with that version of vLLM.

    Raises EngineMissing when there is none, or none from the locked list: what goes into an image
    must be what the list says.
    """
    engine = find_engine(vllm)
    lock = lock_of(engine.python.parent.parent, vllm)
    if lock is None:
        raise EngineMissing(
            f"the engine {engine.python} is not from the locked list, and an image's must be",
            f"unset {ENGINE_VARIABLE} if it is set, then peagle engine install --vllm {vllm}",
        )
    asked = [str(engine.python), "-I", "-c", _ASK]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    version, _, folder = said.strip().partition(" ")
    return Packages(vllm, version, Path(folder), lock)
