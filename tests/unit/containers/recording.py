"""The entrypoint as a process, with a vLLM that records its call and exits."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.engine.process import free_port

SERVE = Path(__file__).resolve().parents[3] / "containers" / "peagle_serve"
RECORDER = """
import json, os, sys
with open(os.environ["RECORD"], "w", encoding="utf-8") as record:
    json.dump({"argv": sys.argv[1:], "path": sys.path, "environment": dict(os.environ)}, record)
"""
PORT = free_port()


@dataclass(frozen=True)
class Container:
    """Python with a vLLM that records its call."""

    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    def run(
        self, variables: dict[str, str] | dict[bytes, bytes], *arguments: str, serve: Path = SERVE
    ) -> subprocess.CompletedProcess[bytes]:
        self.record.unlink(missing_ok=True)
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder)}
        environment = {
            **{os.fsencode(name): os.fsencode(value) for name, value in base.items()},
            b"RECORD": os.fsencode(self.record),
            b"SAGEMAKER_BIND_TO_PORT": str(PORT).encode(),
            **{_bytes(name): _bytes(value) for name, value in variables.items()},
        }
        command = [sys.executable, str(serve), *(arguments or ("serve",))]
        return subprocess.run(
            command, env=environment, capture_output=True, check=False, cwd=self.folder
        )

    def argv(self, variables: dict[str, str]) -> list[str]:
        """vLLM's arguments."""
        done = self.run(variables)
        assert done.returncode == 1, done.stderr
        argv: list[str] = json.loads(self.record.read_text(encoding="utf-8"))["argv"]
        return argv


def documents(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    """The lines of the log."""
    assert done.stdout == b""
    return [json.loads(line) for line in done.stderr.decode().splitlines()]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def container_in(folder: Path) -> Container:
    """A container whose vLLM is in ``folder``."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(RECORDER)
    (folder / "vllm" / "__init__.py").touch()
    return Container(folder)
