"""A machine with a fake ``docker``."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LABELS = {"peagle.pair": "peagle/tiny+p-eagle", "peagle.runtime": "cpu", "peagle.vllm": "0.28.0",
          "org.opencontainers.image.base.name": "base"}  # fmt: skip


@dataclass(frozen=True)
class FakeDocker:
    """The fake ``docker``: the first matching answer counts."""

    folder: Path

    def answers(self, *words: str, code: int = 0, out: Any = "", err: str = "") -> None:
        file = self.folder / "answers.json"
        images = json.loads(file.read_text()) if file.exists() else []
        text = out if isinstance(out, str) else json.dumps(out)
        file.write_text(json.dumps([*images, [words, code, text, err]]))

    @property
    def calls(self) -> list[dict[str, Any]]:
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def has_image(self, name: str, labels: dict[str, str] | None = None, **more: Any) -> None:
        config = {"Labels": LABELS if labels is None else labels, "User": "10001:10001"}
        image = {"Id": f"sha256:{name}", "Created": "2026-11-21T00:00:00Z", "Size": 2_000_000,
                 "Config": config, "RootFS": {"Layers": ["a", "b"]}, **more}  # fmt: skip
        self.answers("image", "inspect", name, out=[image])


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    """The only ``docker`` of this machine."""
    folder = tmp_path / "docker"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("fake_docker.py"), folder / "fake_docker.py")
    command = folder / "docker"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {folder}/fake_docker.py "$@"\n')
    command.chmod(0o755)
    (folder / "answers.json").write_text("[]")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return FakeDocker(folder)
