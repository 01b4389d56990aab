"""Collected caches through ``/invocations``, the one route that SageMaker offers.

A request with the header ``X-Amzn-SageMaker-Custom-Attributes: peagle=warm`` and a JSON body:

    {}                           the manifest; the first request packs the caches
    {"offset": 0, "length": n}   n bytes of the archive, at most 4 MiB

Errors are objects with ``error``: 403 without ``PEAGLE_WARM=collect``, 503 before the engine is
healthy, 409 if nothing was compiled, 400 for another body, 500 if the archive cannot be written.
Such requests never reach vLLM.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from peagle_serve.contract import (
    CAPTURE_VARIABLE,
    COLLECT,
    LARGEST_PART,
    SUBJECT_VARIABLE,
    WARM_ATTRIBUTE,
    WARM_MODE_VARIABLE,
)
from peagle_serve.counters import Application, Message, Receive, Send, answer, has_attribute
from peagle_serve.json_reader import InvalidJson, Limits, read
from peagle_serve.lifecycle import STARTED_AFTER

_LONGEST_BODY = 4096


class WarmMiddleware:
    """An ASGI application around vLLM's."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._packing: asyncio.Task[dict[str, Any]] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if not has_attribute(scope, WARM_ATTRIBUTE):
            await self._app(scope, receive, send)
            return
        try:
            given = await self._given(scope, receive)
            manifest = await self._packed(scope[STARTED_AFTER])
        except _BadStatus as refused:
            await answer(send, refused.status, {"error": str(refused)})
            return
        if not given:
            await answer(send, 200, manifest)
            return
        offset, length = given["offset"], given["length"]
        if offset > manifest["size"]:
            error = f"the archive has {manifest['size']} bytes"
            await answer(send, 400, {"error": error})
            return
        await answer(send, 200, await asyncio.to_thread(_part, offset, length))

    async def _given(self, scope: Message, receive: Receive) -> dict[str, int]:
        """The body of a valid request. Raises _BadStatus."""
        if SUBJECT_VARIABLE not in os.environ:
            raise _BadStatus(
                403,
                f"this container does not collect: start it with {WARM_MODE_VARIABLE}={COLLECT}",
            )
        if STARTED_AFTER not in scope:
            raise _BadStatus(503, "the engine is not healthy yet")
        body = await _body(receive)
        try:
            given = read(body or b"{}", "the body", limits=Limits(size=_LONGEST_BODY))
        except InvalidJson:
            raise _BadStatus(400, "the body is not valid JSON") from None
        if given == {}:
            return {}
        if not isinstance(given, dict) or set(given) != {"offset", "length"}:
            raise _BadStatus(400, 'the body is neither {} nor {"offset": ..., "length": ...}')
        numbers = all(type(value) is int for value in given.values())
        if not numbers or given["offset"] < 0 or not 1 <= given["length"] <= LARGEST_PART:
            raise _BadStatus(400, f"offset must be at least 0, and length 1 to {LARGEST_PART}")
        return given

    async def _packed(self, seconds: float) -> dict[str, Any]:
        """The manifest. Packs once for all requests, also if a client disconnects.

        Raises _BadStatus.
        """
        if self._packing is None:
            self._packing = asyncio.create_task(asyncio.to_thread(_pack, seconds))
        packing = self._packing
        try:
            return await asyncio.shield(packing)
        except (_BadStatus, OSError) as error:
            self._packing = None  # the next request tries again
            if isinstance(error, OSError):
                from peagle_serve.warm.caches import LARGER_DISK

                why = f"the archive cannot be written: {error.strerror} ({LARGER_DISK})"
                raise _BadStatus(500, why) from None
            raise


class _BadStatus(Exception):
    """A response other than 200."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


def _pack(seconds: float) -> dict[str, Any]:
    """Pack the caches and create the manifest. Raises _BadStatus, OSError."""
    # Only collecting containers need these imports.
    from peagle_serve.logs import Redactor
    from peagle_serve.warm.archive import NothingCompiled, pack
    from peagle_serve.warm.caches import archive_of
    from peagle_serve.warm.manifest import Manifest

    place = Path(os.environ[CAPTURE_VARIABLE])
    try:
        packed = pack(place, archive_of(place), Redactor(os.environ).secrets)
    except NothingCompiled as error:
        raise _BadStatus(409, str(error)) from None
    manifest = Manifest(
        key=place.name,
        subject=read(os.environ[SUBJECT_VARIABLE], SUBJECT_VARIABLE),
        seconds_cold=round(seconds, 1),
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **packed._asdict(),
    )
    return manifest.document()


def _part(offset: int, length: int) -> bytes:
    from peagle_serve.warm.caches import archive_of

    with archive_of(Path(os.environ[CAPTURE_VARIABLE])).open("rb") as file:
        file.seek(offset)
        return file.read(length)


async def _body(receive: Receive) -> bytes:
    """The body of a request. Raises _BadStatus for one that is too long or incomplete."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _BadStatus(400, "the request is incomplete")
        body += message.get("body", b"")
        if len(body) > _LONGEST_BODY:
            raise _BadStatus(400, f"the body has more than {_LONGEST_BODY} bytes")
        more = message.get("more_body", False)
    return body
