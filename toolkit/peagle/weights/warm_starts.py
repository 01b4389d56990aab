"""The warm starts at a prefix: archives of compile caches below ``warm/`` (see ``peagle warm``).

A warm start is an archive and a manifest, ``<key>.tar.gz`` and ``<key>.json``, the manifest written
last. This module only lists them; the container reads their contents.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.aws.errors import Missing
from peagle.text import sanitize
from peagle.weights.bucket import Bucket
from peagle.weights.layout import PARTS, WeightsPrefix
from peagle.weights.manifest import Manifest
from peagle_serve.contract import WARM_FOLDER

_MAX_MANIFEST = 1_000_000
_MAX_TEXT = 80
_MAX_DATE = 20
_MAX_SECONDS = 1e6
_SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"


@dataclass(frozen=True)
class StoredWarmStart:
    """The objects of a warm start with their sizes in bytes, and what its manifest says.

    ``pair`` is the synced pair that it was compiled for, "" where the weights differ or are
    unknown; ``k`` is 0 without speculation; ``made`` is UTC in ISO 8601; ``seconds_cold`` is how
    long the engine took to start without it. No engine uses one that is not ``complete``.
    """

    key: str
    objects: Mapping[str, int]
    complete: bool = False
    pair: str = ""
    k: int | None = None
    device: str = ""
    made: str = ""
    seconds_cold: float | None = None

    @property
    def size(self) -> int:
        return sum(self.objects.values())


def stored_warm_starts(
    bucket: Bucket, place: WeightsPrefix, present: Mapping[str, int], weights: Manifest
) -> tuple[StoredWarmStart, ...]:
    """The warm starts among the objects ``present`` (size by key); ``weights`` is the manifest of
    the weights beside them."""
    found: dict[str, dict[str, int]] = {}
    for key, size in sorted(present.items()):
        if name := place.warm_start_of(key):
            found.setdefault(name, {})[key] = size
    return tuple(_warm_start(bucket, place, name, found[name], weights) for name in found)


def _warm_start(
    bucket: Bucket, place: WeightsPrefix, name: str, objects: Mapping[str, int], weights: Manifest
) -> StoredWarmStart:
    stem = f"{place.key}{WARM_FOLDER}/{name}"
    if not 0 < objects.get(f"{stem}.json", 0) <= _MAX_MANIFEST:
        return StoredWarmStart(name, objects)
    try:
        document = json.loads(bucket.read(f"{stem}.json"))
        subject = document["subject"]
        seconds = document.get("seconds_cold")
        plausible = type(seconds) in (int, float) and 0 < seconds < _MAX_SECONDS
        return StoredWarmStart(
            key=name,
            objects=objects,
            complete=document["size"] == objects.get(f"{stem}.tar.gz"),
            pair=_pair(subject.get("pair"), weights),
            k=_k(subject.get("engine")),
            device=_device(subject["device"]),
            made=sanitize(document.get("made", ""), _MAX_DATE),
            seconds_cold=float(seconds) if plausible else None,
        )
    except (Missing, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return StoredWarmStart(name, objects)


def _pair(digests: Any, weights: Manifest) -> str:
    """The synced pair, when its configurations are those that the engine compiled for."""
    compiled_for = digests if isinstance(digests, dict) else {}
    known = {part: _config_sha256(weights, part) for part in PARTS if compiled_for.get(part)}
    target = weights.get("target")
    if not target or not known or any(compiled_for[part] != known[part] for part in known):
        return ""
    return target.pair if "drafter" in known else target.pair.partition("+")[0]


def _config_sha256(weights: Manifest, part: str) -> str:
    """SHA-256 of the folder's config.json in hex, as S3 has it; "" where unknown."""
    folder = weights.get(part)
    entry = folder.files.get("config.json") if folder else None
    algorithm, _, value = ((entry and entry.checksum) or "").partition(":")
    try:
        return base64.b64decode(value, validate=True).hex() if algorithm == "SHA256" else ""
    except binascii.Error:
        return ""


def _k(engine: Any) -> int | None:
    if not isinstance(engine, dict):
        return None
    if _SPECULATION not in engine:
        return 0
    try:
        k = json.loads(engine[_SPECULATION])["num_speculative_tokens"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return k if type(k) is int else None


def _device(device: Any) -> str:
    """GPUs or CPU as text; "" where unknown."""
    facts = device if isinstance(device, dict) else {}
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        text = f"{facts.get('used', len(gpus))} x {gpus[0]}, driver {facts.get('driver')}"
    else:
        text = str(facts.get("cpu") or "")
    return sanitize(text, _MAX_TEXT)
