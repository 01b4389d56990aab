"""What the hub's refusals mean for who asked: which licence to accept, or which token to set.

How the Hugging Face hub is asked: its address, the user's token, redirects, and errors.

The token goes to the hub's own address and nowhere else, whatever the hub redirects to.
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
from types import TracebackType
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from peagle import __version__
from peagle.errors import CheckpointError, HubFailed

_SET_TOKEN = "set HF_TOKEN, or run `hf auth login`"


@dataclass(frozen=True)
class Refusal:
    """Of which repository and revision; ``token_from`` is empty when no token was sent."""

    repo: str
    revision: str | None
    endpoint: str
    token_from: str

    def of(self, answer: HTTPResponse) -> CheckpointError:
        """The user's error for the hub's answer, which carries the reason in ``X-Error-Code``;
        HubFailed where it is none of the user's."""
        reason, status = answer.headers.get("X-Error-Code", ""), answer.status
        if reason == "GatedRepo":
            return self._gated()
        if answer.headers.get("X-Error-Message") == "Access to this resource is disabled.":
            return CheckpointError(f"the hub has disabled {self.repo}", "choose another model")
        if reason == "RevisionNotFound":
            return CheckpointError(
                f"{self.repo} has no revision {self.revision or 'main'}",
                f"see {self.endpoint}/{self.repo}/commits for branches and commits",
            )
        if reason == "EntryNotFound":
            return CheckpointError(
                f"{self.repo} no longer has a file that its listing names",
                "somebody changes it just now: repeat it",
            )
        if reason == "RepoNotFound" or status in (401, 404):
            return self._unknown(status)
        return self._by_status(status, answer.headers.get("Retry-After", ""))

    def _gated(self) -> CheckpointError:
        page = f"{self.endpoint}/{self.repo}"
        if not self.token_from:
            return CheckpointError(
                f"{self.repo} is gated, and no token was sent",
                f"accept its licence at {page}, then set HF_TOKEN to a token of that account",
            )
        return CheckpointError(
            f"{self.repo} is gated, and {self.token_from} does not open it",
            f"accept its licence at {page} with the account of that token; a fine-grained token "
            "also needs the right to read public gated repositories",
        )

    def _unknown(self, status: int) -> CheckpointError:
        """The hub says the same of what is not there and of what is private."""
        if status == 401 and self.token_from:
            return CheckpointError(
                f"the hub does not accept {self.token_from}, asked for {self.repo}",
                "it may have expired: make another one at "
                f"{self.endpoint}/settings/tokens, or unset it for a public model",
            )
        if self.token_from:
            return CheckpointError(
                f"the hub has no {self.repo}, or {self.token_from} may not see it",
                "check the spelling, and that the token has the right to read it",
            )
        return CheckpointError(
            f"the hub has no {self.repo}, or it is private",
            f"check the spelling; for a private model, {_SET_TOKEN}",
        )

    def _by_status(self, status: int, retry_after: str) -> CheckpointError:
        if status == 403:
            who = self.token_from or "a caller without a token"
            return CheckpointError(
                f"the hub does not let {who} read {self.repo}",
                "give the token the right to read the contents of that repository"
                if self.token_from
                else _SET_TOKEN,
            )
        if status == 429:
            wait = f"{retry_after} seconds" if retry_after.isdigit() else "some minutes"
            more = "" if self.token_from else f"; to be allowed more, {_SET_TOKEN}"
            return HubFailed(
                f"{self.repo}: the hub has been asked too often from here",
                f"repeat it in {wait}{more}",
            )
        return HubFailed(
            f"{self.repo}: {self.endpoint} answers with an error ({status})", "repeat it later"
        )


_SECONDS = 10.0
"""For how long the hub may be silent."""

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_TRUE = ("1", "ON", "YES", "TRUE")
_TOKEN = re.compile(r"[!-~]+")
_NETWORK_FIX = "check the network, a proxy and HF_ENDPOINT, or copy the model to this machine"


@dataclass(frozen=True)
class Hub:
    """The hub at ``endpoint``. ``token_from`` says in words where the token is from."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    token_from: str = ""
    offline: str | None = None
    seconds: float = _SECONDS

    @classmethod
    def of_environment(cls) -> Hub:
        """As the hub's own library finds it: ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, ``HF_TOKEN`` or
        what ``hf auth login`` wrote. Raises CheckpointError when one of them cannot be right."""
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        if "@" in endpoint:
            raise CheckpointError("HF_ENDPOINT holds a password", "leave out what is before the @")
        if _origin(endpoint) is None:
            raise CheckpointError(
                f"HF_ENDPOINT is {endpoint!r}, which is no address", "write it with http(s)://"
            )
        asked = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        offline = next((name for name in asked if _is_true(name)), None)
        token, source = _token()
        return cls(endpoint, token, source, offline)

    def open(
        self, path: str, headers: Mapping[str, str], repo: str, revision: str | None
    ) -> Answer:
        """The answer to a GET of ``path``, an address or what follows the endpoint.

        Redirects are followed. Raises HubFailed when there is no answer, and CheckpointError when
        it is a refusal of ``repo`` at ``revision``.
        """
        if self.offline:
            raise CheckpointError(
                f"{self.offline} is set, so {repo} is not read from the hub",
                "unset it, or name a folder that holds the model",
            )
        url = urljoin(f"{self.endpoint}/", path)
        for _ in range(_MOST_REDIRECTS + 1):
            with _told(self.endpoint, repo, self.seconds):
                response = self._get(url, headers)
            if response.status in (200, 206):
                return Answer(response, self, repo)
            with response:
                if response.status not in _REDIRECTS:
                    raise Refusal(repo, revision, self.endpoint, self.token_from).of(response)
                url = self._redirected(url, response.headers, repo)
        raise HubFailed(f"{repo}: {self.endpoint} redirects without end", _NETWORK_FIX)

    def _get(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        request = Request(url, headers={**headers, "User-Agent": f"peagle-toolkit/{__version__}"})
        if self.token and _origin(url) == _origin(self.endpoint):
            request.add_header("Authorization", f"Bearer {self.token}")
        response: HTTPResponse = _opener().open(request, timeout=self.seconds)
        return response

    def _redirected(self, url: str, headers: Message, repo: str) -> str:
        """Where the answer sends us; addresses of the store are signed, so none is shown."""
        try:
            following = urljoin(url, headers.get("Location") or "none:")
            origin = _origin(following)
        except ValueError:
            origin = None
        if origin is None or (url.startswith("https:") and origin[0] != "https"):
            message = f"{repo}: {self.endpoint} redirects to no https:// address"
            raise HubFailed(message, _NETWORK_FIX)
        return following


class Answer:
    """An open answer; leaving it closes the connection, however much was left unread."""

    def __init__(self, response: HTTPResponse, hub: Hub, repo: str) -> None:
        self.headers = response.headers
        self._response, self._hub, self._repo = response, hub, repo

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._response.close()

    def starts_at(self, start: int) -> bool:
        """Whether this is the part of the file from byte ``start``, and not all of it."""
        said = self.headers.get("Content-Range", "")
        return self._response.status == 206 and said.startswith(f"bytes {start}-")

    def read(self, length: int | None) -> bytes:
        """At most ``length`` bytes."""
        with _told(self._hub.endpoint, self._repo, self._hub.seconds):
            return self._response.read(length)


def _opener() -> OpenerDirector:
    """What urllib opens, redirects and refusals included: it would read a redirect's body to its
    end, however long, and take the token along."""
    opener = OpenerDirector()
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    return opener


@contextmanager
def _told(endpoint: str, repo: str, seconds: float) -> Iterator[None]:
    """Raise what goes wrong on the way as HubFailed."""
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            message = f"{repo}: {endpoint} did not answer within {seconds:g} s"
        elif isinstance(reason, ConnectionRefusedError):
            message = f"{repo}: nobody answers at {endpoint}"
        elif isinstance(reason, OSError) and reason.strerror:
            message = f"{repo}: {endpoint} cannot be reached: {reason.strerror}"
        else:
            message = f"{repo}: the connection to {endpoint} broke ({type(reason).__name__})"
        raise HubFailed(message, _NETWORK_FIX) from error


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; ``None`` for what is no http(s) address."""
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
    """The user's token, and where it is from."""
    if _is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None, ""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(variable, "").strip():
            return _checked(os.environ[variable].strip(), variable), f"the token in {variable}"
    path = _login_file()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        return None, ""
    return (_checked(token, str(path)), f"the token in {path}") if token else (None, "")


def _login_file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    named = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    return Path(os.path.expandvars(named)).expanduser()


def _checked(token: str, where: str) -> str:
    """What is no token must not reach an HTTP header, whose error would show it."""
    if not _TOKEN.fullmatch(token):
        raise CheckpointError(f"{where} holds no token of the hub", "copy the token again")
    return token
