"""A whole checkpoint, from a folder and from a place in memory that counts."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.checkpoints import FolderSource, Tensor, read_checkpoint
from peagle.checkpoints.reading import FIRST_BYTES
from peagle.data import data_folder
from peagle.errors import CheckpointError
from tests.unit.checkpoints.files import CONFIG, ONE, OTHER, Memory, file_of, index_of, weights

INDEX = "model.safetensors.index.json"
SHARDED = {
    "config.json": CONFIG,
    "a.safetensors": ONE,
    "b.safetensors": OTHER,
    INDEX: index_of(fc__weight="a.safetensors", lm_head__weight="b.safetensors"),
}
TINY = data_folder("model_catalog") / "peagle" / "tiny"


def refusal(files: dict[str, bytes], **sizes: int) -> CheckpointError:
    named = {name.replace("__", "."): size for name, size in sizes.items()}
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(Memory(files, named))
    assert refused.value.exit_code == 2
    assert "memory" in refused.value.message
    return refused.value


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def test_a_folder_with_one_file_is_read() -> None:
    read = read_checkpoint(FolderSource(TINY / "target"))
    assert read.location == str(TINY / "target")
    assert read.config["model_type"] == "llama"
    assert read.tensors is not None
    hidden, vocabulary = read.config["hidden_size"], read.config["vocab_size"]
    embedding = read.tensors["model.embed_tokens.weight"]
    assert embedding == Tensor("BF16", (vocabulary, hidden), 2 * vocabulary * hidden,
                               "model.safetensors")  # fmt: skip
    assert read.tokenizer["vocab_size"] == vocabulary
    assert set(read.tokenizer["digests"]["tokenizer.json"]) == {"sha256", "md5", "git"}
    whole = sum(path.stat().st_size for path in (TINY / "target").iterdir())
    assert 0 < read.bytes_read < whole / 5


def test_all_shards_are_read() -> None:
    read = read_checkpoint(Memory(SHARDED))
    assert read.tensors == {
        "fc.weight": Tensor("BF16", (4, 8), 64, "a.safetensors"),
        "lm_head.weight": Tensor("F32", (8, 4), 128, "b.safetensors"),
    }
    assert read.bytes_read == sum(len(content) for content in SHARDED.values())


def test_files_that_the_index_does_not_name_are_not_touched() -> None:
    place = Memory({**SHARDED, "model.safetensors": b"another copy", "training.safetensors": b""})
    assert read_checkpoint(place).tensors == read_checkpoint(Memory(SHARDED)).tensors
    assert {name for name, _, _ in place.reads} == set(SHARDED)


def test_of_a_large_file_no_more_than_its_header_is_read() -> None:
    short = weights({"w": ("U8", (50_000_000,))})
    shapes = {f"layers.{n}.weight": ("U8", (1,)) for n in range(3000)}
    long = weights(shapes)
    header = 8 + struct.unpack_from("<Q", long)[0]
    assert header > FIRST_BYTES
    place = Memory({"config.json": CONFIG, "a.safetensors": long, "b.safetensors": short})
    read = read_checkpoint(place)
    assert read.bytes_read == len(CONFIG) + header + FIRST_BYTES
    assert sorted(read for read in place.reads if read[0] != "config.json") == [
        ("a.safetensors", 0, FIRST_BYTES),
        ("a.safetensors", FIRST_BYTES, header - FIRST_BYTES),
        ("b.safetensors", 0, FIRST_BYTES),
    ]


def test_a_config_alone_is_a_checkpoint_without_tensors() -> None:
    place = Memory({"config.json": CONFIG, "pytorch_model.bin": b"weights"})
    read = read_checkpoint(place)
    assert read.tensors is None
    assert read.bytes_read == len(CONFIG)


def test_only_the_config_can_be_asked_for() -> None:
    place = Memory({**SHARDED, INDEX: b"broken"})
    read = read_checkpoint(place, config_only=True)
    assert read.config == {"hidden_size": 4, "vocab_size": 8}
    assert read.tensors is None
    assert place.reads == [("config.json", 0, len(CONFIG))]


def test_a_file_without_tensors_is_not_a_checkpoint_without_files() -> None:
    read = read_checkpoint(Memory({"config.json": CONFIG, "model.safetensors": file_of({}, 0)}))
    assert read.tensors == {}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"config.json": None}, "memory has no config.json"),
        ({"config.json": b""}, "memory/config.json is empty"),
        ({"config.json": b'{"hidden_size": "4"}'}, 'memory/config.json: hidden_size is "4"'),
        ({"b.safetensors": OTHER[:-1]}, "memory/b.safetensors is cut short"),
        ({"b.safetensors": OTHER[:5]}, "memory/b.safetensors is cut short"),
        ({"b.safetensors": b""}, "memory/b.safetensors is cut short"),
        ({"b.safetensors": None}, f"memory/{INDEX} names missing files (1 of 2)"),
        ({INDEX: b"{}"}, f"memory/{INDEX} has no weight_map"),
        ({INDEX: index_of(a="../x")}, "memory/"),
        (
            {INDEX: index_of(fc__weight="a.safetensors", gone="b.safetensors")},
            f"memory/{INDEX} names 1 tensor that no file holds: gone",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(changed: dict[str, bytes | None], words: str) -> None:
    files = {**SHARDED, **changed}
    found = refusal({name: content for name, content in files.items() if content is not None})
    assert words in found.message


@pytest.mark.parametrize("name", ["config__json", "model__safetensors__index__json"])
def test_what_is_too_large_is_not_read(name: str) -> None:
    place = Memory(SHARDED, {name.replace("__", "."): 10**9})
    with pytest.raises(CheckpointError, match="is not read: the limit is"):
        read_checkpoint(place)
    assert name.replace("__", ".") not in [read for read, _, _ in place.reads]


def test_a_header_of_100_mb_is_not_read() -> None:
    head = struct.pack("<Q", 100_000_000) + bytes(FIRST_BYTES)
    place = Memory({"config.json": CONFIG, "model.safetensors": head},
                   {"model.safetensors": 200_000_000})  # fmt: skip
    with pytest.raises(CheckpointError, match="has a header of 100 MB"):
        read_checkpoint(place)
    assert place.reads[-1] == ("model.safetensors", 0, FIRST_BYTES)


def test_a_file_that_shrinks_while_it_is_read_is_cut_short() -> None:
    assert (
        "ends within its header"
        in refusal(
            {"config.json": CONFIG, "model.safetensors": ONE[:20]}, model__safetensors=len(ONE)
        ).message
    )


def test_a_place_that_does_not_answer_is_given_up() -> None:
    never = threading.Event()

    class Silent(Memory):
        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            if name == "b.safetensors":
                never.wait(60)
            return super().read(name, start, length)

    with pytest.raises(CheckpointError, match=r"memory could not be read within 0\.3 s"):
        read_checkpoint(Silent(SHARDED), seconds=0.3)
    never.set()


def test_a_folder_of_links_is_a_folder(tmp_path: Path) -> None:
    """As the hub's own cache keeps its files."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in folder_of_names(folder_of(tmp_path, SHARDED)):
        (snapshot / name).symlink_to(tmp_path / name)
    (snapshot / "gone.safetensors").symlink_to(tmp_path / "gone")
    assert read_checkpoint(FolderSource(snapshot)).tensors is not None


def folder_of_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file()]


def _pipe(place: Path) -> None:
    os.mkfifo(place)


def _dangling(place: Path) -> None:
    place.symlink_to("../../blobs/gone")


def _loop(place: Path) -> None:
    place.symlink_to(place.name)


BROKEN = [
    (_dangling, "is a broken link"),
    (_loop, r"cannot be opened \(Too many levels of symbolic links\)"),
    (Path.mkdir, "is a folder"),
    (_pipe, "is not a regular file"),
]


@pytest.mark.parametrize("name", ["model.safetensors", "model-00002-of-00002.safetensors"])
@pytest.mark.parametrize(("make", "words"), BROKEN)
def test_weights_that_are_there_by_name_only_are_told(
    make: Callable[[Path], None], words: str, name: str, tmp_path: Path
) -> None:
    make(folder_of(tmp_path, {"config.json": CONFIG}) / name)
    with pytest.raises(CheckpointError, match=f"{name} {words}, so it cannot be read") as told:
        read_checkpoint(FolderSource(tmp_path))
    assert "copy it again" in str(told.value)


@pytest.mark.parametrize(("make", "words"), BROKEN)
def test_so_is_a_config(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    make(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=rf"config\.json {words}"):
        read_checkpoint(FolderSource(tmp_path))


@pytest.mark.parametrize(("make", "_"), BROKEN)
def test_a_shard_that_is_there_by_name_only_is_missing(
    make: Callable[[Path], None], _: str, tmp_path: Path
) -> None:
    folder_of(tmp_path, SHARDED)
    shard = sorted(path.name for path in tmp_path.glob("*.safetensors"))[-1]
    (tmp_path / shard).unlink()
    make(tmp_path / shard)
    with pytest.raises(CheckpointError, match=rf"missing files \(1 of 2\): {shard}") as told:
        read_checkpoint(FolderSource(tmp_path))
    assert "a broken link does not count" in str(told.value)


def test_other_folders_and_pipes_beside_the_weights_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(folder_of(tmp_path, {"config.json": CONFIG}) / "pipe")
    (tmp_path / "sub").mkdir()
    assert FolderSource(tmp_path).names() == {"config.json": len(CONFIG)}
    assert read_checkpoint(FolderSource(tmp_path)).tensors is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("gone", "there is no folder .*/gone"), ("config.json", r"config\.json is a file")],
)
def test_what_is_no_folder_is_told(name: str, words: str, tmp_path: Path) -> None:
    folder_of(tmp_path, {"config.json": CONFIG})
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(FolderSource(tmp_path / name))


def test_a_file_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, {"config.json": CONFIG})

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read: Permission denied"):
        read_checkpoint(FolderSource(tmp_path))
