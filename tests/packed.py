"""A fake container that has compiled something, for `peagle warm`, with scripted faults."""

import functools
import hashlib
import json
import random
from dataclasses import dataclass, field
from typing import Any

from peagle.warm import PART_BYTES, WarmReply

KEY = "0123456789abcdef0123456789abcdef"


@functools.cache
def packed_bytes() -> bytes:
    """Content of more than one part."""
    return random.Random(1).randbytes(PART_BYTES + 1000)


@dataclass
class Packed:
    """The container. ``faults`` are the outcomes of the next requests: a reply, an exception, or
    ``None`` for the right reply. ``requests`` are the bodies received."""

    content: bytes = field(default_factory=packed_bytes)
    manifest: dict[str, Any] = field(default_factory=dict)
    faults: list[WarmReply | BaseException | None] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def document(self) -> bytes:
        """The manifest as a container sends it."""
        document = {
            "format": 1,
            "key": KEY,
            "subject": {"device": {"name": "H200"}},
            "size": len(self.content),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "files": 12,
            "unpacked_bytes": 3 * len(self.content),
            "seconds_cold": 132.5,
            "made": "2026-11-20T10:00:00Z",
        }
        return json.dumps({**document, **self.manifest}).encode()

    def answer(self, body: dict[str, Any]) -> WarmReply:
        """The reply to one request."""
        self.requests.append(body)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, BaseException):
            raise fault
        if fault is not None:
            return fault
        if not body:
            return WarmReply(200, self.document)
        return WarmReply(200, self.content[body["offset"] : body["offset"] + body["length"]])
