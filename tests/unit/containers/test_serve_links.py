"""Links in folders of weights: accepted within the folder, refused if they lead out."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_serve.checkpoint import check_folder
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.weights import with_model
from tests.unit.containers.weights import model


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder that stands for /opt/ml."""
    (tmp_path / "model").mkdir()
    return tmp_path


def served(root: Path) -> dict[str, str]:
    """The environment as on a developer's machine."""
    return with_model({"PEAGLE_ML_ROOT": str(root)})


def refusal(root: Path) -> str:
    """The refusal of the folder ``model`` below ``root`` on a developer's machine."""
    with pytest.raises(InvalidEnvironment) as refused:
        served(root)
    return refused.value.message


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model in another place."""
    return model(tmp_path_factory.mktemp("outside") / "model")


def link_refused(where: str, root: Path) -> str:
    """The refusal of the folder ``where`` in a container, where a folder must not be a link."""
    with pytest.raises(InvalidEnvironment) as refused:
        check_folder("X", where, str(root), needs_weights=True)
    return refused.value.message


@pytest.mark.parametrize("entry", ["generation_config.json", "original/weights.json", "assets"])
def test_a_link_that_leaves_its_folder_is_refused(root: Path, outside: Path, entry: str) -> None:
    link = model(root / "model") / entry
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside if entry == "assets" else outside / "config.json")

    assert f"{link} is a symbolic link out of its folder" in refusal(root)
    assert f"{link} is a symbolic link out of its folder" in link_refused(str(root / "model"), root)


@pytest.mark.parametrize("place", ["model/target", "additional-model-data-sources/drafter/head"])
def test_a_folder_that_is_a_link_out_is_refused(root: Path, outside: Path, place: str) -> None:
    folder = root / place
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(outside)

    assert f"{folder} is a symbolic link out of its folder, to {outside}" in (
        link_refused(str(folder), root)
    )


def test_a_chain_of_links_that_leads_out_is_refused(root: Path, outside: Path) -> None:
    (root / "model" / "other").symlink_to(outside)
    (root / "model" / "target").symlink_to("other")

    assert "out of its folder" in link_refused(str(root / "model" / "target"), root)


@pytest.mark.parametrize("place", ["model", "additional-model-data-sources/drafter"])
def test_a_mount_may_be_a_link(root: Path, outside: Path, place: str) -> None:
    mount = root / place
    mount.parent.mkdir(exist_ok=True)
    (root / "model").rmdir()
    mount.symlink_to(outside)
    model(outside / "target")

    check_folder("X", str(mount), str(root), needs_weights=True)
    check_folder("X", str(mount / "target"), str(root), needs_weights=True)


def test_on_a_developers_machine_a_folder_may_be_a_link(root: Path, outside: Path) -> None:
    (root / "model" / "target").symlink_to(outside)

    assert served(root)["SM_VLLM_MODEL"] == str(root / "model" / "target")


def test_in_a_container_a_folder_must_not_be_a_link(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle_serve.weights.ML_ROOT", str(root))
    (root / "model" / "target").symlink_to(outside)

    with pytest.raises(InvalidEnvironment) as refused:
        with_model({"SM_VLLM_MODEL": str(root / "model" / "target")})
    assert str(root / "model" / "target") in refused.value.message
    assert refused.value.fix == "replace the link by a copy of the file"


@pytest.mark.parametrize("leads_to", ["gone", "tokenizer.json"])
def test_a_broken_or_circular_link_is_refused(root: Path, leads_to: str) -> None:
    (model(root / "model") / "tokenizer.json").symlink_to(root / "model" / leads_to)

    assert "is a broken link" in refusal(root)


def test_links_of_the_hubs_cache_and_within_the_mount_are_accepted(root: Path) -> None:
    repository = root / "hub" / "models--a--b"
    blob = model(repository / "blobs", "model.safetensors") / "model.safetensors"
    snapshot = model(repository / "snapshots" / "123", "config.json")
    (snapshot / "model.safetensors").symlink_to(blob)
    (root / "model").rmdir()
    (root / "model").symlink_to(snapshot)

    assert served(root)["SM_VLLM_MODEL"] == str(root / "model")
