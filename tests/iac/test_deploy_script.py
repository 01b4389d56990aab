"""``deploy.py`` as a user runs it, with a boto3 that records its calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.iac.formats import run_script
from tests.unit.rendering.plans import BUCKET, ROLE, plan_of

HUB = plan_of("from-hub")
UPLOADED = plan_of("uploaded")


def test_it_creates_waits_and_prints_the_url(tmp_path: Path) -> None:
    done, calls = run_script(HUB, tmp_path, "--role", ROLE)
    assert done.returncode == 0, done.stderr
    assert [operation for operation, _ in calls] == [
        "session",
        "create_model",
        "create_endpoint_config",
        "create_endpoint",
    ]
    assert calls[0][1] == {"region": "us-east-1"}
    assert "/endpoints/peagle-gpt-oss-20b/openai/v1" in done.stdout


@pytest.mark.parametrize("status", ["Failed", "UpdateRollbackFailed", "OutOfService"])
def test_a_failure_is_reported(status: str, tmp_path: Path) -> None:
    done, _ = run_script(HUB, tmp_path, "--role", ROLE, status=status)
    assert done.returncode == 1
    assert "it broke" in done.stderr


@pytest.mark.parametrize(
    ("status", "words"), [("no credentials", "credentials"), ("denied", "you may not")]
)
def test_an_error_of_aws_is_one_line(status: str, words: str, tmp_path: Path) -> None:
    done, _ = run_script(HUB, tmp_path, "--role", ROLE, status=status)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_endpoint_that_failed_before_is_refused_with_a_fix(tmp_path: Path) -> None:
    done, calls = run_script(HUB, tmp_path, "--role", ROLE, status="Failed", there=HUB.name)
    assert done.returncode == 1
    assert "Failed (it broke); delete it with --delete" in done.stderr
    assert [operation for operation, _ in calls] == ["session"], "nothing is created"


def test_an_endpoint_of_another_configuration_is_updated(tmp_path: Path) -> None:
    _, calls = run_script(HUB, tmp_path, "--role", ROLE, status="OutOfService", there=HUB.name)
    assert calls[-1][0] == "update_endpoint"


def test_it_uploads_folders_without_folder_keys(tmp_path: Path) -> None:
    for part in ("target", "drafter"):
        (tmp_path / part / "sub").mkdir(parents=True)
        (tmp_path / part / "config.json").write_text("{}")
        (tmp_path / part / "sub" / "model.safetensors").write_text("")
    done, calls = run_script(
        UPLOADED,
        tmp_path,
        *("--role", ROLE, "--bucket", BUCKET),
        *("--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "drafter")),
    )
    assert done.returncode == 0, done.stderr
    uploads = [call["key"] for operation, call in calls if operation == "upload_file"]
    assert uploads == [
        "peagle-toolkit/tiny/target/config.json",
        "peagle-toolkit/tiny/target/sub/model.safetensors",
        "peagle-toolkit/tiny/drafter/config.json",
        "peagle-toolkit/tiny/drafter/sub/model.safetensors",
    ]
    assert [operation for operation, _ in calls].index("upload_file") == 1, "before the model"
    assert all(
        call["Metadata"]["sha256"] for operation, call in calls if operation == "upload_file"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--role, --bucket, --target, --drafter"),
        (["--role", ROLE, "--bucket", BUCKET], "--target, --drafter"),
        (["--region", "eu-west-1"], "invalid choice"),
    ],
)
def test_missing_requirements_are_reported_before_anything_is_created(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    done, calls = run_script(UPLOADED, tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert calls == []


def test_a_folder_without_a_model_is_reported(tmp_path: Path) -> None:
    done, calls = run_script(
        UPLOADED,
        tmp_path,
        *("--role", ROLE, "--bucket", BUCKET),
        *("--target", str(tmp_path), "--drafter", str(tmp_path)),
    )
    assert done.returncode == 2
    assert "holds no config.json" in done.stderr
    assert calls == []


def test_delete_needs_no_option_and_no_endpoint(tmp_path: Path) -> None:
    done, calls = run_script(UPLOADED, tmp_path, "--delete")
    assert done.returncode == 0, done.stderr
    assert [operation for operation, _ in calls] == ["session"]


def test_it_changes_and_deletes_what_it_made(tmp_path: Path) -> None:
    """With moto, in a process of its own, whose reason deploy_script_changes_in_moto.py has; and
    where AWS denies a call."""
    folder = Path(__file__).parent
    scripts = sorted(map(str, folder.glob("deploy_script_*_in_moto.py")))
    assert len(scripts) == 2
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.iac.deploy_script_account", "-n0")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--basetemp={tmp_path / 'tests'}", *scripts],
        cwd=folder.parents[1],
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
