"""Mounted weights are compared with the pinned manifest before the engine starts."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle_serve.contract import InvalidEnvironment
from peagle_serve.weights import check_mounted_weights
from tests.unit.containers.recording import container_in, documents
from tests.unit.containers.weights import model, pair


class Mounted:
    """A pair in /opt/ml/model, with the manifest of `peagle weights sync`."""

    def __init__(self, root: Path) -> None:
        self.root, self.model = root, root / "model"
        self.variables = pair(self.model)
        (self.model / "head").rename(self.model / "drafter")
        speculation = json.loads(self.variables["SM_VLLM_SPECULATIVE_CONFIG"])
        speculation["model"] = str(self.model / "drafter")
        self.variables["SM_VLLM_SPECULATIVE_CONFIG"] = json.dumps(speculation)
        self.document: dict[str, Any] = {
            "format": 1,
            "folders": {
                part: {"source": "org/name", "complete": True, "files": self._files(part)}
                for part in ("target", "drafter")
            },
        }
        self.pin = self.write()

    def _files(self, part: str) -> dict[str, Any]:
        paths = (self.model / part).iterdir()
        return {path.name: {"size": path.stat().st_size} for path in paths}

    def write(self) -> str:
        """Write the manifest; its SHA-256."""
        content = json.dumps(self.document).encode()
        (self.model / "peagle-weights.json").write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    def entry(self, name: str = "model.safetensors") -> dict[str, Any]:
        entry: dict[str, Any] = self.document["folders"]["target"]["files"][name]
        return entry

    def environment(self, **more: str) -> dict[str, str]:
        environment = {"PEAGLE_ML_ROOT": str(self.root), "PEAGLE_WEIGHTS_SHA256": self.pin}
        return {**self.variables, **environment, **more}

    def check(self, **more: str) -> None:
        check_mounted_weights(self.environment(**more))


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path)


def test_the_files_of_the_manifest_are_accepted(mounted: Mounted) -> None:
    (mounted.model / "warm").mkdir()
    (mounted.model / "warm" / "x.tar.gz").touch()
    mounted.check()


def unlist(mounted: Mounted, part: str = "drafter") -> None:
    del mounted.document["folders"][part]
    mounted.pin = mounted.write()


def grow(mounted: Mounted) -> None:
    with (mounted.model / "target" / "model.safetensors").open("ab") as file:
        file.write(b"x")


def serve_beside(mounted: Mounted) -> None:
    (mounted.model / "target").rename(mounted.model / "other")
    unlist(mounted, "target")
    mounted.variables["SM_VLLM_MODEL"] = str(mounted.model / "drafter" / ".." / "other")


def serve_link(mounted: Mounted) -> None:
    unlist(mounted)
    link = mounted.root / "link"
    link.symlink_to(mounted.model / "drafter")
    mounted.variables["SM_VLLM_SPECULATIVE_CONFIG"] = json.dumps({"model": str(link)})


def serve(name: str, folder: str) -> Callable[[Mounted], object]:
    return lambda mounted: mounted.variables.update({name: str(mounted.model / folder)})


@pytest.mark.parametrize(("change", "where"), [
    (unlist, '"model" of SM_VLLM_SPECULATIVE_CONFIG'),
    (serve_beside, "SM_VLLM_MODEL"),
    (serve("SM_VLLM_MODEL", ""), "SM_VLLM_MODEL"),
    (serve_link, '"model" of SM_VLLM_SPECULATIVE_CONFIG'),
    (serve("SM_VLLM_TOKENIZER", "tokenizer"), "SM_VLLM_TOKENIZER"),
])  # fmt: skip
def test_a_served_folder_that_the_manifest_does_not_list_is_refused(
    mounted: Mounted, change: Callable[[Mounted], object], where: str
) -> None:
    change(mounted)
    with pytest.raises(InvalidEnvironment, match="does not list") as refused:
        mounted.check()
    assert refused.value.message.startswith(f"{where} is /")
    assert "deploy again" in refused.value.fix


def replace_manifest(mounted: Mounted) -> None:
    """As somebody who may write the bucket can: files and manifest agree."""
    grow(mounted)
    mounted.entry()["size"] += 1
    mounted.write()


def manifest_as(make: Callable[[Path], object]) -> Callable[[Mounted], object]:
    def change(mounted: Mounted) -> None:
        (mounted.model / "peagle-weights.json").unlink()
        make(mounted.model / "peagle-weights.json")

    return change


def add(*path: str) -> Callable[[Mounted], object]:
    return lambda mounted: model(mounted.model.joinpath("target", *path[:-1]), path[-1])


def add_link(mounted: Mounted) -> None:
    (mounted.model / "target" / "sub").symlink_to(mounted.model / "drafter")


def lose(mounted: Mounted) -> None:
    (mounted.model / "drafter" / "model.safetensors").unlink()


@pytest.mark.parametrize(("change", "words"), [
    (grow, "target differs from its manifest: model.safetensors"),
    (lose, "drafter differs from its manifest: model.safetensors"),
    (add("modeling_x.py"), "target differs from its manifest: modeling_x.py"),
    (add("sub", "x"), "differs from its manifest: sub/x"),
    (add_link, "differs from its manifest: sub"),
    (replace_manifest, "the weights were changed after the deploy"),
    (manifest_as(str), "No such file"),
    (manifest_as(os.mkfifo), "Not a regular file"),
    (manifest_as(Path.mkdir), "Not a regular file"),
])  # fmt: skip
def test_other_files_are_refused(
    mounted: Mounted, change: Callable[[Mounted], object], words: str
) -> None:
    change(mounted)
    with pytest.raises(InvalidEnvironment) as refused:
        mounted.check()
    assert words in refused.value.message
    assert "peagle weights sync" in refused.value.fix


@pytest.mark.parametrize("text", [
    "[]", '{"format": 2}', '{"format": 1, "folders": {"../x": {}}}',
    '{"format": 1, "folders": {"target": {"complete": false, "files": {}}}}',
    '{"format": 1, "folders": {"target": {"complete": true, "files": {"a": {}}}}}',
    '{"format": 1, "folders": {"target": {"complete": true, "files": {"a": {"size": null}}}}}',
])  # fmt: skip
def test_a_manifest_that_is_none_is_refused_although_it_is_pinned(
    mounted: Mounted, text: str
) -> None:
    (mounted.model / "peagle-weights.json").write_text(text)
    with pytest.raises(InvalidEnvironment, match="cannot be used"):
        mounted.check(PEAGLE_WEIGHTS_SHA256=hashlib.sha256(text.encode()).hexdigest())


def test_without_a_pin_nothing_is_compared(mounted: Mounted) -> None:
    grow(mounted)
    mounted.check(PEAGLE_WEIGHTS_SHA256="")


@pytest.mark.thorough
def test_the_entrypoint_refuses_changed_weights_before_vllm_starts(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path / "ml")
    container = container_in(tmp_path / "engine")
    assert container.run(mounted.environment()).returncode == 1, "the recorder ends with 1"
    add("modeling_x.py")(mounted)
    done = container.run(mounted.environment())
    assert done.returncode == 2
    (line,) = documents(done)
    assert "modeling_x.py" in line["message"]
    assert not container.record.exists()
