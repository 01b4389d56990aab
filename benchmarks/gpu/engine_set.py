"""Which vLLM goes to the host, and with what: ``engine/<version>/engine.toml`` and the lock."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ENGINES = Path(__file__).with_name("engine")
PROGRAMS = "bin"
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(34, 4, -1)]
_PLATFORMS += [f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")]


@dataclass(frozen=True)
class EngineSet:
    """One vLLM: what the host has, what is left out and why, and files that are not needed."""

    folder: Path
    vllm: str
    torch: str
    python: str
    newest: str
    folders_on_path: tuple[str, ...]
    host: dict[str, str]
    left_out: dict[str, str]
    met_otherwise: dict[str, str]
    files_left_out: tuple[str, ...]
    programs: tuple[str, ...]

    @property
    def lock(self) -> Path:
        """The locked list of what is carried, with hashes."""
        return self.folder / "requirements.txt"


def engine_set(version: str) -> EngineSet:
    """What ``engine.toml`` says. Raises FileNotFoundError for a version that has none."""
    folder = ENGINES / version
    said = tomllib.loads((folder / "engine.toml").read_text(encoding="utf-8"))
    return EngineSet(
        folder=folder,
        vllm=said["vllm"],
        torch=said["torch"],
        python=said["python"],
        newest=said["newest"],
        folders_on_path=tuple(said["folders_on_path"]),
        host=said["host"],
        left_out=said["left_out"],
        met_otherwise=said["met_otherwise"],
        files_left_out=tuple(said["files"]["left_out"]),
        programs=tuple(said["files"]["programs"]),
    )


def lock(engine: EngineSet, uv: str = "uv") -> None:
    """Write the lock anew: vLLM's whole need on that day, less what stays behind."""
    with tempfile.TemporaryDirectory() as folder:
        asked, excluded = Path(folder, "in.txt"), Path(folder, "excludes.txt")
        asked.write_text(f"vllm=={engine.vllm}\n")
        excluded.write_text("\n".join([*engine.host, *engine.left_out]))
        command = [uv, "pip", "compile", str(asked), "--excludes", str(excluded), "--quiet",
                   "--python-version", engine.python, "--python-platform", "x86_64-manylinux_2_34",
                   "--exclude-newer", engine.newest, "--generate-hashes", "--no-header",
                   "--no-annotate", "--output-file", str(engine.lock)]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def install(engine: EngineSet, tree: Path) -> None:
    """All that the lock names in one folder, as pip unpacks it, less the files left out."""
    platforms = [token for name in _PLATFORMS for token in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
               "--require-hashes", "--only-binary", ":all:", "--implementation", "cp",
               "--python-version", engine.python, *platforms, "--target", str(tree),
               "--requirement", str(engine.lock)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"pip could not bring {engine.lock}:\n{done.stderr[-4000:]}")
    for pattern in engine.files_left_out:
        for path in list(tree.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (tree / PROGRAMS).iterdir() if (tree / PROGRAMS).is_dir() else ():
        if path.name not in engine.programs:
            path.unlink()


def locked(engine: EngineSet) -> dict[str, str]:
    """Name and version of all that the lock names."""
    lines = engine.lock.read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}
