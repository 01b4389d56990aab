"""A folder goes to the host in pieces and comes out as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.gpu import carry, pieces


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    for name, text in (("vllm/a.py", "A = 1\n"), ("bin/ninja", "#!/bin/sh\n")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "bin" / "ninja").chmod(0o755)
    return place


def test_the_last_piece_unpacks_and_says_what_a_shell_needs(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(carry, "try_out", lambda root, version: tried.append(version))
    content = tmp_path / "tree.tar"
    carry.archive(tree, content)
    notes = {"folders": ["", "dsl/packages"], "programs": "bin", "vllm": "0.26.0"}
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 4096)
    _, files = pieces.pack(content, tmp_path / "out", "vllm-0.26.0", 9000, notes)
    root = tmp_path / "root"

    for file in files:
        assert not tried
        carry.take(file, root)

    assert tried == ["0.26.0"]
    site = root / "site"
    assert (site / "vllm" / "a.py").read_text() == "A = 1\n"
    assert (site / "vllm" / "__pycache__").is_dir(), "bytecode is made before anything is timed"
    assert os.access(site / "bin" / "ninja", os.X_OK)
    said = (root / "environment").read_text()
    assert f'PYTHONPATH="{site}:{site}/dsl/packages:' in said
    assert f'PATH="{site}/bin:$PATH"' in said
    assert "1 of 1 pieces are here" in capsys.readouterr().out


def test_the_same_folder_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    carry.archive(tree, tmp_path / "one.tar")
    os.utime(tree / "vllm" / "a.py", (1, 1))
    carry.archive(tree, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
