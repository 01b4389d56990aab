"""A checkpoint in a repository of the Hugging Face Hub, read in parts; and the commit of a branch.

Two endpoints of the Hub are enough: the list of a repository's files, and a file, which may
redirect to storage on another host. requests follows redirects, drops the token where the host
changes, and uses the machine's proxies. huggingface_hub's own downloads have no limit of time, and
read a file to its end where a server ignores ``Range``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from peagle import __version__
from peagle.errors import CheckpointError, Fix, HubFailed
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

if TYPE_CHECKING:
    from requests import Response

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that never changes."""

_SECONDS = 10.0
"""Timeout of each read from the Hub."""

_MAX_REDIRECTS = 5
_URL = re.compile(r"https?://[\w.-]+(:[1-9]\d{0,4})?(/[^@\s]*)?|https?://\[[0-9a-fA-F:]+\](:\d+)?")
_NETWORK_FIX = "check the network, a proxy and HF_ENDPOINT, or copy the model to this machine"


@dataclass(frozen=True)
class Hub:
    """The Hub at ``endpoint``. ``token_from`` names the origin of the token in messages; it is
    empty without a token."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    token_from: str = ""
    offline: str | None = None
    seconds: float = _SECONDS

    @classmethod
    def of_environment(cls) -> Hub:
        """Settings as huggingface_hub reads them: ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, ``HF_TOKEN``
        or the file of ``hf auth login``. Raises CheckpointError for an invalid value."""
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        if not _URL.fullmatch(endpoint):
            raise CheckpointError(
                "HF_ENDPOINT is no URL, or holds a password",
                "write https://HOST, without a part before an @",
                code="hub-endpoint",
            )
        names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        return cls(endpoint, *_find_token(), next(filter(_is_true, names), None))

    @contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], repo: str, revision: str | None
    ) -> Iterator[Response]:
        """The response to a GET of ``path`` below the endpoint. Leaving it closes the connection,
        even with unread content.

        Raises HubFailed without a response, and CheckpointError if the Hub rejects ``repo`` at
        ``revision``.
        """
        if self.offline:
            raise CheckpointError(
                f"{self.offline} is set, so {repo} is not read from the Hub",
                "unset it, or use a folder that holds the model",
                "hub-offline",
            )
        import requests  # 0.2 s to import; most commands need no Hub

        url = f"{self.endpoint}/{path}"
        sent = {**headers, "User-Agent": f"peagle-toolkit/{__version__}",
                "Accept-Encoding": "identity"}  # fmt: skip
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        with requests.Session() as session, self.failures(repo):
            session.max_redirects = _MAX_REDIRECTS
            session.verify = os.environ.get("SSL_CERT_FILE") or True
            # Else requests would send what ~/.netrc has for the host in place of the token.
            session.auth = lambda request: request
            response = session.get(url, headers=sent, stream=True, timeout=self.seconds)
            with response:
                if response.status_code not in (200, 206):
                    raise self._refusal(repo, revision, response)
                yield response

    @contextmanager
    def failures(self, repo: str) -> Iterator[None]:
        """Raise connection errors as HubFailed. No message shows the URL of a redirect: those of
        the storage are signed."""
        from requests import exceptions
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (OSError, HTTPError, ValueError) as error:  # requests' own errors are OSErrors
            reason = f"cannot be reached ({type(error).__name__})"
            if isinstance(error, exceptions.Timeout) or "timed out" in str(error):
                reason = f"did not answer within {self.seconds:g} s"
            raise HubFailed(f"{repo}: {self.endpoint} {reason}", _NETWORK_FIX) from error

    def _refusal(self, repo: str, revision: str | None, response: Response) -> CheckpointError:
        """The error for a refusal, by the Hub's ``X-Error-Code`` and status; HubFailed if the user
        cannot fix it. The Hub answers the same for unknown and for private repositories."""
        reason, status = response.headers.get("X-Error-Code", ""), response.status_code
        token = self.token_from
        if reason == "GatedRepo":
            message = f"{repo} is gated, and "
            message += f"{token} has no access" if token else "no token was sent"
            return CheckpointError(
                message,
                f"accept its licence at {self.endpoint}/{repo} with the account of HF_TOKEN; a "
                "fine-grained token needs the permission to read public gated repositories",
                "hub-gated",
            )
        if reason == "RevisionNotFound":
            see = f"see {self.endpoint}/{repo}/commits for branches and commits"
            message = f"{repo} has no revision {revision or 'main'}"
            return CheckpointError(message, see, "hub-no-revision")
        if status in (401, 403, 404) and reason != "EntryNotFound":
            who = f"{token} has no access or is invalid" if token else "it is private"
            sentence = "check the spelling; for a private model, set HF_TOKEN, or sign in"
            sign_in = Fix(sentence, () if token else ("hf", "auth", "login"))
            return CheckpointError(f"the Hub has no {repo}, or {who}", sign_in, "hub-not-found")
        return HubFailed(f"{repo}: {self.endpoint} responds with HTTP {status}", "try again later")


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def _find_token() -> tuple[str | None, str]:
    """The user's token and its origin, as messages name it."""
    where, token = "HF_TOKEN", os.environ.get("HF_TOKEN", "").strip()
    if not token:
        file = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "token"
        where = str(file)
        with suppress(OSError, RuntimeError, ValueError):  # also: no such home, not UTF-8
            token = file.expanduser().read_text(encoding="utf-8").strip()
    return (token, f"the token in {where}") if token else (None, "")


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
        path = f"api/models/{self._repo}/tree/{self._commit_path}"
        with self._hub.open(path, {}, self._repo, self._revision) as response:
            page = _json(response)  # it lists 1,000 files; no checkpoint has more at its top level
        try:
            self._listing = {
                entry["path"]: entry | {"size": max(0, int(entry["size"]))}
                for entry in page
                if entry["type"] == "file" and "/" not in entry["path"]
            }
        except (LookupError, TypeError, ValueError, OverflowError):
            raise _not_a_hub(self._hub) from None
        return {name: entry["size"] for name, entry in self._listing.items()}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = f"{self._repo}/resolve/{self._commit_path}/{quote(name)}"
        end = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{end}"}
        with self._hub.open(path, headers, self._repo, self._revision) as response:
            if start and response.status_code != 206:  # it would be read from its beginning
                raise HubFailed(f"{self.location}/{name}: no byte ranges", _NETWORK_FIX)
            content: bytes = response.raw.read(length)
            return content

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


def _json(response: Response) -> Any:
    """The JSON document of the response; ``None`` for other content."""
    try:
        return json_reader.read(response.raw.read(json_reader.LIMIT + 1), "the answer")
    except InvalidJson:
        return None


def _not_a_hub(hub: Hub) -> CheckpointError:
    message = f"{hub.endpoint} does not respond like a Hugging Face Hub"
    return CheckpointError(message, "check HF_ENDPOINT", code="hub-endpoint")
