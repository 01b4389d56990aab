"""The policies in infra/ allow what the toolkit calls."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMED_OTHERWISE = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:HeadObject": "s3:GetObject",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "s3:ListParts": "s3:ListMultipartUploadParts",
    "resourcegroupstaggingapi:GetResources": "tag:GetResources",
}
"""Actions and operations with different names (service authorization reference)."""


IMAGES = ("ensure_build_role", "codebuild.py", "ecr.py", "image_records.py")
"""The modules, and the function of another one, that `peagle image` and `peagle destroy --images`
use."""

REFRESH = ("refresh.py", "refresh_sources.py")
"""The modules that `peagle catalog refresh` uses."""


def _called(where: Callable[[str], bool]) -> set[str]:
    """``service:Operation`` of every ``aws.call`` and ``aws.items`` with literal names, in the
    selected modules and functions."""
    found = set()
    parts = (
        (
            part.name if isinstance(part, ast.FunctionDef) and part.name in IMAGES else file.name,
            part,
        )
        for file in (ROOT / "toolkit" / "peagle").rglob("*.py")
        for part in ast.parse(file.read_text()).body
    )
    for name, part in parts:
        for node in ast.walk(part) if where(name) else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            names = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            if node.func.attr in ("call", "items") and len(names) == 2:
                service = str(names[0]).replace("-", "")
                operation = "".join(part.capitalize() for part in str(names[1]).split("_"))
                action = f"{service}:{operation}"
                found.add(NAMED_OTHERWISE.get(action, action))
    return found


def _allowed(policy: str) -> set[str]:
    document = json.loads((ROOT / "infra" / "iam" / policy).read_text())
    actions: set[str] = set()
    for statement in document["Statement"]:
        action = statement["Action"]
        actions |= {action} if isinstance(action, str) else set(action)
    return actions


def test_the_deploy_policy_allows_every_call() -> None:
    called = _called(lambda file: file not in (*IMAGES, *REFRESH))

    assert len(called) > 10
    assert called - _allowed("deploy-policy.json") == set()


def test_the_image_policy_allows_every_call() -> None:
    called = _called(lambda file: file in IMAGES)

    assert len(called) > 10
    assert called - _allowed("image-policy.json") == set()


def test_what_catalog_refresh_needs_besides_is_documented() -> None:
    called = _called(lambda file: file in REFRESH)
    readme = (ROOT / "infra" / "README.md").read_text()

    more = called - _allowed("deploy-policy.json")
    assert "ec2:DescribeInstanceTypes" in more
    assert [action for action in more if f"`{action}`" not in readme] == []


@pytest.mark.parametrize("kind", ["Model", "EndpointConfig", "Endpoint"])
@pytest.mark.parametrize("verb", ["Create", "Describe", "Delete"])
def test_the_deploy_policy_allows_the_life_of_every_resource(verb: str, kind: str) -> None:
    assert f"sagemaker:{verb}{kind}" in _allowed("deploy-policy.json")
