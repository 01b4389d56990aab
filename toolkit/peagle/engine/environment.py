"""A virtual environment below ``$PEAGLE_HOME``, which uv makes from lock files with hashes.

uv takes packages from the indexes and folders that pip is configured with. Only one process makes
an environment at a time. All output is in a log beside it. Downloads stay in uv's cache: a second
attempt is quick.

torch for CPUs comes from one source at a time, since several indexes may have the same version:
from the folders of ``find-links`` without any index, else by its address on PyTorch's index.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from peagle.engine.machine import run_python
from peagle.errors import EngineError, UserError
from peagle.images.docker import Progress
from peagle.store import locked

PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python that the environments run with."""

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes torch for CPUs; the hashes of the lock are from there."""

_ANOTHER_PYTHON = "choose another Python with --python"
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
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            progress("waiting for another installation of it")
            held.enter_context(locked(lock))
        yield


def check_environment(python: Path, folder: Path, needed: int, what: str) -> None:
    """Raise UserError unless this Python can be used, and the disk of ``folder`` has ``needed``
    bytes free."""
    version = python_version(python)
    if version not in PYTHONS:
        problem = f"Python {version}; one of {', '.join(PYTHONS)} is needed" if version else ""
        message = f"{python} is {problem or 'not a working Python'}"
        raise UserError(message, _ANOTHER_PYTHON, "unusable-python")
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
        """Install the wheel of torch that ``lock`` lists for this Python and machine.

        Raises UserError when it lists none, and EngineError when the wheel cannot be downloaded or
        differs from its hash.
        """
        version, machine = python_version(self.python), platform.machine()
        wheels = _LOCKED_TORCH.findall(lock.read_text(encoding="utf-8"))
        pythons = {python: (torch, hash_) for torch, python, on, hash_ in wheels if on == machine}
        if version not in pythons:
            raise UserError(
                f"no wheel of torch is locked for Python {version} on {machine}",
                f"use Python {', '.join(pythons)}"
                if pythons
                else "use a machine with x86_64 or aarch64",
                "unusable-python",
            )
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
    """What pip is configured with, by its files and its variables, which count more."""
    settings: dict[str, str] = {}
    printed = _pip_config()
    for section in ("global", "install"):
        for line in printed:
            name, _, value = line.partition("=")
            with suppress(ValueError, SyntaxError):
                if name.startswith(f"{section}."):
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


def _pip_config() -> Sequence[str]:
    """What ``pip config list`` prints; nothing where this Python has no pip."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()
    return ()


def install_error(log: Path) -> EngineError:
    """The error of a failed installation, from the last error line of its log."""
    lines = [line.strip() for line in
             log.read_text(encoding="utf-8", errors="replace").splitlines()]  # fmt: skip
    errors = [line for line in lines if _ERROR.match(line)]
    last = re.sub(r"^(error|cause|ERROR): ", "", (errors or lines or ["no output"])[-1])
    return EngineError(
        f"the installation failed: {last}", f"read the log: {log}", code="installation-failed"
    )
