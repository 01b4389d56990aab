"""What a rendered script, Terraform or another machine deployed is listed and proved; it is changed
and removed once it is this toolkit's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.data import weights_folder
from tests.faults.account import BUCKET, INSTANCE_TYPE, NAME, create_as
from tests.sandbox.sandboxes import ROLE, Account, Sandbox
from tests.support import Done, in_process

pytestmark = pytest.mark.sandbox

UPDATE = ("deploy", "tiny", "--name", NAME, "--instance-type", INSTANCE_TYPE, "--yes", "--k", "3")


class Machine:
    """A machine with a state folder of its own, to which the sandbox is AWS."""

    def __init__(self, sandbox: Sandbox, home: Path) -> None:
        address = sandbox.json("sandbox", "env")
        self.environment = {**os.environ, **address, "PEAGLE_HOME": str(home)}

    def peagle(self, *words: str) -> Done:
        return in_process(*words, "--json", environment=self.environment)

    def listed(self) -> dict[str, object]:
        (row,) = self.peagle("list").document["deployments"]
        return {key: row[key] for key in ("name", "state", "owner", "price_per_hour_usd")}


@pytest.fixture
def machine(sandbox: Sandbox, tmp_path: Path) -> Machine:
    sandbox.reset()
    return Machine(sandbox, tmp_path / "first")


def _by_script(machine: Machine, folder: Path) -> None:
    """As a user: render, then run the script with boto3."""
    rendered = machine.peagle(
        "render", "boto3", "tiny", "--instance-type", INSTANCE_TYPE, "--output", str(folder)
    )
    assert rendered.code == 0, rendered.err
    words = ["--role", ROLE, "--bucket", BUCKET]
    for part in ("target", "drafter"):
        inside = "target" if part == "target" else "p-eagle"
        words += [f"--{part}", str(weights_folder(f"catalog:peagle/tiny/{inside}"))]
    done = subprocess.run(
        [sys.executable, str(folder / "deploy.py"), *words],
        env=machine.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("owner", ["boto3", "terraform"])
def test_what_was_rendered_is_shown_and_proved_and_changed_after_adoption(
    owner: str, machine: Machine, account: Account, tmp_path: Path
) -> None:
    if owner == "boto3":
        account.s3.create_bucket(Bucket=BUCKET)
        _by_script(machine, tmp_path / "out")
    else:  # with the calls of its provider
        create_as(account, owner)
        account.wait_until_stable(NAME)

    row = machine.listed()
    assert (row["name"], row["state"]) == (NAME, "Unproved")
    assert owner in str(row["owner"]).lower()
    assert machine.peagle("prove", NAME).document["passed"] is True
    assert machine.listed()["state"] == "InService"
    for words in (UPDATE, ("rollback", NAME, "--yes"), ("destroy", NAME, "--yes")):
        refused = machine.peagle(*words)
        assert (refused.code, owner in refused.error.lower()) == (3, True), refused.err
    assert account.describe(NAME)["EndpointStatus"] == "InService"

    assert machine.peagle("adopt", NAME, "--yes").code == 0
    assert machine.listed()["owner"] == "peagle"
    updated = machine.peagle(*UPDATE)
    assert (updated.code, updated.document["k"]) == (0, 3), updated.err
    returned = machine.peagle("rollback", NAME, "--yes")
    assert (returned.code, returned.document["k"]) == (0, 5), returned.err
    assert machine.peagle("destroy", NAME, "--yes").code == 0
    assert machine.peagle("list").document["deployments"] == []


def test_what_another_machine_deployed_is_changed_and_removed(
    machine: Machine, sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    assert machine.peagle(*UPDATE[:-2]).code == 0
    other = Machine(sandbox, tmp_path / "second")

    assert other.listed() == machine.listed()
    assert other.peagle("prove", NAME).document["passed"] is True
    updated = other.peagle(*UPDATE)
    assert (updated.code, updated.document["k"]) == (0, 3), updated.err
    returned = other.peagle("rollback", NAME, "--yes")
    assert (returned.code, returned.document["k"]) == (0, 5), returned.err
    assert other.peagle("destroy", NAME, "--yes").code == 0
    assert account.sagemaker.list_endpoints()["Endpoints"] == []
    assert (machine.listed()["state"], machine.listed()["price_per_hour_usd"]) == ("Missing", None)
    assert machine.peagle("destroy", NAME, "--yes").code == 0
    assert machine.peagle("list").document["deployments"] == []
