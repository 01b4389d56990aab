"""Copied files, valid prefixes, and objects that must not be beside the weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.errors import CheckpointError, UserError
from peagle.weights.layout import unknown_objects, weights_prefix
from peagle.weights.sources import open_source
from tests.packed import KEY
from tests.support import raises_code
from tests.unit.aws.syncing import CONFIG, folder_weights, index_of, shard, write_model


def _no_aws() -> None:
    raise AssertionError("no AWS is needed for a folder")


def _names(folder: Path) -> set[str]:
    origin = open_source(folder_weights(folder), _no_aws)  # type: ignore[arg-type]
    return {file.name for file in origin.files}


def test_the_duplicates_of_gpt_oss_are_not_copied(tmp_path: Path) -> None:
    for name in ("original", "metal"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"another copy")
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(shard(f"w{number}", 8))
    (tmp_path / "model.safetensors.index.json").write_bytes(
        index_of({"w1": "model-1.safetensors", "w2": "model-2.safetensors"})
    )
    (tmp_path / "config.json").write_bytes(CONFIG)
    for name in ("chat_template.jinja", "LICENSE", "README.md", "tokenizer.json", ".gitattributes"):
        (tmp_path / name).write_bytes(b"{}")

    assert _names(tmp_path) == {
        "config.json", "chat_template.jinja", "tokenizer.json", "model.safetensors.index.json",
        "model-1.safetensors", "model-2.safetensors",
    }  # fmt: skip


def test_duplicates_and_training_state_are_not_copied(tmp_path: Path) -> None:
    write_model(tmp_path)
    others = ("pytorch_model.bin", "pytorch_model.bin.index.json", "optimizer.pt", "model.onnx")
    for name in (*others, "training_args.bin", "trainer_state.json", "model.gguf"):
        (tmp_path / name).write_bytes(b"{}")

    assert _names(tmp_path) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_a_file_outside_the_index_is_not_copied(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "old.safetensors").write_bytes(shard("w", 8))
    (tmp_path / "model.safetensors.index.json").write_bytes(index_of({"w": "model.safetensors"}))

    assert "old.safetensors" not in _names(tmp_path)
    left, size = open_source(folder_weights(tmp_path), _no_aws).left_out  # type: ignore[arg-type]
    assert (left, size) == (1, len(shard("w", 8)))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.pth", "a.ckpt", "m.gguf"])
def test_weights_that_are_no_safetensors_are_not_copied(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / name).write_bytes(b"weights")

    with raises_code("weights-not-safetensors", CheckpointError):
        _names(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config-missing", "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "weights-missing", "no weights"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_bytes(
                index_of({"w": "model.safetensors", "v": "missing.safetensors"})
            ),
            "weights-damaged",
            "missing.safetensors",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(shard("w", 1000)[:500]),
            "weights-damaged",
            "model.safetensors",
        ),
    ],
    ids=["no config", "no weights", "a file of the index is missing", "a file is truncated"],
)
def test_an_incomplete_model_is_refused_before_any_upload(
    tmp_path: Path, spoil: object, code: str, words: str
) -> None:
    write_model(tmp_path)
    spoil(tmp_path)  # type: ignore[operator]

    with raises_code(code, CheckpointError) as refused:
        _names(tmp_path)
    assert words in refused.value.message
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize(
    ("leads_to", "words"),
    [("/etc/passwd", "out of its folder, to /etc/passwd"), ("missing", "is a broken link")],
)
def test_a_link_that_leaves_the_model_or_is_broken_is_refused(
    tmp_path: Path, leads_to: str, words: str
) -> None:
    write_model(tmp_path)
    (tmp_path / "vocab.json").symlink_to(leads_to)

    with raises_code("unusable-link", UserError) as refused:
        _names(tmp_path)
    assert words in refused.value.message
    assert str(tmp_path / "vocab.json") in refused.value.message


def test_a_snapshot_of_the_hubs_cache_is_copied_completely(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    write_model(blobs)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).symlink_to(Path("../../blobs") / name)

    assert _names(snapshot) == {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize("uri", ["s3://models/a/b", "s3://models/a/b/"])
def test_a_prefix_ends_with_one_slash(uri: str) -> None:
    place = weights_prefix(uri)

    assert place.uri == "s3://models/a/b/"
    assert place.part_uri("drafter") == "s3://models/a/b/drafter/"
    assert weights_prefix("s3://models").file_key("target", "x") == "target/x"


@pytest.mark.parametrize(
    "uri", ["models/a", "s3://a", "s3://models/a b", "s3://models/a%20", "s3://models//a",
            "s3://models/" + "a" * 1024, "s3://Models/a"],
)  # fmt: skip
def test_a_uri_that_sagemaker_cannot_mount_is_refused(uri: str) -> None:
    with raises_code("invalid-s3-uri", UserError):
        weights_prefix(uri)


def _codes(there: dict[str, int], others: tuple[str, ...] = ()) -> list[str]:
    place = weights_prefix("s3://models/pair")
    return [f.code for f in unknown_objects(place, there, {"pair/target/config.json"}, others)]


@pytest.mark.parametrize(
    ("there", "codes"),
    [
        ({"pair/target/config.json": 1, "pair/peagle-weights.json": 1}, []),
        ({"pair/": 0}, ["folder-keys"]),
        ({"pair/target/": 0, "pair/target/config.json": 1}, ["folder-keys"]),
        ({"pair/target/old.safetensors": 5}, ["foreign-objects"]),
        ({"pair/notes.txt": 5}, ["foreign-objects"]),
        ({"pair/drafter/config.json": 5}, ["foreign-objects"]),
        ({f"pair/warm/{KEY}.tar.gz": 5, f"pair/warm/{KEY}.json": 5}, []),
        ({"pair/peagle-weights.lock": 5}, []),
        ({f"pair/warm/{KEY}.zip": 5}, ["foreign-objects"]),
        ({f"pair/warm/deeper/{KEY}.json": 5}, ["foreign-objects"]),
        ({f"pair/target/{KEY}.json": 5}, ["foreign-objects"]),
        ({"pair/warm/": 0}, ["folder-keys"]),
    ],
)
def test_what_keeps_sagemaker_from_mounting_is_an_error(
    there: dict[str, int], codes: list[str]
) -> None:
    assert _codes(there) == codes


def test_of_the_other_folder_only_folder_keys_are_errors() -> None:
    assert _codes({"pair/drafter/config.json": 5}, others=("drafter",)) == []
    assert _codes({"pair/drafter/": 0}, others=("drafter",)) == ["folder-keys"]
