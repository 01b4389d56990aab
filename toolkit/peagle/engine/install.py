"""Install vLLM for this machine's CPU: a virtual environment below ``$PEAGLE_HOME``, which uv makes
from lock files with hashes, with pip's indexes and folders. The marker is written last.

torch for CPUs comes from one source at a time, since several indexes may have the same version:
from the folders of ``find-links`` without any index, else by its address on PyTorch's index.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

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
from peagle.errors import EngineError, EngineMissing, Fix, UserError
from peagle.images.build import Packages
from peagle.images.docker import Progress
from peagle.store import locked, read_json, write_json

PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python that the environments run with."""

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes torch for CPUs; the hashes of the lock are from there."""

NEEDED_BYTES = 3 * 2**30
"""Disk space for the engine's environment and for unpacking."""

_LOCKED_TORCH = re.compile(
    r'^torch==(\S+) ; python_version == "(.+?)" and platform_machine == "(.+?)" '
    r"--hash=(sha256:[0-9a-f]{64})$",
    re.MULTILINE,
)
_ERROR = re.compile(r"(?:error|cause|ERROR): |\w*Error: ")


@contextmanager
def exclusive_environment(folder: Path, progress: Progress) -> Iterator[None]:
    """Wait for other installations into ``folder``, and keep them out."""
    lock = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            progress("waiting for another installation of it")
            stack.enter_context(locked(lock))
        yield


def check_environment(python: Path, folder: Path, needed: int, what: str) -> None:
    """Raise UserError unless this Python can be used, and the disk of ``folder`` has ``needed``
    bytes free."""
    version = python_version(python)
    if version not in PYTHONS:
        problem = f"Python {version}; one of {', '.join(PYTHONS)} is needed" if version else ""
        message = f"{python} is {problem or 'not a working Python'}"
        raise UserError(message, "choose another Python with --python", "unusable-python")
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise UserError(
            f"{what} needs {needed / 2**30:.1f} GiB in {folder.parent}, which has "
            f"{free / 2**30:.1f} GiB free",
            "free some space, or set PEAGLE_HOME to a folder on another disk",
            "disk-full",
        )


def python_version(python: Path) -> str:
    """``3.11`` of that Python; "" when it does not run."""
    return run_python(python, "import sys; print('%d.%d' % sys.version_info[:2])")


class Environment:
    """A new environment, in place of one that is there; at the folder's real path, since a link to
    it may be removed. Raises EngineError when uv fails."""

    def __init__(self, folder: Path, python: Path, progress: Progress) -> None:
        self.folder, self._progress = folder.resolve(), progress
        self.python = self.folder / "bin" / "python"
        self.log = self.folder.with_name(f"{self.folder.name}.log")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.write_text("", encoding="utf-8")
        from uv import find_uv_bin

        pip = pip_settings()
        self._uv, self._variables = find_uv_bin(), {**os.environ, **uv_variables(pip)}
        no_index = pip.get("no-index", "0").lower() in ("1", "true", "yes", "on")
        self._index = ("--no-index",) if no_index else ()
        progress(f"creating a virtual environment in {self.folder}")
        if self._run(self._uv, "venv", "--no-project", "--python", str(python), str(self.folder)):
            raise install_error(self.log)

    def install(self, requirements: Path) -> None:
        """Install what the lock file lists."""
        self._progress("downloading and installing the packages")
        if self._pip(*self._index, "-r", str(requirements)):
            raise install_error(self.log)

    def install_torch(self, lock: Path) -> None:
        """Install the wheel of torch that ``lock`` lists for this Python and machine. Raises
        UserError when it lists none, and EngineError when the wheel cannot be downloaded or differs
        from its hash."""
        version, machine = python_version(self.python), platform.machine()
        wheels = _LOCKED_TORCH.findall(lock.read_text(encoding="utf-8"))
        pythons = {python: (torch, hash_) for torch, python, on, hash_ in wheels if on == machine}
        if version not in pythons:
            message = f"no wheel of torch is locked for Python {version} on {machine}"
            fix = f"use Python {', '.join(pythons)} on x86_64 or aarch64"
            raise UserError(message, fix, "unusable-python")
        torch, hash_ = pythons[version]
        abi = f"cp{version.replace('.', '')}"
        wheel = f"torch-{torch}-{abi}-{abi}-manylinux_2_28_{machine}.whl"
        by_address = self.folder / "torch.txt"
        address = f"torch @ {PYTORCH_CPU_INDEX}/{quote(wheel)} --hash={hash_}\n"
        by_address.write_text(address, encoding="utf-8")
        self._progress("downloading torch for CPUs (about 190 MB)")
        for requirements in (lock, by_address):
            if self._pip("--no-index", "-r", str(requirements)) == 0:
                return
            if "Hash mismatch" in self.log.read_text(encoding="utf-8", errors="replace"):
                raise EngineError(
                    f"{wheel} is not the locked wheel: its hash differs",
                    f"remove that file or use another source; the log is {self.log}",
                    "wheel-differs",
                )
        raise EngineError(
            f"the wheel {wheel} is missing: no folder of PIP_FIND_LINKS has it, and "
            f"{PYTORCH_CPU_INDEX}, where it comes from, cannot be reached (log: {self.log})",
            "let this machine reach it, or set PIP_FIND_LINKS to a folder or page with the wheel",
            "wheel-missing",
        )

    def check_import(self, statement: str) -> None:
        """Raise EngineError unless the environment can run ``statement``."""
        if self._run(str(self.python), "-I", "-c", statement):
            raise install_error(self.log)

    def _pip(self, *options: str) -> int:
        return self._run(
            self._uv, "pip", "install", "--python", str(self.python), "--no-deps", "--only-binary",
            ":all:", "--require-hashes", *options,
        )  # fmt: skip

    def _run(self, *command: str) -> int:
        """Run a command with all output in the log; an interrupt ends it too."""
        with self.log.open("ab") as stream, subprocess.Popen(
            command, env=self._variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
        ) as program:  # fmt: skip
            try:
                return program.wait()
            except BaseException:
                program.terminate()
                raise


def pip_settings() -> dict[str, str]:
    """What pip is configured with, by its files and its variables, which count more; only the
    variables where this Python has no pip."""
    settings: dict[str, str] = {}
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        for line in sorted(done.stdout.splitlines()):  # those of [install] count more
            name, _, value = line.partition("=")
            if name.startswith(("global.", "install.")):
                with suppress(ValueError, SyntaxError):
                    settings[name.partition(".")[2]] = str(ast.literal_eval(value))
    return settings | {
        name[len("PIP_") :].lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }


def uv_variables(pip: Mapping[str, str]) -> dict[str, str]:
    """uv's variables for the indexes, folders and connections of pip's settings. They may hold
    passwords, so no argv has them. What is set for uv itself counts more."""
    variables = {
        "UV_DEFAULT_INDEX": pip.get("index-url", ""),
        "UV_INDEX": " ".join(pip.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(pip.get("find-links", "").split()),
        "UV_INSECURE_HOST": " ".join(pip.get("trusted-host", "").split()),
        "UV_HTTP_TIMEOUT": pip.get("timeout", pip.get("default-timeout", "")),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "ALL_PROXY": pip.get("proxy", ""),
        # Each file has its hash, so it does not matter which index has it.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    return {name: text for name, text in variables.items() if text and name not in os.environ}


def install_error(log: Path) -> EngineError:
    """The error of a failed installation, from the last error line of its log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if _ERROR.match(line)]
    last = re.sub(r"^(error|cause|ERROR): ", "", (errors or lines or ["no output"])[-1])
    fix = f"read the log: {log}"
    return EngineError(f"the installation failed: {last}", fix, code="installation-failed")


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
        message = f"vLLM for CPUs supports Linux only; this is {platform.system()}"
        raise UserError(message, "use a Linux machine, or deploy to AWS", "system-unsupported")
    if missing := missing_libraries():
        fix = Fix("install it as root (Fedora: numactl-libs)", ("apt-get", "install", *missing))
        message = f"vLLM needs the system package {' '.join(missing)}"
        raise UserError(message, fix, "system-package-missing")


def install_engine(
    vllm: str, python: Path | None = None, progress: Progress = lambda line: None
) -> Engine:
    """Install that version of vLLM, unless it is installed, and return it. Raises UserError for an
    unsuitable machine, Python or disk, and EngineError when uv or the engine fails."""
    lock = _locks() / vllm
    if not (lock / "requirements.txt").is_file():
        message = f"vLLM {vllm} cannot be installed: no lock file"
        fix = f"choose --vllm from {', '.join(lockable_versions())}"
        raise UserError(message, fix, "unknown-version")
    check_machine()
    folder = engine_folder(vllm)
    with exclusive_environment(folder, progress):
        if not is_installed(vllm):
            python = python or Path(sys.executable)
            check_environment(python, folder, NEEDED_BYTES, "the engine")
            environment = Environment(folder, python, progress)
            environment.install_torch(lock / "torch.txt")
            environment.install(lock / "requirements.txt")
            progress("checking that the server can be imported")
            environment.check_import("import vllm.entrypoints.openai.api_server")
            write_json(folder / MARKER, {"vllm": vllm, "lock": _digest(lock)})
    return Engine(folder / "bin" / "python", vllm)


def is_installed(vllm: str) -> bool:
    """Whether the engine is completely installed from this toolkit's lock file."""
    folder = engine_folder(vllm)
    is_there = vllm in lockable_versions() and (folder / "bin" / "python").exists()
    return is_there and lock_of(folder, vllm) is not None


def lock_of(folder: Path, vllm: str) -> str | None:
    """The digest of the lock file of the engine in ``folder``; ``None`` if it differs
    from this toolkit's, or cannot be read."""
    try:
        marker = read_json(folder / MARKER)
    except ValueError:
        return None
    digest = marker.get("lock") if isinstance(marker, dict) else None
    return str(digest) if digest and digest == _digest(_locks() / vllm) else None


def _locks() -> Path:
    return data_folder("containers") / "engine"


def _digest(lock: Path) -> str:
    texts = [(lock / name).read_bytes() for name in ("requirements.txt", "torch.txt")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def engine_packages(vllm: str) -> Packages:
    """The packages of the engine with that version of vLLM, for an image. Raises EngineMissing
    unless it is installed from the lock file."""
    engine = find_engine(vllm)
    lock = lock_of(engine.python.parent.parent, vllm)
    if lock is None:
        raise EngineMissing(
            f"the engine {engine.python} is not from the lock file, as an image requires",
            install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine"),
        )
    folder = run_python(engine.python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    return Packages(vllm, python_version(engine.python), Path(folder), lock)
