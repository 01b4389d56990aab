"""Names, contexts and builds, with the fake ``docker``."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.errors import NotFound, UserError
from peagle.images.build import (
    Login,
    Member,
    Packages,
    build,
    build_context,
    collect_members,
    context,
    engine_image,
    engine_image_name,
    logged_in,
    push,
    repository_part,
    with_digest,
    write_tar,
)
from peagle.images.docker import Docker, show_image
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


REGISTRY_BASE = "registry.example.com/vllm:1"


def test_a_base_gets_the_digest_of_the_local_image(docker: FakeDocker) -> None:
    digest = "sha256:" + "a" * 64
    digests = ["other/x@sha256:1", f"registry.example.com/vllm@{digest}"]
    docker.has_image(REGISTRY_BASE, RepoDigests=digests)
    assert with_digest(Docker(), REGISTRY_BASE) == f"{REGISTRY_BASE}@{digest}"
    assert with_digest(Docker(), f"a:1@{digest}") == f"a:1@{digest}"


@pytest.mark.thorough
def test_a_missing_base_is_pulled(docker: FakeDocker) -> None:
    docker.answers("pull")
    lines: list[str] = []
    assert with_digest(Docker(), REGISTRY_BASE, lines.append) == REGISTRY_BASE
    assert ["pull", REGISTRY_BASE] in [call["argv"] for call in docker.calls]
    assert lines == [f"pulling {REGISTRY_BASE}"]


@pytest.mark.thorough
def test_the_build_context_is_reproducible(docker: FakeDocker) -> None:
    plan = plan_for("tiny")
    docker.has_image(image_name(plan, RECIPE))
    docker.answers("build")
    build(Docker(), plan, RECIPE)
    build(Docker(), plan, RECIPE)
    builds = [call for call in docker.calls if call["argv"][0] == "build"]
    assert builds[0]["argv"] == ["build", "--force-rm", "--tag", image_name(plan, RECIPE), "-"]
    digest = hashlib.sha256(tar(context(plan, RECIPE))).hexdigest()
    assert [call["input"] for call in builds] == [digest, digest]
    assert builds[0]["environment"]["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"


def test_the_layer_size_excludes_the_base(docker: FakeDocker) -> None:
    docker.has_image("mine", Size=2_050_000)
    docker.has_image("base", labels={}, RootFS={"Layers": ["a"]})
    image = show_image(Docker(), "mine")
    assert image.layer_bytes == 50_000
    assert (image.pair, image.runtime, image.user) == (LABELS["peagle.pair"], "cpu", "10001:10001")


def test_foreign_and_missing_images_are_errors(docker: FakeDocker) -> None:
    docker.has_image("debian", labels={})
    docker.answers("none", code=1, err="Error: No such image: none")
    with raises_code("foreign-image", UserError):
        show_image(Docker(), "debian")
    with pytest.raises(NotFound):
        show_image(Docker(), "none")


@pytest.mark.thorough
def test_the_engine_image_is_built_once(docker: FakeDocker, packages: Packages) -> None:
    docker.has_image("base", labels={})
    name = engine_image_name("sha256:base", packages)
    docker.answers("image", "inspect", name, code=1, err="Error: No such image")
    docker.answers("build")
    assert engine_image(Docker(), "base", packages) == name
    assert [call["argv"][0] for call in docker.calls][-1] == "build"
    (docker.folder / "answers.json").write_text("[]")
    docker.has_image("base", labels={})
    docker.has_image(name)
    assert engine_image(Docker(), "base", packages) == name
    assert [call["argv"][0] for call in docker.calls][-1] == "image"


# Pushing: Docker gets the credentials, which are in no file and no argv.
LOGIN = Login("registry.example.com:5000", "AWS", "s3cret-token")


@pytest.mark.thorough
def test_the_credential_helper_gives_docker_the_credentials() -> None:
    with logged_in(Docker(), [LOGIN]) as engine:
        reply = subprocess.run(
            ["docker-credential-peagle", "get"], env=engine.variables(), input=LOGIN.host,
            capture_output=True, text=True, check=True, executable=_helper(engine),
        )  # fmt: skip
        assert json.loads(reply.stdout) == {
            "ServerURL": LOGIN.host, "Username": "AWS", "Secret": "s3cret-token",
        }  # fmt: skip
        other = subprocess.run(
            ["x", "get"], env=engine.variables(), input="elsewhere.example.com",
            capture_output=True, text=True, check=False, executable=_helper(engine),
        )  # fmt: skip
        assert "credentials not found" in other.stdout


def _helper(engine: Docker) -> str:
    return str(Path(engine.variables()["DOCKER_CONFIG"], "bin", "docker-credential-peagle"))


@pytest.mark.thorough
def test_no_file_and_no_argv_holds_the_secret(docker: FakeDocker) -> None:
    docker.has_image("there", RepoDigests=["registry.example.com:5000/a@sha256:1"])
    docker.answers("tag")
    docker.answers("push")
    with logged_in(Docker(), [LOGIN]) as engine:
        folder = Path(engine.variables()["DOCKER_CONFIG"])
        texts = [file.read_text() for file in folder.rglob("*") if file.is_file()]
        assert len(texts) == 3
        assert not any("s3cret" in text for text in texts)
    assert not folder.exists()
    assert "s3cret" not in repr(LOGIN)
    push(Docker(), "mine:1", "registry.example.com:5000/a:1", [LOGIN])
    (pushed,) = [call for call in docker.calls if call["argv"][0] == "push"]
    assert "s3cret" not in " ".join(pushed["argv"])
    assert json.loads(pushed["config"])["credHelpers"] == {LOGIN.host: "peagle"}


def test_the_users_engine_is_found_and_their_logins_are_not_copied(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    (folder / "contexts").mkdir(parents=True)
    (folder / "contexts" / "remote").write_text("")
    auths = {"auths": {"x": {"auth": "dXNlcjpwYXNz"}}, "currentContext": "remote"}
    (folder / "config.json").write_text(json.dumps(auths))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    with logged_in(Docker(), [LOGIN]) as engine:
        folder = Path(engine.variables()["DOCKER_CONFIG"])
        assert (folder / "contexts" / "remote").exists()
        document = json.loads((folder / "config.json").read_text())
    assert document == {"credHelpers": {LOGIN.host: "peagle"}, "currentContext": "remote"}


def test_an_address_without_a_registry_is_refused() -> None:
    assert repository_part("localhost:5000/a/b:1") == "localhost:5000/a/b"
    assert repository_part("localhost/a") == "localhost/a"
    for address in ("name:1", "library/name:1"):
        with raises_code("no-registry", UserError):
            repository_part(address)


# Archives: reproducible, and only with files of their folder.
def tar(members: Iterable[Member]) -> bytes:
    stream = io.BytesIO()
    write_tar(members, stream)
    return stream.getvalue()


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            member.name: (archive.extractfile(member) or io.BytesIO()).read()
            for member in archive
            if member.isfile()
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    (made / "inner").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"x" * 1025)
    (made / "inner" / ("long-" * 40 + "ü.json")).write_text("{}")
    return made


def test_times_owners_modes_and_order_do_not_matter(folder: Path) -> None:
    first = tar(collect_members(folder, "w"))
    file = folder / "model.safetensors"
    file.chmod(0o600)
    os.utime(file, (1, 1))
    assert tar(reversed(collect_members(folder, "w"))) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert {(member.uid, member.gid, member.mtime) for member in archive} == {(0, 0, 0)}
        assert {member.mode for member in archive} == {0o644, 0o755}
        assert len(archive.getnames()) == len(set(archive.getnames()))


def test_the_packages_of_an_engine_are_one_archive(folder: Path) -> None:
    outer = read(tar(build_context(Packages("0.28.0", "3.11", folder, "lock"), io.BytesIO())))
    assert b"FROM" in outer["Dockerfile"]
    inner = read(outer["engine.tar"])
    assert inner["lib/python3.11/site-packages/model.safetensors"] == b"x" * 1025


def test_a_link_within_the_folder_becomes_the_file(folder: Path) -> None:
    (folder / "link.json").symlink_to("model.safetensors")
    assert read(tar(collect_members(folder, "w")))["w/link.json"] == b"x" * 1025


@pytest.mark.parametrize("link_target", ["/etc/passwd", "../secret"])
def test_a_link_that_leaves_the_folder_is_refused(folder: Path, link_target: str) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder / "link").symlink_to(link_target)
    with raises_code("unusable-link", UserError):
        collect_members(folder, "w")


def test_a_file_that_gets_shorter_while_it_is_read_is_an_error() -> None:
    with pytest.raises(OSError, match="end of data"):
        tar([Member("w/model.safetensors", 3, lambda: io.BytesIO(b"12"))])
