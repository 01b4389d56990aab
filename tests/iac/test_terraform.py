"""Terraform's own check of the configuration, with the AWS provider of an offline mirror.

Skipped where there is no terraform or no mirror: nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
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
    """Folders that hold the AWS provider as terraform's filesystem mirrors do."""
    for place in candidates():
        if (place / PROVIDER).is_dir():
            yield place


def candidates() -> Iterator[Path]:
    """What the user's settings of terraform name, then the usual places and what is in them."""
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


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the provider is installed; its environment is in ``settings``."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    mirror = next(mirrors(), None)
    if mirror is None:
        pytest.skip("no offline mirror of hashicorp/aws on this machine")
    folder = tmp_path_factory.mktemp("terraform")
    (folder / "terraform.rc").write_text(
        f'provider_installation {{\n  filesystem_mirror {{ path = "{mirror}" }}\n}}\n'
    )
    (folder / "main.tf.json").write_bytes(main(plan_of("from-hub")))
    done = run(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"TF_CLI_CONFIG_FILE": str(folder / "terraform.rc"), "CHECKPOINT_DISABLE": "1"}
    return subprocess.run(
        ["terraform", *arguments],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def main(plan: Plan) -> bytes:
    """The configuration, for the provider of the mirror: it may be older than a user's."""
    (file,) = [file for file in render("terraform", plan, CATALOG) if file.path == "main.tf.json"]
    document = json.loads(file.content)
    document["terraform"]["required_providers"]["aws"]["version"] = ">= 5.100"
    return json.dumps(document).encode()


def validate(folder: Path, content: bytes) -> list[str]:
    """terraform's complaints about this configuration."""
    (folder / "main.tf.json").write_bytes(content)
    done = run(folder, "validate", "-json", "-no-color")
    answer: dict[str, Any] = json.loads(done.stdout)
    return [f"{d['summary']}: {d['detail']}" for d in answer["diagnostics"]]


@pytest.mark.parametrize("shape", ["from-hub", "uploaded", "own-folder", "two-instances"])
def test_terraform_takes_the_configuration(shape: str, terraform: Path) -> None:
    assert validate(terraform, main(plan_of(shape))) == []


def test_the_check_sees_what_is_wrong(terraform: Path) -> None:
    document = json.loads(main(plan_of("from-hub")))
    document["resource"]["aws_sagemaker_model"]["this"]["colour"] = "red"
    assert any(
        "colour" in complaint for complaint in validate(terraform, json.dumps(document).encode())
    )


def test_text_with_templates_in_it_reaches_the_provider_as_it_is(terraform: Path) -> None:
    plan = plan_of("from-hub")
    nasty = {"PLAIN": "a ${b} %{if} $${c} \"d\" \\ 'e'\nf"}
    changed = plan.model_copy(update={"environment": nasty})
    document = json.loads(main(changed))
    (container,) = document["resource"]["aws_sagemaker_model"]["this"]["primary_container"]
    document["output"]["plain"] = {"value": container["environment"]["PLAIN"]}
    assert validate(terraform, json.dumps(document).encode()) == []
    expression = json.dumps(container["environment"]["PLAIN"])
    (terraform / "main.tf.json").write_text(
        json.dumps({"locals": {"plain": json.loads(expression)}})
    )
    asked = subprocess.run(
        ["terraform", "console", "-no-color"],
        cwd=terraform,
        input="jsonencode(local.plain)\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert json.loads(json.loads(asked.stdout)) == nasty["PLAIN"], asked.stderr
