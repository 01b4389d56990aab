"""What engines compiled, kept below ``warm/`` beside the weights: see `peagle warm`.

A warm start is an archive and a manifest, ``<key>.tar.gz`` and ``<key>.json``, of which the
manifest comes last. Here they are only listed; the container knows what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.aws.errors import Missing
from toolkit.aws.weights.bucket import Bucket
from toolkit.aws.weights.foreign import printable
from toolkit.aws.weights.layout import Place
from toolkit.warm import FOLDER

_LONGEST_MANIFEST = 1_000_000
_LONGEST_WORDS = 80


@dataclass(frozen=True)
class Artefact:
    """Its objects with their sizes in bytes, and the device that it is for. One of which a part is
    missing is not ``whole``, and no engine takes it."""

    key: str
    objects: Mapping[str, int]
    device: str
    whole: bool

    @property
    def size(self) -> int:
        """All of it, in bytes."""
        return sum(self.objects.values())


def artefacts(bucket: Bucket, place: Place, there: Mapping[str, int]) -> tuple[Artefact, ...]:
    """All of them, of the objects ``there`` (size by key)."""
    found: dict[str, dict[str, int]] = {}
    for key, size in sorted(there.items()):
        if name := place.artefact(key):
            found.setdefault(name, {})[key] = size
    return tuple(_artefact(bucket, place, name, objects) for name, objects in found.items())


def _artefact(bucket: Bucket, place: Place, name: str, objects: Mapping[str, int]) -> Artefact:
    stem = f"{place.prefix}{FOLDER}/{name}"
    if not 0 < objects.get(f"{stem}.json", 0) <= _LONGEST_MANIFEST:
        return Artefact(name, objects, "", whole=False)
    try:
        document = json.loads(bucket.read(f"{stem}.json"))
        device = device_words(document["subject"]["device"])
        whole = document["size"] == objects.get(f"{stem}.tar.gz")
    except (Missing, ValueError, LookupError, TypeError, RecursionError):
        return Artefact(name, objects, "", whole=False)
    return Artefact(name, objects, device, whole)


def device_words(device: Any) -> str:
    """GPUs or processor in words, safe for a terminal; "" where that is not told."""
    facts = device if isinstance(device, dict) else {}
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        text = f"{facts.get('used', len(gpus))} x {gpus[0]}, driver {facts.get('driver')}"
    else:
        text = str(facts.get("cpu") or "")
    return printable(text, _LONGEST_WORDS)
