"""A Hugging Face Hub for reading: two servers, since its files are on another host."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from tests.unit.checkpoints.web import Reply, Web, WebRequest, serve, zeros

REPO = "acme/model"
COMMIT = "0123abc"
SIGNED = "signature=secret-of-the-store"
_LFS_BYTES = 1000


def refused(status: int, code: str = "", **headers: str) -> Reply:
    """A refusal of the Hub."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, b"{}", {"X-Error-Code": code, **named} if code else named)


class FakeHub:
    """One repository. Large files redirect to the store, which must see no token.

    ``sizes`` claims sizes of files whose end must not be read. ``token`` gives access to the
    repository; ``refusal`` is the reply to every request.
    """

    def __init__(self) -> None:
        self.hub, self.store = Web(), Web()
        self.hub.answer, self.store.answer = self._hub, self._file
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.token: str | None = None
        self.refusal: Reply | None = None
        self.refused_files: Reply | None = None
        self.honours_ranges = True

    @property
    def sent(self) -> int:
        """The number of body bytes from both servers."""
        return self.hub.sent + self.store.sent

    @property
    def requests(self) -> list[WebRequest]:
        """The requests to both servers."""
        return [*self.hub.requests, *self.store.requests]

    def size(self, name: str) -> int:
        """The size in the listing."""
        return self.sizes.get(name, len(self.files[name]))

    def _hub(self, request: WebRequest) -> Reply:
        path = unquote(urlsplit(request.path).path)
        if self.refusal is not None:
            return self.refusal
        token = request.headers.get("Authorization")
        if self.token is not None and token != f"Bearer {self.token}":
            return refused(401, "RepoNotFound")
        if path.startswith(f"/api/models/{REPO}/tree/"):
            return self._tree(path.rpartition("/tree/")[2])
        if not path.startswith(f"/{REPO}/resolve/"):
            return refused(404, "RepoNotFound")
        if self.refused_files is not None:
            return self.refused_files
        name = path.rpartition("/")[2]
        if name not in self.files:
            return refused(404, "EntryNotFound")
        if self.size(name) < _LFS_BYTES:
            return self._file(request)
        return Reply(302, b"see there", {"Location": f"{self.store.url}/{name}?{SIGNED}"})

    def _tree(self, revision: str) -> Reply:
        if revision not in ("main", COMMIT, "refs/pr/1"):
            return refused(404, "RevisionNotFound")
        entries: list[dict[str, object]] = [{"type": "directory", "path": "original", "size": 0}]
        entries += [self._entry(name) for name in self.files]
        return Reply(200, json.dumps(entries).encode())

    def _entry(self, name: str) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": name, "size": self.size(name)}
        content = self.files[name]
        if self.size(name) < _LFS_BYTES:
            return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
        digest = hashlib.sha256(content).hexdigest()
        return entry | {"oid": "of the pointer", "lfs": {"oid": digest, "size": len(content)}}

    def _file(self, request: WebRequest) -> Reply:
        name = unquote(urlsplit(request.path).path).rpartition("/")[2]
        size, content = self.size(name), self.files[name]
        if not self.honours_ranges:
            return Reply(200, _all(content, size), length=size)
        first, last = request.range_of(size)
        part = content[first : last + 1]
        headers = {"Content-Range": f"bytes {first}-{last}/{size}"}
        length = last + 1 - first
        return Reply(206, _all(part, length), headers, length)


def _all(content: bytes, size: int) -> Iterator[bytes]:
    yield content
    yield from zeros(size - len(content))


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve the Hub and the store."""
    with serve(hub.hub), serve(hub.store):
        yield hub
