"""A checkpoint in a repository of the Hugging Face hub, read in parts.

Two calls of the hub are enough: the listing of a repository's files, and a file of it, which may
redirect to a store on another host. They are made here and not by the hub's own library, since
that has no total timeout, and reads an answer to its end where a server ignores ``Range``.

At which commit a branch or tag of the hub is now, and who may read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

from peagle.checkpoints.hub_client import Answer, Hub
from peagle.errors import CheckpointError

_PAGE_BYTES = 10_000_000
_MOST_PAGES = 10
"""Of 1,000 files each: no checkpoint has more at its top level."""

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
        """``org/name``, with ``@revision`` when one was named."""
        return f"{self._repo}@{self._revision}" if self._revision else self._repo

    def names(self) -> dict[str, int]:
        """The files of the repository's top level with their sizes in bytes."""
        self._listing = {
            entry["path"]: entry
            for page in self._pages()
            for entry in page
            if entry["type"] == "file" and "/" not in entry["path"]
        }
        return {name: entry["size"] for name, entry in self._listing.items()}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A part of a file."""
        path = f"{self._repo}/resolve/{self._commit_path}/{quote(name)}"
        end = "" if length is None else str(start + length - 1)
        with self._open(path, {"Range": f"bytes={start}-{end}"}) as answer:
            if start and not answer.starts_at(start):
                raise CheckpointError(
                    f"{self.location}/{name}: the server sends no parts of files, and nothing is "
                    "downloaded whole",
                    "unset HF_ENDPOINT, or copy the model to this machine",
                )
            return answer.read(length)

    def digests(self, name: str) -> Mapping[str, str]:
        """sha256 of a large file, the id of the git blob of a small one."""
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
        for _ in range(_MOST_PAGES):
            with self._open(path, {}) as answer:
                content, link = answer.read(_PAGE_BYTES), answer.headers.get("Link")
            yield self._page(content)
            following = _NEXT.search(link or "")
            if following is None:
                return
            path = urljoin(f"{self._hub.endpoint}/{path}", following[1])
        raise CheckpointError(
            f"{self.location} has too many files to be a checkpoint", "check the id of the model"
        )

    def _page(self, content: bytes) -> list[dict[str, Any]]:
        try:
            page = json.loads(content.decode())
        except (ValueError, RecursionError):
            page = None
        if isinstance(page, list) and all(_is_entry(entry) for entry in page):
            return page
        raise CheckpointError(
            f"{self._hub.endpoint} does not answer as the hub does", "check HF_ENDPOINT"
        )

    def _open(self, path: str, headers: Mapping[str, str]) -> Answer:
        return self._hub.open(path, headers, self._repo, self._revision)


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("type"), str)
        and isinstance(entry.get("path"), str)
        and type(entry.get("size")) is int
        and entry["size"] >= 0
    )


COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that never changes."""

_LONGEST_ANSWER = 10_000_000


@dataclass(frozen=True)
class Revision:
    """``open_to_all`` is false for a gated or private repository, which wants a token."""

    commit: str
    open_to_all: bool


def revision_of(hub: Hub, repo: str, revision: str | None) -> Revision:
    """What the hub says of ``org/name`` at ``revision`` (``None``: its main branch).

    Raises CheckpointError when it is not there, or not for this user.
    """
    path = f"api/models/{repo}/revision/{quote(revision or 'main', safe='')}"
    with hub.open(path, {}, repo, revision) as answer:
        content = answer.read(_LONGEST_ANSWER)
    try:
        said: dict[str, Any] = json.loads(content.decode())
        commit, closed = said["sha"], said.get("gated") or said.get("private")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        commit, closed = None, None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise CheckpointError(f"{hub.endpoint} does not answer as the hub does",
                              "check HF_ENDPOINT")  # fmt: skip
    return Revision(commit, not closed)
