"""A large file in pieces: what arrives is what was sent, or is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.gpu import pieces
from benchmarks.gpu.pieces import DamagedParcel

PIECE = 64 << 10


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 50_000)


def written(path: Path, seed: int = 1) -> Path:
    path.write_bytes(random.Random(seed).randbytes(300_000) + b"\0" * 200_000)
    return path


def test_pieces_arrive_in_any_order_and_make_the_same_file(tmp_path: Path) -> None:
    content = written(tmp_path / "content")
    parcel, files = pieces.pack(content, tmp_path / "out", "vllm-0.26.0", PIECE, {"a": ["b"]})
    assert len(files) > 3
    assert all(file.stat().st_size <= PIECE for file in files)
    assert files[0].name == "vllm-0.26.0.1"

    lacking = [pieces.take(file, tmp_path / "kept")[1] for file in reversed(files)]

    assert lacking[0] == list(range(1, len(files)))
    assert lacking[-1] == []
    told, _ = pieces.read(files[2])
    assert told == parcel
    assert told.notes == {"a": ["b"]}
    pieces.join(told, tmp_path / "kept", tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == content.read_bytes()


def test_a_damaged_piece_is_not_kept(tmp_path: Path) -> None:
    _, files = pieces.pack(written(tmp_path / "content"), tmp_path / "out", "x", PIECE)
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(DamagedParcel, match=r"x\.2 is damaged"):
        pieces.take(files[1], tmp_path / "kept")
    with pytest.raises(DamagedParcel, match="is no piece of a parcel"):
        pieces.take(tmp_path / "content", tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*"))


def test_what_is_damaged_after_it_came_leaves_no_file(tmp_path: Path) -> None:
    _, files = pieces.pack(written(tmp_path / "content"), tmp_path / "out", "x", PIECE)
    for file in files:
        parcel, _ = pieces.take(file, tmp_path / "kept")
    (tmp_path / "kept" / "x.2").write_bytes(files[2].read_bytes())
    with pytest.raises(DamagedParcel):
        pieces.join(parcel, tmp_path / "kept", tmp_path / "joined")
    assert not list(tmp_path.glob("joined*"))


def test_pieces_of_an_older_parcel_are_not_mixed_in(tmp_path: Path) -> None:
    _, old = pieces.pack(written(tmp_path / "content"), tmp_path / "old", "x", PIECE)
    for file in old:
        pieces.take(file, tmp_path / "kept")
    _, new = pieces.pack(written(tmp_path / "content", seed=2), tmp_path / "new", "x", PIECE)
    _, lacking = pieces.take(new[0], tmp_path / "kept")
    assert lacking == list(range(2, len(new) + 1))


def test_pieces_too_small_for_their_own_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too small"):
        pieces.pack(written(tmp_path / "content"), tmp_path / "out", "x", 5000)
