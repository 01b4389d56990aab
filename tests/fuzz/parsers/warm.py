"""Warm starts: manifests, archives, and what the container and the toolkit tell each other."""

import asyncio
import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from peagle.errors import PeagleError
from peagle.warm import WarmReply, fetch
from peagle_serve.contract import COLLECT_FOLDER_VARIABLE, SUBJECT_VARIABLE
from peagle_serve.middleware import Middleware
from peagle_serve.warm import (
    Damaged,
    Manifest,
    compute_key,
    parse_manifest,
    read_manifest,
    restore,
    unpack,
)
from tests.fuzz.inputs import binary, encoded
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.files import folder, written
from tests.unit.containers.artifacts import locate_archive, member

SUBJECT = {"format": 1, "engine": {"vllm": "0.28.0"}, "device": {"cpu": "Xeon"}, "pair": {}}
KEY = compute_key(SUBJECT)
ARCHIVE = locate_archive([member("vllm/a", b"content"), member("inductor/b/c", b"x" * 600)])
MANIFEST = {
    "format": 1, "key": KEY, "subject": SUBJECT, "size": len(ARCHIVE), "files": 2,
    "sha256": hashlib.sha256(ARCHIVE).hexdigest(), "unpacked_bytes": 607, "seconds_cold": 61.5,
    "made": "2026-11-01T00:00:00Z",
}  # fmt: skip
REQUEST = {"offset": 0, "length": 1024}


def _manifest(content: bytes) -> None:
    read_manifest(written(f"{KEY}.json", content))


def _unpack(content: bytes) -> None:
    place = folder() / "unpacked"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    sums = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = parse_manifest(MANIFEST | sums, f"{KEY}.json")
    unpack(written(f"{KEY}.tar.gz", content), manifest, place)


def _mark(content: bytes) -> None:
    """An earlier restoration's mark; then everything is restored again, or nothing."""
    cache, artifacts = folder() / "cache", written(f"{KEY}.tar.gz", ARCHIVE).parent
    shutil.rmtree(cache, ignore_errors=True)
    written(f"cache/{KEY}/restored.json", content)
    restore(_known(), artifacts, cache)


def _known() -> Manifest:
    return parse_manifest(MANIFEST, f"{KEY}.json")


def _route(case: tuple[bytes, bytes]) -> None:
    """A request to the route, with the subject that the entrypoint gives it."""
    body, subject = case
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def engine(*_: Any) -> None:
        raise AssertionError("the route answers itself")

    archive = folder() / f"{KEY}.collected.tar.gz"
    archive.write_bytes(subject)
    scope = {
        "type": "http", "path": "/invocations",
        "headers": [(b"x-amzn-sagemaker-custom-attributes", b"peagle=warm")],
    }  # fmt: skip
    place = {COLLECT_FOLDER_VARIABLE: str(folder() / KEY), SUBJECT_VARIABLE: json.dumps(SUBJECT)}
    with mock.patch.dict(os.environ, place):
        middleware = Middleware(engine)

        async def run() -> None:
            middleware._healthy.set()
            middleware._packing = asyncio.create_task(_packed())
            await middleware(scope, receive, send)

        asyncio.run(run())
    assert sent[0]["status"] in (200, 400)


async def _packed() -> dict[str, Any]:
    return MANIFEST


def _fetch(case: tuple[int, bytes, bytes]) -> None:
    status, manifest, archive = case

    def send(request: dict[str, Any]) -> WarmReply:
        if not request:
            return WarmReply(status, manifest)
        start, length = request["offset"], request["length"]
        return WarmReply(200, archive[start : start + length])

    fetch(send, Path(folder() / "fetched"), sleep=lambda seconds: None)


TARS = st.builds(
    gzip.compress,
    binary(gzip.decompress(ARCHIVE), more=(b"vllm/../../x", b"0000777\0", b"L", b"x")),
) | binary(ARCHIVE)
PARSERS = (
    Parser("warm-manifest", _manifest, [encoded(MANIFEST)], Damaged),
    Parser("warm-archive", _unpack, [ARCHIVE], Damaged, inputs=TARS),
    Parser("warm-mark", _mark, [json.dumps({"sha256": MANIFEST["sha256"]}).encode(), b""], Damaged),
    Parser("warm-route", _route, [(encoded(REQUEST), b"x"), (b"", b"")]),
    Parser(
        "warm-fetch",
        _fetch,
        [(200, encoded(MANIFEST), ARCHIVE), (409, b'{"error": "nothing"}', b"")],
        PeagleError,
    ),
)
