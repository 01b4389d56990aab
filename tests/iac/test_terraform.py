"""``terraform validate`` accepts the configuration, with the AWS provider of an offline mirror.

The tests skip without terraform or a mirror: they download nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.planning import Plan
from peagle.render import render
from tests.unit.rendering.plans import CATALOG, plan_of

PROVIDER = Path("registry.terraform.io/hashicorp/aws")
PLACES = ("/opt", "/usr/share/terraform", "/usr/local/share/terraform", "~/.terraform.d")


def mirrors() -> Iterator[Path]:
    """Folders that hold the AWS provider in the layout of a filesystem mirror."""
    for place in candidates():
        if (place / PROVIDER).is_dir():
            yield place


def candidates() -> Iterator[Path]:
    """The folders in the user's terraform settings, then the usual ones and their subfolders."""
    cache = os.environ.get("TF_PLUGIN_CACHE_DIR")
    if cache:
        yield Path(cache)
    config = Path(os.environ.get("TF_CLI_CONFIG_FILE", "~/.terraformrc")).expanduser()
    if config.is_file():
        for path in re.findall(r'(?:path|plugin_cache_dir)\s*=\s*"([^"]+)"', config.read_text()):
            yield Path(path).expanduser()
    for place in map(Path, PLACES):
        folder = place.expanduser()
        yield folder
        yield from sorted(folder.glob("*/")) if folder.is_dir() else ()


SHAPES = ("from-hub", "uploaded", "own-folder", "two-instances")
NASTY = {"PLAIN": "a ${b} %{if} $${c} \"d\" \\ 'e'\nf"}


@pytest.fixture(scope="module")
def configurations() -> dict[str, Any]:
    """The configuration of every shape of plan, a wrong one, and one with templates in its text."""
    made = {shape: main(plan_of(shape)) for shape in SHAPES}
    made["wrong"] = main(plan_of("from-hub"))
    made["wrong"]["resource"]["aws_sagemaker_model"]["this"]["color"] = "red"
    made["nasty"] = main(plan_of("from-hub").model_copy(update={"environment": NASTY}))
    made["nasty"]["output"]["plain"] = {"value": plain(made["nasty"])}
    return made


@pytest.fixture(scope="module")
def terraform(configurations: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the provider and every configuration as a module: reading the schema of the
    provider takes seconds, so one run validates all."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    mirror = next(mirrors(), None)
    if mirror is None:
        pytest.skip("no offline mirror of hashicorp/aws on this machine")
    folder = tmp_path_factory.mktemp("terraform")
    (folder / "terraform.rc").write_text(
        f'provider_installation {{\n  filesystem_mirror {{ path = "{mirror}" }}\n}}\n'
    )
    for name, document in configurations.items():
        (folder / name).mkdir()
        (folder / name / "main.tf.json").write_text(json.dumps(document))
    (folder / "main.tf.json").write_text(json.dumps(calls(configurations)))
    done = run(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def calls(configurations: dict[str, Any]) -> dict[str, Any]:
    """A configuration with these as modules; it declares their variables."""
    variables = {name: one.get("variable", {}) for name, one in configurations.items()}
    return {
        "variable": {key: {} for declared in variables.values() for key in declared},
        "module": {
            name: {"source": f"./{name}", **{key: f"${{var.{key}}}" for key in declared}}
            for name, declared in variables.items()
        },
    }


@pytest.fixture(scope="module")
def complaints(terraform: Path) -> dict[str, list[str]]:
    """The errors of ``terraform validate``, by configuration."""
    done = run(terraform, "validate", "-json", "-no-color")
    found: dict[str, list[str]] = defaultdict(list)
    for one in json.loads(done.stdout)["diagnostics"]:
        name = Path(one["range"]["filename"]).parts[0]
        found[name].append(f"{one['summary']}: {one['detail']}")
    return found


def run(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    settings = {"TF_CLI_CONFIG_FILE": str(folder / "terraform.rc"), "CHECKPOINT_DISABLE": "1"}
    return subprocess.run(
        ["terraform", *arguments],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


def main(plan: Plan) -> dict[str, Any]:
    """The configuration for the provider of the mirror, which may be older than a user's."""
    (file,) = [file for file in render("terraform", plan, CATALOG) if file.path == "main.tf.json"]
    document: dict[str, Any] = json.loads(file.content)
    document["terraform"]["required_providers"]["aws"]["version"] = ">= 5.100"
    return document


def plain(document: dict[str, Any]) -> str:
    """The variable of ``NASTY`` in the configuration."""
    (container,) = document["resource"]["aws_sagemaker_model"]["this"]["primary_container"]
    return str(container["environment"]["PLAIN"])


@pytest.mark.parametrize("shape", [*SHAPES, "nasty"])
def test_terraform_accepts_the_configuration(shape: str, complaints: dict[str, list[str]]) -> None:
    assert complaints[shape] == []


def test_the_check_finds_an_unknown_argument(complaints: dict[str, list[str]]) -> None:
    assert any("color" in complaint for complaint in complaints["wrong"])


def test_text_with_templates_reaches_the_provider_unchanged(
    terraform: Path, configurations: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copy(terraform / "terraform.rc", tmp_path)
    (tmp_path / "main.tf.json").write_text(
        json.dumps({"locals": {"plain": plain(configurations["nasty"])}})
    )
    asked = run(tmp_path, "console", "-no-color", input="jsonencode(local.plain)\n")
    assert json.loads(json.loads(asked.stdout)) == NASTY["PLAIN"], asked.stderr
