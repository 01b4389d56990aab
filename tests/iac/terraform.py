"""Terraform with the AWS provider of an offline mirror, which may be older than a user's."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peagle.planning import Plan
from peagle.render import render
from tests.unit.rendering.plans import CATALOG

PROVIDER = Path("registry.terraform.io/hashicorp/aws")
ATTACHED = "TF_REATTACH_PROVIDERS"
"""The variable with which Terraform finds a provider that runs already."""
LESS_COLLECTION = {"GOGC": "off", "GOMEMLIMIT": "700MiB"}
"""A command of Terraform ends before its memory is worth collecting: a quarter of its time."""
PLACES = ("/opt", "/usr/share/terraform", "/usr/local/share/terraform", "~/.terraform.d")


def mirrors() -> Iterator[Path]:
    """Folders that hold the AWS provider in the layout of a filesystem mirror."""
    for place in _candidates():
        if (place / PROVIDER).is_dir():
            yield place


def _candidates() -> Iterator[Path]:
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


def configure(folder: Path) -> None:
    """Let Terraform take its provider from a mirror; skips the test where there is none."""
    mirror = next(mirrors(), None)
    if shutil.which("terraform") is None or mirror is None:
        pytest.skip("no terraform with an offline mirror of hashicorp/aws on this machine")
    (folder / "terraform.rc").write_text(
        f'provider_installation {{\n  filesystem_mirror {{ path = "{mirror}" }}\n}}\n'
    )


def run(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """``terraform`` in the folder."""
    settings = {"TF_CLI_CONFIG_FILE": str(folder / "terraform.rc"), "CHECKPOINT_DISABLE": "1"}
    return subprocess.run(
        ["terraform", *arguments],
        cwd=folder,
        env={**os.environ, **(env or {}), **settings, **LESS_COLLECTION},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


@contextmanager
def running_provider(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """One process of the provider, with these variables, for many commands; yields the variable
    with which they find it. Each command would initialize it again, which is half of its CPU time.
    Yields nothing where the provider is not unpacked; Terraform then begins it as usual."""
    mirror = next(mirrors(), None)
    programs = sorted((mirror / PROVIDER).glob("*/*/terraform-provider-aws_v*")) if mirror else []
    if not programs:
        yield {}
        return
    command = [str(programs[-1]), "-debug"]
    settings = {"PATH": os.environ["PATH"], **env, **LESS_COLLECTION}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stdout is not None
        try:
            words = (line.strip().partition("=") for line in process.stdout)
            value = next(text for name, _, text in words if name == ATTACHED)
            yield {ATTACHED: value.strip("'")}
        finally:
            process.kill()


def write_module(folder: Path, plan: Plan) -> None:
    """What ``peagle render terraform`` writes, as an older provider can read it."""
    for file in render("terraform", plan, CATALOG):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    relax(folder)


def relax(folder: Path) -> None:
    """Remove what the provider 5.100 lacks: the newest AMI and a second source of weights."""
    relax_module(folder / "endpoint")
    change(folder, lambda values: values["instances"].update(ami=None))


def relax_module(folder: Path) -> None:
    """Remove a second source of weights from the module, and its newer provider."""
    versions, module = folder / "versions.tf", folder / "main.tf"
    versions.write_text(versions.read_text().replace('">= 6.25"', '">= 5.100"'))
    second = re.compile(r'    dynamic "additional_model_data_source" \{.*?\n    \}\n', re.DOTALL)
    text, removed = second.subn("", module.read_text())
    assert removed == 1
    module.write_text(text)


def change(folder: Path, edit: Any) -> None:
    """Edit ``values.json`` in place."""
    path = folder / "values.json"
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))
