"""Artefacts on their way from one lent machine to the next.

An artefact is ``<key>.tar.gz`` and its manifest. For the way its archive is packed better: without
gzip, in xz, in pieces. On arrival it is gzip again, of other bytes but the same content, so the
manifest gets the size and the digest of the new file; key and subject stay.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path

from benchmarks.gpu import pieces
from benchmarks.gpu.warm_places import Place

PIECE_BYTES = 15 << 20
MOST_FILES = 6
MOST_BYTES = 56 << 20
"""Of what a command may bring back: 8 files and 64 MiB, less the results and the logs."""
_LEVEL = 1


class NoArtefact(Exception):
    """No whole artefact has come. The text says what is missing."""


def pack(place: Place, out: Path) -> list[Path]:
    """The pieces of the one artefact that lies beside the pair's weights."""
    (manifest,) = place.artefacts.glob("*.json")
    plain = place.folder / "artefact.tar"
    with gzip.open(manifest.with_suffix(".tar.gz")) as packed, plain.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    notes = {"pair": place.pair, "manifest": json.loads(manifest.read_text())}
    parcel, made = pieces.pack(plain, out, f"warm-{place.pair}", PIECE_BYTES, notes)
    plain.unlink()
    print(f"{place.pair}: {parcel.size / 1e6:.1f} MB of caches as {parcel.compressed / 1e6:.1f} MB "
          f"in {len(made)} pieces", flush=True)  # fmt: skip
    return made


def hand(parcels: Path, out: Path) -> list[Path]:
    """Copy pieces that were not handed yet into ``out``, as far as one command brings them back."""
    noted = parcels / "handed"
    done = set(noted.read_text().split()) if noted.is_file() else set()
    here = [
        path for path in out.iterdir() if path.name.startswith("warm-") and path.suffix != ".json"
    ]
    room = MOST_BYTES - sum(path.stat().st_size for path in here)
    handed: list[Path] = []
    waiting = sorted(path for path in parcels.glob("warm-*") if path.name not in done)
    for path in waiting:
        if len(here) + len(handed) < MOST_FILES and path.stat().st_size <= room:
            room -= path.stat().st_size
            handed.append(Path(shutil.copy(path, out)))
    noted.write_text("\n".join(sorted(done | {path.name for path in handed})))
    left = [path.name for path in waiting if path.name not in {one.name for one in handed}]
    print(f"handed: {', '.join(path.name for path in handed) or 'nothing'}", flush=True)
    if left:
        print(f"left for another command (warm hand): {', '.join(left)}", flush=True)
    return handed


def take(piece: Path, kept: Path) -> None:
    """Keep a piece that came along."""
    parcel, lacking = pieces.take(piece, kept)
    still = f"still to come: {', '.join(map(str, lacking))}" if lacking else "all are here"
    print(f"{parcel.name}: {still}", flush=True)


def unpack(place: Place, kept: Path) -> None:
    """Put the pair's artefact beside its weights, as any container looks for it.

    Raises NoArtefact, DamagedParcel.
    """
    found = sorted(kept.glob(f"warm-{place.pair}.*"))
    if not found:
        raise NoArtefact(f"no piece of warm-{place.pair} is in {kept}")
    parcel, _ = pieces.read(found[0])
    if lacking := pieces.missing(parcel, kept):
        raise NoArtefact(f"pieces of {parcel.name} are missing: {lacking}")
    place.artefacts.mkdir(parents=True, exist_ok=True)
    manifest = parcel.notes["manifest"]
    plain = place.folder / "artefact.tar"
    pieces.join(parcel, kept, plain)
    archive = place.artefacts / f"{manifest['key']}.tar.gz"
    with plain.open("rb") as file, gzip.open(archive, "wb", compresslevel=_LEVEL) as packed:
        shutil.copyfileobj(file, packed, 1 << 20)
    plain.unlink()
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    told = {**manifest, "size": archive.stat().st_size, "sha256": digest}
    archive.with_name(f"{manifest['key']}.json").write_text(json.dumps(told))
