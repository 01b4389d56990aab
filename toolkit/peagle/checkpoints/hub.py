"""A checkpoint in a repository of the Hugging Face Hub, read in parts; and the commit of a branch.

huggingface_hub is not used, because of two properties (version 2.4.0): its timeout limits the
silence of a connection and not the whole read, and it reads a response to its end, so a server that
ignores ``Range`` makes it download a weight file whole (``parse_safetensors_file_metadata`` and
``HfFileSystemFile._fetch_range`` use ``response.content``). Two endpoints of the Hub are enough:
the list of a repository's files, and a file, which may redirect to storage on another host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

from peagle.checkpoints.hub_client import Hub, HubResponse
from peagle.errors import CheckpointError
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that never changes."""

_MAX_PAGES = 10
"""Of 1,000 files each; no checkpoint has more at its top level."""

_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?')


class HubSource:
    """The files of ``org/name`` at a revision: a branch, a tag or a commit."""

    def __init__(self, repo: str, revision: str | None = None, hub: Hub | None = None) -> None:
        self._repo = repo
        self._revision = revision
        self._hub = hub or Hub.of_environment()
        self._listing: dict[str, dict[str, Any]] = {}

    @property
    def location(self) -> str:
        return f"{self._repo}@{self._revision}" if self._revision else self._repo

    def names(self) -> dict[str, int]:
        self._listing = {
            entry["path"]: entry
            for page in self._pages()
            for entry in page
            if entry["type"] == "file" and "/" not in entry["path"]
        }
        return {name: entry["size"] for name, entry in self._listing.items()}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = f"{self._repo}/resolve/{self._commit_path}/{quote(name)}"
        end = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{end}"}
        with self._hub.open(path, headers, self._repo, self._revision) as response:
            if start and not response.starts_at(start):
                raise CheckpointError(
                    f"{self.location}/{name}: the server ignores the Range header; the whole "
                    "file will not be downloaded",
                    "unset HF_ENDPOINT, or copy the model to this machine",
                    code="no-byte-ranges",
                )
            return response.read(length)

    def digests(self, name: str) -> Mapping[str, str]:
        """The sha256 of a large file, the git blob id of a small one."""
        entry = self._listing.get(name, {})
        stored = entry.get("lfs")
        if isinstance(stored, dict) and isinstance(stored.get("oid"), str):
            return {"sha256": stored["oid"]}
        return {"git": entry["oid"]} if isinstance(entry.get("oid"), str) else {}

    @property
    def _commit_path(self) -> str:
        return quote(self._revision or "main", safe="")

    def _pages(self) -> Iterator[list[dict[str, Any]]]:
        path = f"api/models/{self._repo}/tree/{self._commit_path}"
        for _ in range(_MAX_PAGES):
            with self._hub.open(path, {}, self._repo, self._revision) as response:
                page = _json(response)
                link = response.response.headers.get("Link")
            if not isinstance(page, list) or not all(_is_entry(entry) for entry in page):
                raise _not_a_hub(self._hub)
            yield page
            following = _NEXT.search(link or "")
            if following is None:
                return
            path = urljoin(f"{self._hub.endpoint}/{path}", following[1])
        raise CheckpointError(
            f"{self.location} has too many files to be a checkpoint",
            "check the id of the model",
            code="too-many-files",
        )


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("type"), str)
        and isinstance(entry.get("path"), str)
        and type(entry.get("size")) is int
        and entry["size"] >= 0
    )


@dataclass(frozen=True)
class HubRevision:
    """A commit; ``is_public`` is false for a gated or private repository, which needs a token."""

    commit: str
    is_public: bool


def resolve_revision(hub: Hub, repo: str, revision: str | None) -> HubRevision:
    """The commit of ``org/name`` at ``revision`` (``None``: its main branch).

    Raises CheckpointError if it does not exist or this user may not read it.
    """
    path = f"api/models/{repo}/revision/{quote(revision or 'main', safe='')}"
    with hub.open(path, {}, repo, revision) as response:
        document = _json(response)
    commit = document.get("sha") if isinstance(document, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise _not_a_hub(hub)
    return HubRevision(commit, is_public=not (document.get("gated") or document.get("private")))


def _json(response: HubResponse) -> Any:
    """The JSON document of the response; ``None`` for other content."""
    try:
        return json_reader.read(response.read(json_reader.DEFAULT.size + 1), "the answer")
    except InvalidJson:
        return None


def _not_a_hub(hub: Hub) -> CheckpointError:
    message = f"{hub.endpoint} does not respond like a Hugging Face Hub"
    return CheckpointError(message, "check HF_ENDPOINT", code="hub-endpoint")
