"""A whole checkpoint, from a folder and from a source in memory that records reads."""

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.checkpoints import FolderSource, Tensor, read_checkpoint
from peagle.checkpoints.files import check_links, follow_link, link_homes
from peagle.checkpoints.reading import FIRST_BYTES
from peagle.data import data_folder
from peagle.errors import CheckpointError, DamagedCheckpoint, PeagleError, UserError
from tests.support import raises_code
from tests.unit.checkpoints.files import CONFIG, ONE, OTHER, Memory, index_of, weights

INDEX = "model.safetensors.index.json"
SHARDED = {
    "config.json": CONFIG,
    "a.safetensors": ONE,
    "b.safetensors": OTHER,
    INDEX: index_of(fc__weight="a.safetensors", lm_head__weight="b.safetensors"),
}
TINY = data_folder("model_catalog") / "peagle" / "tiny"


def refusal(code: str, files: dict[str, bytes], **sizes: int) -> PeagleError:
    named = {name.replace("__", "."): size for name, size in sizes.items()}
    with raises_code(code, CheckpointError) as refused:
        read_checkpoint(Memory(files, named))
    assert refused.value.exit_code == (3 if isinstance(refused.value, DamagedCheckpoint) else 2)
    assert "memory" in refused.value.message
    return refused.value


def locate_folder(path: Path, files: dict[str, bytes]) -> Path:
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
    assert embedding == Tensor("BF16", (vocabulary, hidden), 2 * vocabulary * hidden)
    assert read.tokenizer is not None
    assert read.tokenizer.vocab_size == vocabulary
    whole = sum(path.stat().st_size for path in (TINY / "target").iterdir())
    assert 0 < read.bytes_read < whole / 5


def test_all_shards_are_read() -> None:
    read = read_checkpoint(Memory(SHARDED))
    assert read.tensors == {
        "fc.weight": Tensor("BF16", (4, 8), 64),
        "lm_head.weight": Tensor("F32", (8, 4), 128),
    }
    assert read.bytes_read == sum(len(content) for content in SHARDED.values())


def test_files_that_the_index_does_not_name_are_not_touched() -> None:
    source = Memory({**SHARDED, "model.safetensors": b"another copy", "training.safetensors": b""})
    assert read_checkpoint(source).tensors == read_checkpoint(Memory(SHARDED)).tensors
    assert {name for name, _, _ in source.reads} == set(SHARDED)


@pytest.mark.thorough
def test_only_the_header_of_a_large_file_is_read() -> None:
    short = weights({"w": ("U8", (50_000_000,))})
    shapes = {f"layers.{n}.weight": ("U8", (1,)) for n in range(3000)}
    long = weights(shapes)
    header = 8 + struct.unpack_from("<Q", long)[0]
    assert header > FIRST_BYTES
    source = Memory({"config.json": CONFIG, "a.safetensors": long, "b.safetensors": short})
    read = read_checkpoint(source)
    assert read.bytes_read == len(CONFIG) + header + FIRST_BYTES
    assert sorted(read for read in source.reads if read[0] != "config.json") == [
        ("a.safetensors", 0, FIRST_BYTES),
        ("a.safetensors", FIRST_BYTES, header - FIRST_BYTES),
        ("b.safetensors", 0, FIRST_BYTES),
    ]


def test_a_config_alone_is_a_checkpoint_without_tensors() -> None:
    source = Memory({"config.json": CONFIG, "pytorch_model.bin": b"weights"})
    read = read_checkpoint(source)
    assert read.tensors is None
    assert read.bytes_read == len(CONFIG)


@pytest.mark.parametrize(("changed", "code", "text"), [
    ({"config.json": None}, "config-missing", "memory has no config.json"),
    ({"config.json": b""}, "config-damaged", "memory/config.json is not valid JSON"),
    ({"b.safetensors": OTHER[:-1]}, "weights-damaged", "memory/b.safetensors is truncated"),
    ({"b.safetensors": OTHER[:5]}, "weights-damaged", "memory/b.safetensors is truncated"),
    ({"b.safetensors": b""}, "weights-damaged", "memory/b.safetensors is truncated"),
    ({"b.safetensors": None}, "weights-damaged", "memory/b.safetensors: missing"),
    ({INDEX: b"{}"}, "weights-damaged", f"memory/{INDEX} has no weight_map"),
    ({INDEX: index_of(a="../x")}, "weights-damaged", "memory/"),
    ({INDEX: index_of(fc__weight="a.safetensors", gone="b.safetensors")}, "weights-incomplete",
     f"memory/{INDEX} names tensors that no file holds (1): gone"),
])  # fmt: skip
def test_an_error_names_the_file(changed: dict[str, bytes | None], code: str, text: str) -> None:
    files = {**SHARDED, **changed}
    refused = refusal(
        code, {name: content for name, content in files.items() if content is not None}
    )
    assert text in refused.message


@pytest.mark.parametrize("name", ["config__json", "model__safetensors__index__json"])
def test_a_file_that_is_too_large_is_not_read(name: str) -> None:
    source = Memory(SHARDED, {name.replace("__", "."): 10**9})
    with raises_code("file-too-large", CheckpointError) as refused:
        read_checkpoint(source)
    assert "1,000,000,000 bytes" in refused.value.message
    assert name.replace("__", ".") not in [read for read, _, _ in source.reads]


@pytest.mark.thorough
def test_a_silent_source_times_out() -> None:
    never = threading.Event()

    class Silent(Memory):
        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            if name == "b.safetensors":
                never.wait(60)
            return super().read(name, start, length)

    with raises_code("read-timeout", CheckpointError) as refused:
        read_checkpoint(Silent(SHARDED), seconds=0.3)
    never.set()
    assert "within 0.3 s" in refused.value.message


def _dangling(path: Path) -> None:
    path.symlink_to("../../blobs/gone")


@pytest.mark.parametrize("make", [_dangling, Path.mkdir, os.mkfifo])
def test_an_unreadable_shard_is_missing(make: Callable[[Path], None], tmp_path: Path) -> None:
    locate_folder(tmp_path, SHARDED)
    shard = sorted(path.name for path in tmp_path.glob("*.safetensors"))[-1]
    (tmp_path / shard).unlink()
    make(tmp_path / shard)
    with raises_code("weights-damaged", CheckpointError) as refused:
        read_checkpoint(FolderSource(tmp_path))
    assert shard in refused.value.message


# Links in a folder to copy: within it, or into the blobs of the Hub's cache.
COPY = "replace the link by a copy of the file"
"""The fix of a link that leads out of its folder."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "inner").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    return made


def follow(path: Path) -> Path:
    return follow_link(path, link_homes(path.parent))


@pytest.mark.parametrize(("target", "fix"), [
    ("/etc/passwd", COPY),
    ("../secret", COPY),
    ("gone", "copy the file there, or remove the link"),
    ("vocab.json", "copy the file there, or remove the link"),
])  # fmt: skip
def test_broken_link_or_one_out_of_folder_is_refused(folder: Path, target: str, fix: str) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder / "vocab.json").symlink_to(target)
    with raises_code("unusable-link", UserError) as refused:
        check_links(folder)
    assert str(folder / "vocab.json") in refused.value.message
    assert refused.value.fix == fix


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A model in the layout of the Hub's cache."""
    made = tmp_path / "models--a--b" / "snapshots" / "0123"
    made.mkdir(parents=True)
    (made.parents[1] / "blobs").mkdir()
    (made.parents[1] / "blobs" / "abc").write_text("{}")
    (made / "config.json").symlink_to("../../blobs/abc")
    return made


def test_links_into_the_blobs_of_the_hubs_cache_are_followed(snapshot: Path) -> None:
    check_links(snapshot)
    assert follow(snapshot / "config.json").read_text() == "{}"
