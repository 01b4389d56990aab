"""The bill of materials of the wheel and of images, as CycloneDX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.errors import EngineError
from peagle.images import Docker
from peagle.images.inspect import Image
from peagle.images.sbom import (
    _PRINT_INVENTORY,
    image_sbom,
    locked_components,
    sbom_text,
    wheel_sbom,
)
from tests.support import Peagle, raises_code
from tests.unit.cli.test_image_command import built_image
from tests.unit.images.conftest import FakeDocker, docker

__all__ = ["docker"]

REQUIREMENTS = Path(__file__).parents[3] / "requirements"
INVENTORY = json.dumps(
    {
        "python": [["Torch", "2.13.0+cpu"], ["typing_extensions", "4.16.0"]],
        "debian": [["libstdc++6", "12.2.0-14", "amd64"]],
        "system": ["debian", "12"],
    }
)
IMAGE = Image("mine:1", "sha256:1", "", 1, None, "", {"peagle.pair": "a/b"}, ())


AT_A_TIME = 20
"""Components in one document that the schema checks: it compares each with all others."""


def assert_valid(text: str) -> None:
    """The document and each of its components follow CycloneDX' schema; all are different."""
    # Two seconds to import, which every worker would wait for before its first test.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator, document = JsonStrictValidator(SchemaVersion.V1_6), json.loads(text)
    components = document["components"]
    assert len({json.dumps(one, sort_keys=True) for one in components}) == len(components)
    for first in range(0, max(len(components), 1), AT_A_TIME):
        part = {**document, "components": components[first : first + AT_A_TIME]}
        assert validator.validate_str(json.dumps(part)) is None


def test_the_sbom_in_the_wheel_lists_what_the_lock_has() -> None:
    lock = (REQUIREMENTS / "core.txt").read_text()

    text = sbom_text(wheel_sbom(lock))

    assert text == (REQUIREMENTS / "core.cdx.json").read_text(), "run make lock"
    assert_valid(text)
    components = json.loads(text)["components"]
    locked = [line.partition("==")[0] for line in lock.splitlines() if line[:1].isalnum()]
    assert [one["name"] for one in components] == locked
    hashes = [file for one in components for file in one["externalReferences"][0]["hashes"]]
    assert len(hashes) == lock.count("--hash=sha256:")


def test_a_locked_package_keeps_its_version_and_hashes_beside_a_marker() -> None:
    lock = f'a-b==1.0 ; python_version < "3.12" \\\n    --hash=sha256:{"1" * 64}\nc==2\n'
    found = [(one.purl, one.hashes) for one in locked_components(lock)]
    assert found == [("pkg:pypi/a-b@1.0", ("1" * 64,)), ("pkg:pypi/c@2", ())]


def test_the_sbom_of_an_image_lists_python_and_debian_packages(docker: FakeDocker) -> None:
    docker.answers("run", out=INVENTORY)

    document = image_sbom(Docker(), IMAGE)

    assert_valid(sbom_text(document))
    assert [one["purl"] for one in document["components"]] == [
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14?arch=amd64&distro=debian-12",
        "pkg:pypi/torch@2.13.0%2Bcpu",
        "pkg:pypi/typing-extensions@4.16.0",
    ]
    assert document == image_sbom(Docker(), IMAGE)


@pytest.mark.thorough
def test_the_list_of_packages_is_that_of_the_system_it_is_printed_in(
    docker: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(_PRINT_INVENTORY, {})  # a container runs it with its own Python
    docker.answers("run", out=capsys.readouterr().out.strip())

    document = image_sbom(Docker(), IMAGE)

    purls = {one["purl"] for one in document["components"]}
    assert f"pkg:pypi/pytest@{pytest.__version__}" in purls
    assert not Path("/var/lib/dpkg/status").exists() or any("/libc6@" in one for one in purls)
    assert_valid(sbom_text(document))


@pytest.mark.parametrize("printed", ["", "[]", '{"python": [1]}', '{"system": 1}', "x"])
def test_an_image_that_lists_no_packages_is_an_error(docker: FakeDocker, printed: str) -> None:
    docker.answers("run", out=printed)

    with raises_code("no-packages", EngineError):
        image_sbom(Docker(), IMAGE)


@pytest.mark.thorough
def test_a_build_writes_the_sbom_beside_the_image(
    peagle: Peagle, docker: FakeDocker, tmp_path: Path
) -> None:
    docker.answers("run", out=INVENTORY)
    command = built_image(docker, "gpu")

    shown = json.loads(peagle(*command, "--json").stdout)
    assert_valid(Path(shown["sbom"]).read_text())

    chosen = tmp_path / "mine.cdx.json"
    assert f"SBOM: {chosen}" in peagle(*command, "--sbom", str(chosen)).stderr
    assert chosen.read_text() == Path(shown["sbom"]).read_text()

    nowhere = peagle(*command, "--sbom", str(tmp_path / "none" / "x"))
    assert nowhere.returncode == 2
    assert "cannot be written" in nowhere.stderr

    docker.answers("rm", "mine:1")
    assert peagle("image", "remove", "mine:1").returncode == 0
    assert not Path(shown["sbom"]).exists()


@pytest.mark.thorough
def test_without_a_list_of_packages_the_image_is_built_all_the_same(
    peagle: Peagle, docker: FakeDocker
) -> None:
    done = peagle(*built_image(docker, "gpu"), "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sbom"] is None
    assert "No SBOM: " in done.stderr


def test_codebuild_cannot_write_one(peagle: Peagle) -> None:
    done = peagle("image", "build", "gpt-oss-20b", "--builder", "codebuild", "--sbom", "x.json")
    assert done.returncode == 3
    assert "omit --sbom" in done.stderr
