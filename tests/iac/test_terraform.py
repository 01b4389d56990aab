"""The Terraform module with the AWS provider of an offline mirror; skips without one."""

import json
import shutil
from pathlib import Path

import pytest

from peagle.data import data_folder
from peagle.planning import Options, make_plan
from peagle.render import render
from tests.iac.terraform import change, configure, relax_module, run, write_module
from tests.unit.rendering.plans import CATALOG, plan_of, to_zero

MODULE = data_folder("infra/terraform")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root module, initialized."""
    folder = tmp_path_factory.mktemp("terraform")
    configure(folder)
    write_module(folder, plan_of("observed"))
    done = run(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def test_terraform_accepts_the_module(root: Path) -> None:
    done = run(root, "validate", "-json", "-no-color")
    assert json.loads(done.stdout)["diagnostics"] == []


def test_copies_are_applied_as_the_stack_of_cloudformation(tmp_path: Path) -> None:
    configure(tmp_path)
    for file in render("cloudformation", to_zero(), CATALOG):
        (tmp_path / "stack").mkdir(exist_ok=True)
        (tmp_path / "stack" / file.path).write_bytes(file.content)
    shutil.copy(MODULE / "examples" / "copies" / "main.tf", tmp_path)
    done = run(tmp_path, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "validate", "-json", "-no-color")
    assert json.loads(done.stdout)["diagnostics"] == []
    template = (tmp_path / "stack" / "template.yaml").read_bytes()
    assert len(template) <= 51_200, "the largest template_body"


def test_the_example_is_applied_where_it_is(tmp_path: Path) -> None:
    """Its values are those of a plan, and its module is the one above it."""
    folder = tmp_path / "module" / "examples" / "values"
    shutil.copytree(MODULE, tmp_path / "module", ignore=shutil.ignore_patterns(".terraform*"))
    options = Options(pair="gpt-oss-20b", instance_type="ml.g6e.xlarge", k=5)
    plan = make_plan(options, CATALOG)
    rendered = {file.path: file.content for file in render("terraform", plan, CATALOG)}
    values = json.loads((folder / "values.json").read_text())
    assert values.keys() == json.loads(rendered["values.json"]).keys()
    assert b'source = "./endpoint"\n' in rendered["main.tf"]
    configure(folder)
    relax_module(folder.parents[1])
    change(folder, lambda values: values["instances"].update(ami=None))
    done = run(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    done = run(folder, "validate", "-json", "-no-color")
    assert json.loads(done.stdout)["diagnostics"] == []


def test_the_module_has_terraform_s_own_style() -> None:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    done = run(MODULE, "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, done.stdout
