"""Requests to the Hugging Face Hub: address, token, redirects, and errors with their fixes.

The token is sent to the Hub's own address only, never to the target of a redirect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from peagle import __version__
from peagle.errors import CheckpointError, Fix, HubFailed

_SET_TOKEN, _SIGN_IN = "set HF_TOKEN, or sign in", ("hf", "auth", "login")
_SECONDS = 10.0
"""Timeout of each read from the Hub."""

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_TRUE = ("1", "ON", "YES", "TRUE")
_TOKEN = re.compile(r"[!-~]+")
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
        if "@" in endpoint:
            raise CheckpointError(
                "HF_ENDPOINT holds a password", "remove the part before the @", code="hub-endpoint"
            )
        if _origin(endpoint) is None:
            raise CheckpointError(
                f"HF_ENDPOINT is {endpoint!r}, not a URL",
                "prefix it with https://",
                code="hub-endpoint",
            )
        names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        offline = next((name for name in names if _is_true(name)), None)
        token, source = _token()
        return cls(endpoint, token, source, offline)

    @contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], repo: str, revision: str | None
    ) -> Iterator[HubResponse]:
        """The response to a GET of ``path``, a URL or a path below the endpoint; follows redirects.
        Leaving it closes the connection, even with unread content.

        Raises HubFailed without a response, and CheckpointError if the Hub rejects ``repo`` at
        ``revision``.
        """
        if self.offline:
            raise CheckpointError(
                f"{self.offline} is set, so {repo} is not read from the Hub",
                "unset it, or use a folder that holds the model",
                "hub-offline",
            )
        url = urljoin(f"{self.endpoint}/", path)
        for _ in range(_MAX_REDIRECTS + 1):
            with _as_hub_failed(self, repo):
                response = self._get(url, headers)
            with response:
                if response.status in (200, 206):
                    yield HubResponse(response, self, repo)
                    return
                if response.status not in _REDIRECTS:
                    raise self._refusal(repo, revision, response)
                url = self._redirected(url, response.headers, repo)
        message = f"{repo}: {self.endpoint} redirects more than {_MAX_REDIRECTS} times"
        raise HubFailed(message, _NETWORK_FIX)

    def _get(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        request = Request(url, headers={**headers, "User-Agent": f"peagle-toolkit/{__version__}"})
        if self.token and _origin(url) == _origin(self.endpoint):
            request.add_header("Authorization", f"Bearer {self.token}")
        response: HTTPResponse = _opener().open(request, timeout=self.seconds)
        return response

    def _redirected(self, url: str, headers: Message, repo: str) -> str:
        """The target of a redirect. No message shows it: URLs of the storage are signed."""
        try:
            following = urljoin(url, headers.get("Location") or "none:")
            origin = _origin(following)
        except ValueError:
            origin = None
        if origin is None or (url.startswith("https:") and origin[0] != "https"):
            message = f"{repo}: {self.endpoint} redirects to a URL without https://"
            raise HubFailed(message, _NETWORK_FIX)
        return following

    def _refusal(self, repo: str, revision: str | None, response: HTTPResponse) -> CheckpointError:
        """The error for a refusal, by the Hub's ``X-Error-Code`` and status; HubFailed if the user
        cannot fix it."""
        reason, status = response.headers.get("X-Error-Code", ""), response.status
        if reason == "GatedRepo":
            return self._gated(repo)
        if response.headers.get("X-Error-Message") == "Access to this resource is disabled.":
            message = f"the Hub has disabled {repo}"
            return CheckpointError(message, "choose another model", "hub-disabled")
        if reason == "RevisionNotFound":
            message = f"{repo} has no revision {revision or 'main'}"
            fix = f"see {self.endpoint}/{repo}/commits for branches and commits"
            return CheckpointError(message, fix, "hub-no-revision")
        if reason == "EntryNotFound":
            message = f"{repo} no longer has a file that its listing names"
            return CheckpointError(message, "the repository is changing; try again", "hub-changed")
        if reason == "RepoNotFound" or status in (401, 403, 404):
            return self._no_access(repo, status)
        if status == 429:
            after = response.headers.get("Retry-After", "")
            wait = f"{after} seconds" if after.isdigit() else "a few minutes"
            message = f"{repo}: the Hub's rate limit is reached"
            later = Fix(f"try again in {wait}")
            if not self.token_from:
                later = Fix(f"try again in {wait}; for a higher limit, {_SET_TOKEN}", _SIGN_IN)
            return HubFailed(message, later, "hub-rate-limit")
        return HubFailed(f"{repo}: {self.endpoint} responds with HTTP {status}", "try again later")

    def _gated(self, repo: str) -> CheckpointError:
        accept = f"accept its licence at {self.endpoint}/{repo}"
        if self.token_from:
            message = f"{repo} is gated, and {self.token_from} has no access"
            fix = (
                f"{accept} with the account of that token; a fine-grained token also needs the "
                "permission to read public gated repositories"
            )
        else:
            message = f"{repo} is gated, and no token was sent"
            fix = f"{accept}, then set HF_TOKEN to a token of that account"
        return CheckpointError(message, fix, "hub-gated")

    def _no_access(self, repo: str, status: int) -> CheckpointError:
        """The Hub answers the same for unknown and for private repositories."""
        token = self.token_from
        if status == 403:
            message = f"the Hub does not allow {token or 'requests without a token'} to read {repo}"
            grant = "give the token the permission to read the contents of that repository"
            allow = Fix(grant) if token else Fix(_SET_TOKEN, _SIGN_IN)
            return CheckpointError(message, allow, "hub-forbidden")
        if status == 401 and token:
            message = f"the Hub does not accept {token} for {repo}"
            another = (
                f"it may have expired: create another one at {self.endpoint}/settings/tokens, or "
                "unset it for a public model"
            )
            return CheckpointError(message, another, "hub-token")
        if token:
            message = f"the Hub has no {repo}, or {token} has no access"
            fix = Fix("check the spelling, and that the token may read it")
        else:
            message = f"the Hub has no {repo}, or it is private"
            fix = Fix(f"check the spelling; for a private model, {_SET_TOKEN}", _SIGN_IN)
        return CheckpointError(message, fix, "hub-not-found")


@dataclass(frozen=True)
class HubResponse:
    """An open response of ``hub`` about ``repo``."""

    response: HTTPResponse
    hub: Hub
    repo: str

    def starts_at(self, start: int) -> bool:
        """Whether this is the part of the file from byte ``start``, not the whole file."""
        content_range = self.response.headers.get("Content-Range", "")
        return self.response.status == 206 and content_range.startswith(f"bytes {start}-")

    def read(self, length: int | None) -> bytes:
        """At most ``length`` bytes. Raises HubFailed."""
        with _as_hub_failed(self.hub, self.repo):
            return self.response.read(length)


def _opener() -> OpenerDirector:
    """Opens URLs without urllib's handling of redirects and errors, which reads the body of a
    redirect to its end and sends the token along."""
    opener = OpenerDirector()
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    return opener


@contextmanager
def _as_hub_failed(hub: Hub, repo: str) -> Iterator[None]:
    """Raise connection errors as HubFailed."""
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            message = f"{hub.endpoint} did not answer within {hub.seconds:g} s"
        elif isinstance(reason, ConnectionRefusedError):
            message = f"{hub.endpoint} refuses the connection"
        elif isinstance(reason, OSError) and reason.strerror:
            message = f"{hub.endpoint} cannot be reached: {reason.strerror}"
        else:
            message = f"the connection to {hub.endpoint} failed ({type(reason).__name__})"
        raise HubFailed(f"{repo}: {message}", _NETWORK_FIX) from error


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; ``None`` if it is not an http(s) URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}[parts.scheme]


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in _TRUE


def _token() -> tuple[str | None, str]:
    """The user's token and its origin, as messages name it."""
    if _is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None, ""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(variable, "").strip():
            return _checked(os.environ[variable].strip(), variable), f"the token in {variable}"
    try:
        path = _login_file()
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, RuntimeError, ValueError):  # also: no such home, not UTF-8, NUL in the path
        return None, ""
    return (_checked(token, str(path)), f"the token in {path}") if token else (None, "")


def _login_file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    named = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    return Path(os.path.expandvars(named)).expanduser()


def _checked(token: str, where: str) -> str:
    """The token, if it is one: an invalid header would be shown in http.client's error."""
    if not _TOKEN.fullmatch(token):
        raise CheckpointError(
            f"{where} holds no valid token", "copy the token again", code="hub-token"
        )
    return token
