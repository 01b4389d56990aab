"""The formats as files: golden, complete, refusing what they cannot express."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from peagle.cli.plan import plan as plan_command
from peagle.data import data_folder
from peagle.errors import NotFound, Unsupported
from peagle.options import select_file_keys
from peagle.planning import Options, Plan, make_plan
from peagle.render import RenderedFile, format_names, render
from peagle.render.files import PLAN
from peagle.render.image import serve_digest
from peagle.render.plan_file import read_plan
from peagle.render.requests import plan_arguments, reproduce_options
from tests.golden import assert_golden
from tests.support import raises_code
from tests.unit.rendering.plans import BUILT, CATALOG, plan_of

KUBERNETES = ("hyperpod", "kserve")
COPIED = {
    path.read_bytes()
    for folder in ("infra/terraform", "infra/cdk")
    for path in data_folder(folder).rglob("*.*")
    if path.is_file()
}
"""The contents of files that are the same for every plan."""


def files(format: str, plan: Plan) -> dict[str, RenderedFile]:
    return {file.path: file for file in render(format, plan, CATALOG)}


def text(format: str, plan: Plan, path: str) -> str:
    return files(format, plan)[path].content.decode()


@pytest.mark.parametrize("shape", ["from-hub", "uploaded"])
@pytest.mark.parametrize("format", format_names())
def test_golden_files(format: str, shape: str) -> None:
    for file in render(format, plan_of(shape), CATALOG):
        path = file.path.removeprefix("image/")
        same = file.content in COPIED or path.startswith(("peagle/peagle_serve/", "plan.json"))
        if format == "compose":  # the build context is that of the format dockerfile
            same = same or path != file.path
        if not same:
            # Not as .py: it is output, not a module of the tests.
            name = file.path.replace(".py", ".py.txt")
            # The digests of entrypoint and image change with every line of the entrypoint.
            content = file.content.replace(serve_digest().encode(), b"DIGEST-OF-SERVE")
            content = re.sub(rb'(peagle\.content=")[0-9a-f]{64}', rb"\1DIGEST-OF-CONTENT", content)
            content = re.sub(rb"(-gpu-)[0-9a-f]{12}\b", rb"\1DIGEST", content)
            content = re.sub(rb"(?<=source: )/\S+(?=/peagle/tiny/)", b"/model_catalog", content)
            assert_golden(f"rendered/{shape}/{format}/{name}", content)


@pytest.mark.parametrize("format", ["cloudformation", "terraform"])
def test_golden_files_of_an_image_with_its_weights(format: str) -> None:
    for file in render(format, plan_of("baked"), CATALOG):
        if file.content in COPIED:
            continue
        name = file.path.replace(".py", ".py.txt")
        assert_golden(f"rendered/baked/{format}/{name}", file.content)


def test_an_existing_image_is_not_built_again() -> None:
    with raises_code("format-unsupported", Unsupported):
        render("dockerfile", plan_of("baked"), CATALOG)


@pytest.mark.parametrize("format", sorted(KUBERNETES))
@pytest.mark.parametrize(("condition", "code"), [("Complete", 0), ("FailureTarget Failed", 1)])
def test_readme_waits_for_either_end_of_the_gate(format: str, condition: str, code: int) -> None:
    """A stand-in for kubectl answers with the end; without one, the loop sleeps."""
    readme = text(format, plan_of("uploaded"), "README.md")
    commands = readme[readme.index("for _ in") :].partition("```")[0]
    stub = f"""sleep() {{ exit 9; }}
    kubectl() {{
        case "$1" in
            get) echo "{condition}" ;;
            logs) echo the log ;;
            wait) [ "{condition}" = Complete ] ;;
        esac
    }}
    """
    done = subprocess.run(
        ["bash", "-ec", stub + commands], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "the log\n"), done.stderr


def test_an_unknown_format_suggests_the_nearest() -> None:
    with raises_code("unknown-format", NotFound) as refused:
        render("terrafrom", plan_of("from-hub"), CATALOG)
    assert "terraform" in refused.value.fix


@pytest.mark.parametrize("shape", ["from-hub", "observed"])
def test_terraform_reads_every_value_and_no_other(shape: str) -> None:
    """The module's variables are the values, the role and the bucket, and the moment of the end."""
    written = json.loads(text("terraform", plan_of(shape), "values.json"))
    declared = re.findall(r'^variable "(\w+)"', text("terraform", plan_of(shape),
                          "endpoint/variables.tf"), re.MULTILINE)  # fmt: skip
    values = re.findall(r"= local\.values\.(\w+)", text("terraform", plan_of(shape), "main.tf"))
    assert set(values) == set(written)
    assert set(declared) - set(values) == {
        "execution_role_arn", "model_bucket", "ends_at", "log_kms_key_arn",
    }  # fmt: skip
    assert set(values) - set(declared) == {"region"}


@pytest.mark.parametrize("shape", [shape for shape in BUILT if shape != "company"])
def test_the_readmes_command_makes_the_same_plan(shape: str) -> None:
    plan = plan_of(shape)
    pair, *words = plan_arguments(plan)
    command = plan_command.make_context("plan", [pair, *words])
    values = {name: value for name, value in command.params.items() if name in Options.model_fields}
    asked = Options.model_validate(
        {
            **{name: value for name, value in values.items() if value not in (None, ())},
            **select_file_keys(reproduce_options(plan)),
            "speculation": not command.params["no_speculation"],
        }
    )
    again = make_plan(asked, CATALOG)
    # With an explicit instance type and count, other ones are compared.
    unexplained = {
        "reasons": (), "findings": (), "alternatives": (), "without_speculation": None,
        "options": plan.options,
    }  # fmt: skip
    assert again.model_copy(update=unexplained) == plan.model_copy(update=unexplained)
    readme = text("dockerfile", plan, "README.md")
    assert f"peagle deploy {shlex.join(plan_arguments(plan))} --image $REGISTRY/" in readme


@pytest.mark.thorough
def test_another_partition_has_its_own_domain() -> None:
    plan = plan_of("uploaded")
    image = plan.runtime.image.replace("us-east-1.amazonaws.com", "cn-north-1.amazonaws.com.cn")
    runtime = plan.runtime.model_copy(update={"image": image})
    china = plan.model_copy(update={"region": "cn-north-1", "runtime": runtime})
    for name in format_names():
        for path, file in files(name, china).items():
            if "peagle/peagle_serve/" not in path:
                wrong = re.findall(rb"cn-north-1\.amazonaws\.com(?!\.cn)", file.content)
                assert not wrong, (name, path)
    made = b"".join(file.content for file in render("terraform", china, CATALOG))
    assert b"https://runtime.sagemaker.cn-north-1.amazonaws.com.cn/endpoints/" in made


@pytest.mark.parametrize("format", format_names())
def test_every_folder_has_the_plan_that_drift_reads(format: str, tmp_path: Path) -> None:
    plan = plan_of("uploaded")
    (tmp_path / PLAN).write_bytes(files(format, plan)[PLAN].content)
    assert read_plan(tmp_path / PLAN) == plan


@pytest.mark.parametrize("format", format_names())
def test_control_characters_reach_no_rendered_text(format: str) -> None:
    environment = {"NOTE": "a\x1b[31mred\x07\u009b\n```\n'\\\\"}
    plan = make_plan(Options(pair="tiny", environment=environment), CATALOG)
    for path, file in files(format, plan).items():
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", file.content.decode()), path
    words = re.findall(r"NOTE=(?:[^'\\]|\\.)*'", text(format, plan, "README.md"))
    for word in words:
        shown = subprocess.run(
            ["bash", "-c", f"printf %s $'{word}"], capture_output=True, check=True
        )
        assert shown.stdout.decode() == f"NOTE={environment['NOTE']}"


@pytest.mark.parametrize("format", ["cdk", "cloudformation"])
def test_a_text_that_cloudformation_would_replace_is_refused(format: str) -> None:
    environment = {"NOTE": "{{resolve:secretsmanager:theirs}}"}
    plan = make_plan(Options(pair="tiny", environment=environment), CATALOG)
    with raises_code("format-unsupported", Unsupported) as refused:
        render(format, plan, CATALOG)
    assert "{{resolve:" in refused.value.message
    assert environment["NOTE"] in text("terraform", plan, "values.json")


@pytest.mark.parametrize("format", format_names())
def test_the_commit_of_a_head_is_written(format: str) -> None:
    head, commit = "amazon/GPT-OSS-20B-P-EAGLE", "a" * 40
    made = files(
        format, make_plan(Options(pair="gpt-oss-20b", drafter=f"{head}@{commit}"), CATALOG)
    )
    only = "README.md" if format == "dockerfile" else None  # what to deploy with the image
    assert any(
        commit.encode() in made[path].content
        for path in ([only] if only else made.keys() - {"README.md", PLAN})
    )
