"""The files of a pipeline that deploys the endpoints of a project file, and where it installs the
toolkit from.

No public index has the toolkit: a name that pip looks up there could be anyone's. So the user names
a wheel or an index, and from a checkout the wheel is built and written beside the pipeline.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess  # nosec B404 # a fixed command
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from peagle import __version__
from peagle.data import checkout_folder, data_folder
from peagle.errors import UserError
from peagle.text import sanitize

PipelineKind = Literal["github", "codepipeline"]
KINDS: tuple[str, ...] = get_args(PipelineKind)

STARTER = "peagle.yaml"
SCHEMA = "peagle.schema.json"

_FOLDERS: dict[str, str] = {"github": ".github/workflows", "codepipeline": "."}
_POLICIES = (
    "execution-role-trust.json", "execution-role-policy.json", "image-policy.json",
    "read-policy.json", "deploy-policy.json", "limit-policy.json", "scaling-policy.json",
)  # fmt: skip
"""Of the role that SageMaker assumes, and of those that build images, plan, and deploy: the starter
project has a ``ttl``, and any endpoint may scale."""

_TRUST: dict[str, tuple[str, ...]] = {
    "github": ("github-oidc-trust.json", "github-oidc-plan-trust.json"),
    "codepipeline": (),
}


def starter_project() -> bytes:
    """A project file to begin with."""
    return (data_folder("infra/pipelines") / STARTER).read_bytes()


def next_steps(kind: PipelineKind) -> list[str]:
    """What to configure after the files are written; first, what fills in their placeholders."""
    return (data_folder("infra/pipelines") / f"next-{kind}.txt").read_text("utf-8").splitlines()


def pipeline_files(
    kind: PipelineKind, endpoints: Sequence[str], toolkit: str, values: Mapping[str, str]
) -> dict[str, bytes]:
    """The files by path: workflows or build specifications, and the policies of the roles.

    A pipeline of CodePipeline deploys one endpoint, the first unless its stack names another.

    ``toolkit`` are the arguments of the ``pip install`` of the toolkit, as in a shell. ``values``
    replace ``${account}``, ``${partition}`` and ``${repository}`` in policies; one that
    is absent stays. Raises UserError for a value that is none.
    """
    patterns = {
        "account": (r"\d{12}", "12 digits"),
        "repository": (r"[\w.-]+/[\w.-]+", "OWNER/NAME"),
    }
    for key, (pattern, expected) in patterns.items():
        if key in values and not re.fullmatch(pattern, values[key], re.ASCII):
            raise UserError(f"--{key} {values[key][:60]!r} is not {expected}", f"write {expected}")
    files: dict[str, bytes] = {}
    for file in sorted((data_folder("infra/pipelines") / kind).glob("*.y*ml")):
        text = file.read_text("utf-8")
        text = text.replace("endpoint: [chat]", f"endpoint: [{', '.join(endpoints)}]")
        text = text.replace("Default: chat", f"Default: {endpoints[0]}")
        files[str(Path(_FOLDERS[kind]) / file.name)] = text.replace("TOOLKIT", toolkit).encode()
    for name in (*_TRUST[kind], *_POLICIES):
        text = (data_folder("infra/iam") / name).read_text("utf-8")
        for key, value in values.items():
            text = text.replace(f"${{{key}}}", value)
        files[f"iam/{name}"] = text.encode()
    return files


def schema_bytes(schema: Mapping[str, Any]) -> bytes:
    """The JSON schema as a file."""
    return f"{json.dumps(schema, indent=2)}\n".encode()


_ARCHIVES = (".whl", ".tar.gz")


def toolkit_source(source: str | None, repository: Path) -> tuple[str, dict[str, bytes]]:
    """The arguments of ``pip install`` in a shell, and the files of the repository that they need:
    for ``source``, or without one for the wheel of this checkout.

    Raises UserError for a source that is neither a file of the repository, nor a URL with a hash,
    nor an index, and without a source where the toolkit runs from an installed package.
    """
    if source is None:
        return _build_wheel()
    shown = f"--toolkit {sanitize(source, 80)}"
    if "://" not in source:
        path = (repository / source).resolve()
        is_archive = source.endswith(_ARCHIVES) and re.fullmatch(r"[\w./+-]+", source, re.ASCII)
        if not is_archive or not path.is_file() or not path.is_relative_to(repository.resolve()):
            raise _error(f"{shown} is no wheel in {repository}")
        return f"./{path.relative_to(repository.resolve()).as_posix()}", {}
    try:
        url = urlsplit(source)
    except ValueError:
        raise _error(f"{shown} is no https:// address") from None
    if "@" in url.netloc:
        raise _error(
            "--toolkit has a user or password, which would be in the repository; pip reads "
            "credentials from PIP_INDEX_URL or a .netrc file"
        )
    is_plain = source.isprintable() and not re.search(r"[\s'\"]", source)
    if url.scheme != "https" or not url.netloc or not is_plain:
        raise _error(f"{shown} is no https:// address")
    if not url.path.endswith(_ARCHIVES):
        return shlex.join(("--index-url", source, f"peagle-toolkit=={__version__}")), {}
    if not re.fullmatch(r"sha256=[0-9a-f]{64}", url.fragment):
        raise _error(f"{shown} has no hash (#sha256=HASH)")
    return shlex.quote(source), {}


def _build_wheel() -> tuple[str, dict[str, bytes]]:
    checkout = checkout_folder()
    if checkout is None:
        raise _error("pipelines need to know where to install the toolkit from")
    with tempfile.TemporaryDirectory(prefix="peagle-wheel-") as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder]
        built = subprocess.run(  # nosec B603 # a fixed command
            [*pip, str(checkout)], capture_output=True, text=True, timeout=600, check=False
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if built.returncode != 0 or not wheels:
            reason = sanitize(built.stderr.strip().rpartition("\n")[2] or "no output", 200)
            raise _error(f"the wheel of {checkout} was not built: {reason}")
        path = f"wheels/{wheels[0].name}"
        return f"./{path}", {path: wheels[0].read_bytes()}


def _error(message: str) -> UserError:
    fix = (
        "give --toolkit a wheel in the repository, https://HOST/FILE.whl#sha256=HASH, or the "
        "https:// address of an index that has it and its dependencies"
    )
    return UserError(message, fix, code="toolkit-source")
