"""Names, contexts and builds, with the fake ``docker``."""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.errors import NotFound, UserError
from peagle.images import Docker, build, show_image, with_digest
from peagle.images.build import (
    Packages,
    baked,
    context,
    engine_image,
    engine_image_name,
    source_revision,
    tar,
)
from peagle.images.docker import check_pair
from peagle.planning import Options, Plan, make_plan
from peagle.render.image import Recipe, image_name
from tests.support import raises_code
from tests.unit.images.conftest import LABELS, FakeDocker
from tests.unit.rendering.plans import CATALOG

RECIPE = Recipe("cpu", "base", None)


@cache
def plan_for(pair: str, **options: Any) -> Plan:
    return make_plan(Options(pair=pair, **options), CATALOG)


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    folder = tmp_path / "site-packages"
    (folder / "vllm" / "__pycache__").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "__pycache__" / "x.pyc").write_bytes(b"bytecode")
    return Packages("0.28.0", "3.11", folder, "lock")


def test_a_base_of_one_digest_is_the_same_in_every_region() -> None:
    plan, digest = plan_for("gpt-oss-20b"), "sha256:" + "a" * 64
    here, there = (
        Recipe("gpu", f"{host}.example.com/vllm:1@{digest}", None) for host in ("a", "b")
    )
    assert image_name(plan, here) == image_name(plan, there)
    assert image_name(plan, Recipe("gpu", f"vllm:1@{digest[:-1]}b", None)) != image_name(plan, here)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Git checkout that stands for the toolkit's source."""
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "file").write_text("as committed")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    module = importlib.import_module("peagle.images.build")
    monkeypatch.setattr(module, "data_folder", lambda name: tmp_path / name)
    return tmp_path


def test_uncommitted_changes_mark_the_revision_as_dirty(checkout: Path) -> None:
    clean = source_revision()
    assert clean is not None
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (checkout / "containers" / "file").write_text("changed")
    assert source_revision() == f"{clean}-dirty"


REGISTRY_BASE = "registry.example.com/vllm:1"


def test_a_base_gets_the_digest_of_the_local_image(docker: FakeDocker) -> None:
    digest = "sha256:" + "a" * 64
    known = ["other/x@sha256:1", f"registry.example.com/vllm@{digest}"]
    docker.has_image(REGISTRY_BASE, RepoDigests=known)
    assert with_digest(Docker(), REGISTRY_BASE) == f"{REGISTRY_BASE}@{digest}"
    assert with_digest(Docker(), f"a:1@{digest}") == f"a:1@{digest}"


@pytest.mark.thorough
def test_a_missing_base_is_pulled(docker: FakeDocker) -> None:
    docker.answers("pull")
    lines: list[str] = []
    assert with_digest(Docker(), REGISTRY_BASE, lines.append) == REGISTRY_BASE
    assert ["pull", REGISTRY_BASE] in [one["argv"] for one in docker.calls]
    assert lines == [f"pulling {REGISTRY_BASE}"]


@pytest.mark.thorough
def test_the_build_context_is_reproducible(docker: FakeDocker) -> None:
    plan = plan_for("tiny")
    docker.has_image(image_name(plan, RECIPE))
    docker.answers("build")
    build(Docker(), plan, RECIPE)
    build(Docker(), plan, RECIPE)
    builds = [one for one in docker.calls if one["argv"][0] == "build"]
    assert builds[0]["argv"] == ["build", "--force-rm", "--tag", image_name(plan, RECIPE), "-"]
    digest = hashlib.sha256(b"".join(tar(context(plan, RECIPE)))).hexdigest()
    assert [one["input"] for one in builds] == [digest, digest]
    assert builds[0]["environment"]["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"


def test_baked_weights_are_in_the_context(docker: FakeDocker) -> None:
    plan = plan_for("tiny")
    size = sum(map(len, tar(context(plan, Recipe("cpu", "base", None, weights=baked(plan))))))
    assert size > plan.target.weight_bytes


def test_the_layer_size_excludes_the_base(docker: FakeDocker) -> None:
    docker.has_image("mine", Size=2_050_000)
    docker.has_image("base", labels={}, RootFS={"Layers": ["a"]})
    found = show_image(Docker(), "mine")
    assert found.layer_bytes == 50_000
    assert (found.pair, found.runtime, found.user) == (LABELS["peagle.pair"], "cpu", "10001:10001")


def test_foreign_and_missing_images_are_errors(docker: FakeDocker) -> None:
    docker.has_image("debian", labels={})
    docker.answers("none", code=1, err="Error: No such image: none")
    with raises_code("foreign-image", UserError):
        show_image(Docker(), "debian")
    with pytest.raises(NotFound):
        show_image(Docker(), "none")


BUILD = ("peagle", "image", "build", "gpt-oss-20b")


def test_an_image_of_another_pair_is_refused(docker: FakeDocker) -> None:
    docker.has_image("mine")
    found = show_image(Docker(), "mine")
    check_pair(found, LABELS["peagle.pair"], BUILD)
    with raises_code("image-of-another-pair", UserError) as raised:
        check_pair(found, "openai/gpt-oss-20b", BUILD)
    assert "peagle/tiny" in raised.value.message
    assert "openai/gpt-oss-20b" in raised.value.message
    assert raised.value.fix == "omit --image, or build another image"


@pytest.mark.thorough
def test_the_engine_image_is_built_once(docker: FakeDocker, packages: Packages) -> None:
    docker.has_image("base", labels={})
    name = engine_image_name("sha256:base", packages)
    docker.answers("image", "inspect", name, code=1, err="Error: No such image")
    docker.answers("run", out="3.11")
    docker.answers("build")
    assert engine_image(Docker(), "base", packages) == name
    assert [one["argv"][0] for one in docker.calls][-1] == "build"
    (docker.folder / "answers.json").write_text("[]")
    docker.has_image("base", labels={})
    docker.has_image(name)
    assert engine_image(Docker(), "base", packages) == name
    assert [one["argv"][0] for one in docker.calls][-1] == "image"


@pytest.mark.thorough
def test_a_base_with_another_python_is_refused_before_anything_is_built(
    docker: FakeDocker, packages: Packages
) -> None:
    docker.has_image("base", labels={})
    docker.answers("image", "inspect", code=1, err="Error: No such image")
    docker.answers("run", out="3.12")
    with raises_code("unusable-base", UserError) as caught:
        engine_image(Docker(), "base", packages)
    assert "Python 3.12" in caught.value.message
    assert all(one["argv"][0] != "build" for one in docker.calls)
