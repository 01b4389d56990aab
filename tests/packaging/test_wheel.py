"""What users get when they install the wheel without the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environments import with_pip
from tests.support import bundled_catalog

pytestmark = [pytest.mark.install, pytest.mark.exhaustive]
ROOT = Path(__file__).resolve().parents[2]
CORE_LIMIT_MB = 100


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as ``python -m build`` makes it."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def build(source: Path, folder: Path) -> Path:
    """Build the wheel of ``source`` into ``folder``."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        [*command, str(source)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with only the wheel and its locked core requirements."""
    folder = tmp_path_factory.mktemp("environment")
    with_pip(folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    locked = ["--require-hashes", "-r", str(ROOT / "requirements" / "core.txt")]
    subprocess.run([*pip, "install", *locked], check=True)
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    return folder


def test_the_wheel_carries_catalogue_and_container_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "peagle/_data/docs/errors.md",
        "peagle/_data/infra/iam/github-oidc-trust.json",
        "peagle/_data/infra/pipelines/github/peagle-deploy.yml",
        "peagle/_data/model_catalog/openai/gpt-oss-20b.yaml",
        "peagle/_data/model_catalog/peagle/tiny/p-eagle/model.safetensors",
        "peagle_serve/__main__.py",
        "peagle_serve/plugin/peagle_serve-1.dist-info/entry_points.txt",
    ):
        assert needed in names


def test_the_wheel_built_elsewhere_is_the_same_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    copy = tmp_path / "another folder"
    for name in reversed(names.rstrip("\0").split("\0")):
        if (ROOT / name).exists():  # removed, and not committed yet
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    again = build(copy, tmp_path / "wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_has_the_licences_of_what_it_bundles_and_its_bill_of_materials(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if re.fullmatch(r"[^/]+/METADATA", name)]
        folder = metadata.rpartition("/")[0]
        licence = archive.read(f"{folder}/licenses/LICENSES/PSF-2.0.txt").decode()
        sbom = json.loads(archive.read(f"{folder}/sboms/core.cdx.json"))
        head = archive.read(metadata).decode()
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence
    assert {f"{folder}/licenses/LICENSE", f"{folder}/licenses/NOTICE"} <= set(names)
    assert "License-Expression: Apache-2.0 AND PSF-2.0\n" in head
    assert "boto3" in {component["name"] for component in sbom["components"]}


def test_an_installed_wheel_lists_the_catalogue_without_the_checkout(
    empty_environment: Path, tmp_path: Path
) -> None:
    command = [str(empty_environment / "bin" / "peagle"), "catalog", "list", "--json"]
    with bundled_catalog():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "gpt-oss-20b" in json.dumps(json.loads(done.stdout))


def test_the_core_install_stays_small(empty_environment: Path) -> None:
    packages = next(empty_environment.glob("lib/python*/site-packages"))
    tools = ("pip", "setuptools")
    files = [
        path
        for path in packages.rglob("*")
        if path.is_file() and not path.relative_to(packages).parts[0].startswith(tools)
    ]
    assert sum(path.stat().st_size for path in files) < CORE_LIMIT_MB * 1e6


def test_without_its_extra_the_sandbox_names_what_to_install(
    empty_environment: Path, tmp_path: Path
) -> None:
    command = [str(empty_environment / "bin" / "peagle"), "sandbox", "start"]
    home = {**os.environ, "PEAGLE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=home, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "peagle-toolkit[sandbox]" in done.stderr
    assert "Traceback" not in done.stderr
