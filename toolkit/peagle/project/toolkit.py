"""Where a pipeline installs the toolkit from.

No public index has it: a name that pip looks up there could be anyone's. So the user names a wheel
or an index, and from a checkout the wheel is built and written beside the pipeline.
"""

from __future__ import annotations

import re
import shlex
import subprocess  # nosec B404 # a fixed command
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from peagle import __version__
from peagle.data import checkout_folder
from peagle.errors import UserError
from peagle.text import sanitize

WHEELS = "wheels"
"""The folder of the repository for the wheel of a checkout."""

_DISTRIBUTION = "peagle-toolkit"
_ARCHIVES = (".whl", ".tar.gz")
_HASH = re.compile(r"sha256=[0-9a-f]{64}")
_PATH = re.compile(r"[\w./+-]+", re.ASCII)
_SOURCES = (
    "give --toolkit a wheel in the repository, https://HOST/FILE.whl#sha256=HASH, or the https:// "
    "address of an index that has it and its dependencies"
)
_SECONDS = 600


@dataclass(frozen=True)
class ToolkitSource:
    """``arguments`` of ``pip install``, and the ``files`` of the repository that they need."""

    arguments: tuple[str, ...]
    files: dict[str, bytes]

    @property
    def text(self) -> str:
        """The arguments in a shell."""
        return shlex.join(self.arguments)


def toolkit_source(source: str | None, repository: Path) -> ToolkitSource:
    """What a pipeline installs: ``source``, or without one the wheel of this checkout.

    Raises UserError for a source that is neither a file of the repository, nor a URL with a hash,
    nor an index, and without a source where the toolkit runs from an installed package.
    """
    if source is None:
        return _built()
    if "://" in source:
        return ToolkitSource(_from_url(source), {})
    path = repository / source
    if not source.endswith(_ARCHIVES) or not _PATH.fullmatch(source) or not path.is_file():
        raise _error(f"--toolkit {sanitize(source, 80)} is no wheel in {repository}")
    try:
        inside = path.resolve().relative_to(repository.resolve())
    except ValueError:
        raise _error(f"--toolkit {sanitize(source, 80)} is outside of the repository") from None
    return ToolkitSource((f"./{PurePosixPath(inside)}",), {})


def _from_url(source: str) -> tuple[str, ...]:
    shown = sanitize(source, 80)
    try:
        url = urlsplit(source)
        valid = url.scheme == "https" and bool(url.hostname) and source.isprintable()
    except ValueError:
        valid = False
    if not valid or any(character in source for character in " '\""):
        raise _error(f"--toolkit {shown} is no https:// address")
    if "@" in url.netloc:
        raise UserError(
            "--toolkit has a user or password, which would be in the repository",
            "leave it out; pip reads credentials from PIP_INDEX_URL or a .netrc file",
            code="toolkit-source",
        )
    if not url.path.endswith(_ARCHIVES):
        return ("--index-url", source, f"{_DISTRIBUTION}=={__version__}")
    if not _HASH.fullmatch(url.fragment):
        raise _error(f"--toolkit {shown} has no hash (#sha256=HASH)")
    return (source,)


def _built() -> ToolkitSource:
    checkout = checkout_folder()
    if checkout is None:
        raise _error("pipelines need to know where to install the toolkit from")
    with tempfile.TemporaryDirectory(prefix="peagle-wheel-") as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder]
        built = subprocess.run(  # nosec B603 # a fixed command
            [*pip, str(checkout)], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if built.returncode != 0 or not wheels:
            lines = built.stderr.strip().splitlines() or ["no output"]
            raise _error(f"the wheel of {checkout} was not built: {sanitize(lines[-1], 200)}")
        path = f"{WHEELS}/{wheels[0].name}"
        return ToolkitSource((f"./{path}",), {path: wheels[0].read_bytes()})


def _error(message: str) -> UserError:
    return UserError(message, _SOURCES, code="toolkit-source")
