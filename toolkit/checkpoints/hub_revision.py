"""At which commit a branch or tag of the hub is now, and who may read it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from toolkit.checkpoints.hub_client import Hub
from toolkit.errors import CheckpointError

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
