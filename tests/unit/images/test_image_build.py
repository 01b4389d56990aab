"""Names, contexts and builds, with a Docker that only takes notes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.unit.images.conftest import LABELS, FakeDocker
from toolkit.catalog import load_catalog
from toolkit.errors import NotFound, UserError
from toolkit.images import Docker, build, image_name, repository_of, show
from toolkit.images.build import archive
from toolkit.images.engine import Packages, context_of, engine_image, engine_name
from toolkit.images.show import check_pair
from toolkit.planning import Options, Plan, make_plan
from toolkit.rendering.image import Recipe

RECIPE = Recipe("cpu", "base")


def plan_for(pair: str) -> Plan:
    return make_plan(Options(pair=pair), load_catalog())


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    folder = tmp_path / "site-packages"
    (folder / "vllm" / "__pycache__").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "__pycache__" / "x.pyc").write_bytes(b"bytecode")
    return Packages("0.28.0", "3.11", folder, "lock")


@pytest.mark.parametrize(
    ("pair", "repository"),
    [("tiny", "peagle-tiny"), ("gpt-oss-20b", "peagle-gpt-oss-20b"),
     ("qwen3-8b", "peagle-qwen3-8b")],
)  # fmt: skip
def test_a_repository_is_called_after_the_target(pair: str, repository: str) -> None:
    assert repository_of(plan_for(pair)) == repository


def test_another_content_is_another_tag() -> None:
    plan = plan_for("tiny")
    name = image_name(plan, RECIPE)
    assert re.fullmatch(r"peagle-tiny:0\.28\.0-cpu-[0-9a-f]{12}", name)
    assert image_name(plan_for("tiny"), RECIPE) == name
    assert image_name(plan, Recipe("cpu", "another")) != name


def test_what_docker_gets_is_the_same_every_time_and_no_credential(docker: FakeDocker) -> None:
    plan = plan_for("tiny")
    docker.has_image(image_name(plan, RECIPE))
    docker.answers("build")
    build(Docker(), plan, RECIPE)
    build(Docker(), plan, RECIPE)
    builds = [one for one in docker.asked if one["argv"][0] == "build"]
    assert builds[0]["argv"] == ["build", "--force-rm", "--tag", image_name(plan, RECIPE), "-"]
    digest = hashlib.sha256(b"".join(archive(plan, RECIPE))).hexdigest()
    assert [one["input"] for one in builds] == [digest, digest]
    assert builds[0]["environment"]["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"


def test_baked_weights_are_in_the_context(docker: FakeDocker) -> None:
    plan = plan_for("tiny")
    size = sum(map(len, archive(plan, Recipe("cpu", "base", bake_weights=True))))
    assert size > plan.target.weight_bytes


def test_the_layer_is_what_lies_on_the_base(docker: FakeDocker) -> None:
    docker.has_image("mine", Size=2_050_000)
    docker.has_image("base", labels={}, RootFS={"Layers": ["a"]})
    found = show(Docker(), "mine")
    assert found.layer_bytes == 50_000
    assert (found.pair, found.runtime, found.user) == (LABELS["peagle.pair"], "cpu", "10001:10001")


def test_an_image_that_is_none_of_ours_is_told_apart(docker: FakeDocker) -> None:
    docker.has_image("debian", labels={})
    docker.answers("none", code=1, err="Error: No such image: none")
    with pytest.raises(UserError, match="debian is no image of this toolkit"):
        show(Docker(), "debian")
    with pytest.raises(NotFound, match="no image none"):
        show(Docker(), "none")


def test_an_image_of_another_pair_is_refused(docker: FakeDocker) -> None:
    docker.has_image("mine")
    found = show(Docker(), "mine")
    check_pair(found, LABELS["peagle.pair"])
    with pytest.raises(UserError, match=r"built for peagle/tiny.*this is openai/gpt-oss-20b"):
        check_pair(found, "openai/gpt-oss-20b")


def test_the_engines_image_is_made_once(docker: FakeDocker, packages: Packages) -> None:
    docker.has_image("base", labels={})
    name = engine_name("sha256:base", packages)
    docker.answers("image", "inspect", name, code=1, err="Error: No such image")
    docker.answers("run", out="3.11")
    docker.answers("build")
    assert engine_image(Docker(), "base", packages) == name
    assert [one["argv"][0] for one in docker.asked][-1] == "build"

    (docker.folder / "answers.json").write_text("[]")
    docker.has_image("base", labels={})
    docker.has_image(name)
    assert engine_image(Docker(), "base", packages) == name
    assert [one["argv"][0] for one in docker.asked][-1] == "image"


def test_a_base_with_another_python_is_refused_before_anything_is_built(
    docker: FakeDocker, packages: Packages
) -> None:
    docker.has_image("base", labels={})
    docker.answers("image", "inspect", code=1, err="Error: No such image")
    docker.answers("run", out="3.12")
    with pytest.raises(UserError, match=r"base base has Python 3\.12, and the engine here is for"):
        engine_image(Docker(), "base", packages)
    assert all(one["argv"][0] != "build" for one in docker.asked)


def test_a_base_without_python_is_refused(docker: FakeDocker, packages: Packages) -> None:
    docker.has_image("base", labels={})
    docker.answers("image", "inspect", code=1, err="Error: No such image")
    docker.answers("run", code=127, err='exec: "python3": executable file not found in $PATH')
    with pytest.raises(UserError, match="cannot run the engine") as raised:
        engine_image(Docker(), "base", packages)
    assert "needs Python 3.11" in raised.value.fix


def test_bytecode_of_this_machine_stays_out(packages: Packages) -> None:
    (engine,) = [one for one in context_of(packages) if one.path == "engine.tar"]
    content = b"".join(engine.chunks())
    assert b"vllm/__init__.py" in content
    assert b"bytecode" not in content
