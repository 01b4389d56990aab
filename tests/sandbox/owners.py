"""Deployments that a template or another machine made, and what the commands say of them."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.checkpoints.contents import files_below, hash_contents
from tests.sandbox.sandboxes import Account
from tests.support import run_in_process

FROZEN = Path(__file__).parents[1] / "catalog" / "peagle" / "tiny"
TYPE = "ml.g5.xlarge"
PAIR = "peagle/tiny+p-eagle"
PLAN = ("tiny", "--instance-type", TYPE)
FOLDERS = {"target": FROZEN / "target", "drafter": FROZEN / "p-eagle"}
REFUSED = 3


@dataclass(frozen=True)
class Machine:
    """A ``$PEAGLE_HOME``, and the variables with which its commands reach the account."""

    home: Path
    account: Account

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **self.account.sandbox.settings,
            **reaching(self.account),
            "PEAGLE_HOME": str(self.home),
        }

    def peagle(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_in_process(*arguments, env=self.environment)

    def json(self, *arguments: str) -> Any:
        """The JSON document of a command that succeeds."""
        done = self.peagle(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def row(self, name: str) -> Any:
        """The deployment in ``peagle list``."""
        (row,) = [each for each in self.json("list")["deployments"] if each["name"] == name]
        return row

    def render(self, form: str, name: str, folder: Path, *options: str) -> Path:
        """The folder with the files of a plan for ``PAIR``."""
        self.json("render", form, *PLAN, "--name", name, "--output", str(folder), *options)
        return folder


def reaching(account: Account) -> dict[str, str]:
    """The variables that lead AWS's clients to the account."""
    variables: dict[str, str] = account.sandbox.json("sandbox", "env")
    return variables


def upload_weights(account: Account, name: str) -> None:
    """What the README of a rendered template asks for."""
    contents = hash_contents(map(files_below, FOLDERS.values()))
    upload_weights_to(account, f"peagle-toolkit/{name}.{contents}/")


def upload_weights_to(account: Account, prefix: str) -> None:
    """The same for a template with another prefix."""
    for part, folder in FOLDERS.items():
        content = {path.name: path.read_bytes() for path in folder.iterdir()}
        account.upload(f"{prefix}{part}/", content)


def left_of(account: Account, name: str) -> list[str]:
    """The models, configurations and endpoints with the tag of the deployment ``name``."""
    tagging = account.client("resourcegroupstaggingapi")
    tag_filter = {"Key": "peagle:deployment", "Values": [name]}
    resources = tagging.get_resources(TagFilters=[tag_filter])["ResourceTagMappingList"]
    return [resource["ResourceARN"] for resource in resources]


def read_tags(account: Account, name: str) -> Mapping[str, str]:
    """The tags of the endpoint."""
    arn = account.describe(name)["EndpointArn"]
    listed = account.sagemaker.list_tags(ResourceArn=arn)["Tags"]
    return {tag["Key"]: tag["Value"] for tag in listed}


def check_a_foreign_deployment(machine: Machine, name: str, owner: str) -> None:
    """What a template made is listed, shown, logged, invoked and proved, and not changed."""
    row = machine.row(name)
    assert (row["owner"], row["pair"], row["state"]) == (owner, PAIR, "Unproved")
    price = row["price_per_hour_usd"]
    assert price == 1.408
    shown = machine.json("status", name)
    assert (shown["owner"], shown["k"], shown["proved"]) == (owner, 7, False)
    assert {resource["type"] for resource in shown["resources"]} == {
        "Endpoint", "EndpointConfig", "Model", "S3Objects",
    }  # fmt: skip
    assert "fake: INFO starting" in machine.peagle("logs", name).stdout
    assert "an answer" in machine.peagle("invoke", name, "hello", "--no-stream").stdout
    assert machine.json("prove", name)["passed"] is True
    assert machine.row(name)["state"] == "InService"
    served = machine.account.describe(name)["EndpointConfigName"]
    changes = (
        ("destroy", name, "--yes"),
        ("deploy", *PLAN, "--name", name, "--k", "4", "--yes"),
        ("rollback", name, "--yes"),
    )
    for command in changes:
        done = machine.peagle(*command)
        assert done.returncode == REFUSED, done.stderr
        assert f"{name} belongs to {owner}" in done.stderr
    assert machine.account.describe(name)["EndpointConfigName"] == served
