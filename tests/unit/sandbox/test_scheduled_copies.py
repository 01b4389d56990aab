"""What the sandbox's scheduler calls at the end of copies, and what its role must allow."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.render.resources import copies_schedule, role_policy, schedule, target_arn
from peagle.sandbox import scheduler

ARN = "arn:aws:sagemaker:us-east-1:1"
TAG = ("peagle:id", "mine")


class Account:
    """The endpoint ``tiny`` with a component of its name, and what was deleted."""

    def __init__(self, copies_arn: str | None) -> None:
        self.deleted: list[str] = []
        policy = role_policy(f"{ARN}:endpoint/tiny", TAG, copies_arn)
        self.role = SimpleNamespace(policies={"one": json.dumps(policy)})
        self.components = SimpleNamespace(
            find=lambda name: self._found("inference-component", name),
            begin_deleting=lambda name: self.deleted.append(f"component {name}"),
        )

    def _found(self, kind: str, name: str) -> Any:
        return SimpleNamespace(arn=f"{ARN}:{kind}/{name}", tags=[{"Key": TAG[0], "Value": TAG[1]}])

    def find_endpoint(self, name: str) -> Any:
        return self._found("endpoint", name)

    def begin_deleting(self, name: str) -> None:
        self.deleted.append(f"endpoint {name}")


def fire(account: Account, patch: pytest.MonkeyPatch, copies: bool) -> None:
    patch.setattr(scheduler, "backend_of", lambda region: account)
    patch.setattr(scheduler, "find_role", lambda arn, region: account.role)
    planned = (copies_schedule if copies else schedule)("us-east-1", "tiny", "at(...)")
    target = {**planned["Target"], "Arn": target_arn("aws", copies), "RoleArn": "role"}
    scheduler._call(target, "us-east-1")


def test_the_component_and_the_endpoint_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(f"{ARN}:inference-component/tiny")

    fire(account, monkeypatch, copies=True)
    fire(account, monkeypatch, copies=False)

    assert account.deleted == ["component tiny", "endpoint tiny"]


def test_a_role_for_an_endpoint_only_deletes_no_component(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(None)

    with pytest.raises(ValueError, match="not authorized to perform: sagemaker:DeleteInference"):
        fire(account, monkeypatch, copies=True)

    assert account.deleted == []
