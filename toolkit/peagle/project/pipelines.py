"""The files of a pipeline that deploys the endpoints of a project file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from peagle.data import data_folder
from peagle.errors import UserError

PipelineKind = Literal["github", "codepipeline"]
KINDS: tuple[str, ...] = get_args(PipelineKind)

STARTER = "peagle.yaml"
SCHEMA = "peagle.schema.json"

_FOLDERS: dict[str, str] = {"github": ".github/workflows", "codepipeline": "."}
_TRUST: dict[str, tuple[str, ...]] = {
    "github": ("github-oidc-trust.json", "github-oidc-plan-trust.json"),
    "codepipeline": (),
}
_ROLE_POLICIES = (
    "execution-role-trust.json", "execution-role-policy.json", "image-policy.json",
    "read-policy.json", "deploy-policy.json", "limit-policy.json", "scaling-policy.json",
)  # fmt: skip
"""Of the role that SageMaker assumes, and of those that build images, plan, and deploy: the starter
project has a ``ttl``, and any endpoint may scale."""

_ENDPOINTS = "endpoint: [chat]"
_ENDPOINT_DEFAULT = "Default: chat"
_PACKAGE = "TOOLKIT"
"""What the files of ``infra/pipelines`` say; each is replaced by the project's own."""

_ACCOUNT = re.compile(r"\d{12}", re.ASCII)
_REPOSITORY = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)


def starter_project() -> str:
    """A project file to begin with."""
    return (data_folder("infra/pipelines") / STARTER).read_text("utf-8")


def pipeline_files(
    kind: PipelineKind, endpoints: Sequence[str], toolkit: str, values: Mapping[str, str]
) -> dict[str, bytes]:
    """The files by path: workflows or build specifications, and the policies of the roles.

    A pipeline of CodePipeline deploys one endpoint, the first unless its stack names another.

    ``toolkit`` are the arguments of the ``pip install`` of the toolkit, as in a shell. ``values``
    replace ``${account}``, ``${partition}`` and ``${repository}`` in policies; one that
    is absent stays. Raises UserError for a value that is none.
    """
    _check(values)
    folder = data_folder("infra/pipelines") / kind
    files = {
        str(Path(_FOLDERS[kind]) / file.name): _of_project(file, endpoints, toolkit)
        for file in sorted(folder.iterdir())
        if file.suffix in (".yml", ".yaml")
    }
    for name in (*_TRUST[kind], *_ROLE_POLICIES):
        text = (data_folder("infra/iam") / name).read_text("utf-8")
        for key, value in values.items():
            text = text.replace(f"${{{key}}}", value)
        files[f"iam/{name}"] = text.encode()
    return files


def schema_bytes(schema: Mapping[str, Any]) -> bytes:
    """The JSON schema as a file."""
    return f"{json.dumps(schema, indent=2)}\n".encode()


def _of_project(file: Path, endpoints: Sequence[str], toolkit: str) -> bytes:
    text = file.read_text("utf-8")
    text = text.replace(_ENDPOINTS, f"endpoint: [{', '.join(endpoints)}]")
    text = text.replace(_ENDPOINT_DEFAULT, f"Default: {endpoints[0]}")
    return text.replace(_PACKAGE, toolkit).encode()


def _check(values: Mapping[str, str]) -> None:
    patterns = {"account": (_ACCOUNT, "12 digits"), "repository": (_REPOSITORY, "OWNER/NAME")}
    for key, (pattern, expected) in patterns.items():
        if key in values and not pattern.fullmatch(values[key]):
            raise UserError(f"--{key} {values[key][:60]!r} is not {expected}", f"write {expected}")
