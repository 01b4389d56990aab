"""What engines compiled, kept below ``warm/`` in what is mounted: see `peagle warm`.

A warm start is an archive and a manifest, ``<key>.tar.gz`` and ``<key>.json``, of which the
manifest comes last. Here they are only listed; the container knows what is in them.
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
from peagle.weights.layout import PARTS, Place
from peagle.weights.manifest import Manifest
from peagle_serve.contract import WARM_FOLDER

_LONGEST_MANIFEST = 1_000_000
_LONGEST_WORDS = 80
_LONGEST_DATE = 20
_LONGEST_SECONDS = 1e6
_SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"


@dataclass(frozen=True)
class StoredWarmStart:
    """Its objects with their sizes in bytes, and what its manifest says of it.

    ``pair`` is the one that lies beside it, "" where it was made of other weights or nobody can
    tell; ``k`` is 0 without speculation; ``made`` is when, in UTC as ISO 8601; ``seconds_cold`` is
    how long the engine took to start without it. One of which a part is missing is not ``whole``,
    and no engine takes it.
    """

    key: str
    objects: Mapping[str, int]
    whole: bool = False
    pair: str = ""
    k: int | None = None
    device: str = ""
    made: str = ""
    seconds_cold: float | None = None

    @property
    def size(self) -> int:
        """All of it, in bytes."""
        return sum(self.objects.values())


def stored_warm_starts(
    bucket: Bucket, place: Place, there: Mapping[str, int], beside: Manifest
) -> tuple[StoredWarmStart, ...]:
    """All of them, of the objects ``there`` (size by key); ``beside`` says which weights are."""
    found: dict[str, dict[str, int]] = {}
    for key, size in sorted(there.items()):
        if name := place.artefact(key):
            found.setdefault(name, {})[key] = size
    return tuple(_artefact(bucket, place, name, found[name], beside) for name in found)


def _artefact(
    bucket: Bucket, place: Place, name: str, objects: Mapping[str, int], beside: Manifest
) -> StoredWarmStart:
    stem = f"{place.prefix}{WARM_FOLDER}/{name}"
    if not 0 < objects.get(f"{stem}.json", 0) <= _LONGEST_MANIFEST:
        return StoredWarmStart(name, objects)
    try:
        document = json.loads(bucket.read(f"{stem}.json"))
        subject = document["subject"]
        return StoredWarmStart(
            key=name,
            objects=objects,
            whole=document["size"] == objects.get(f"{stem}.tar.gz"),
            pair=_pair(subject.get("pair"), beside),
            k=_k(subject.get("engine")),
            device=device_words(subject["device"]),
            made=sanitize(document.get("made", ""), _LONGEST_DATE),
            seconds_cold=_seconds(document.get("seconds_cold")),
        )
    except (Missing, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return StoredWarmStart(name, objects)


def _pair(digests: Any, beside: Manifest) -> str:
    """The pair beside it, when the configurations there are those that it was made of."""
    made_of = digests if isinstance(digests, dict) else {}
    known = {part: _configuration(beside, part) for part in PARTS if made_of.get(part)}
    target = beside.get("target")
    if not target or not known or any(made_of[part] != known[part] for part in known):
        return ""
    return target.pair if "drafter" in known else target.pair.partition("+")[0]


def _configuration(beside: Manifest, part: str) -> str:
    """SHA-256 of the folder's config.json in hex, as S3 has it; "" where that is not known."""
    folder = beside.get(part)
    entry = folder.files.get("config.json") if folder else None
    algorithm, _, value = ((entry and entry.checksum) or "").partition(":")
    try:
        return base64.b64decode(value, validate=True).hex() if algorithm == "SHA256" else ""
    except binascii.Error:
        return ""


def _k(engine: Any) -> int | None:
    """Tokens that are drafted at a time, of the variables of an engine."""
    if not isinstance(engine, dict):
        return None
    if _SPECULATION not in engine:
        return 0
    try:
        k = json.loads(engine[_SPECULATION])["num_speculative_tokens"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return k if type(k) is int else None


def _seconds(said: Any) -> float | None:
    """``None`` for what is no time that an engine takes."""
    return float(said) if type(said) in (int, float) and 0 < said < _LONGEST_SECONDS else None


def device_words(device: Any) -> str:
    """GPUs or processor in words, safe for a terminal; "" where that is not told."""
    facts = device if isinstance(device, dict) else {}
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        text = f"{facts.get('used', len(gpus))} x {gpus[0]}, driver {facts.get('driver')}"
    else:
        text = str(facts.get("cpu") or "")
    return sanitize(text, _LONGEST_WORDS)
