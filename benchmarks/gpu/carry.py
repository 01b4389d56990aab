"""Brings vLLM to a GPU host without network, in pieces that each fit one transfer.

Here, with network:

    python -m benchmarks.gpu.carry lock      write the locked list anew (needs uv)
    python -m benchmarks.gpu.carry make      download, unpack, check, cut into .gpu/engine/

There, once for each piece (any Python 3.12 with torch; nothing else is needed):

    python3 -m benchmarks.gpu.carry take .gpu/engine/vllm-0.26.0.1

``take`` keeps the piece, and with the last one unpacks and tries all. Pieces and the unpacked
folder lie below ``--root``, outside of the working tree, which each transfer replaces. It writes
``environment`` there: what a shell has to ``.`` before a measurement. ``--vllm`` names another
version that has a folder under ``engine/``.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import pieces

VLLM = "0.26.0"
ROOT = Path("/tmp/peagle")
ENVIRONMENT = "environment"
PIECE_MIB = 42.0
"""With the working tree's 20 MiB it stays below the 64 MiB of one transfer."""
_TIME = 1_767_225_600
"""Of every file in the folder: 2026-01-01. Compilers compare times, on one host and the next."""
_NO_PYTHON = re.compile(r"/flashinfer/data/")
"""Sources for nvcc, with scripts that nobody runs."""


def make(version: str, out: Path, piece_mib: float, tree: Path | None) -> None:
    """Download and unpack (unless ``tree`` has it already), check the needs, cut into ``out``."""
    from benchmarks.gpu.engine_set import PROGRAMS, engine_set, install
    from benchmarks.gpu.needs import needs_of

    engine = engine_set(version)
    with tempfile.TemporaryDirectory() as folder:
        place = tree or Path(folder, "tree")
        if not place.is_dir():
            timed("downloaded and unpacked", lambda: install(engine, place))
        found = needs_of(place, engine)
        print(found, flush=True)
        if found.unmet:
            sys.exit("\n".join(found.unmet))
        content = Path(folder, "tree.tar")
        timed("put into one file", lambda: archive(place, content))
        notes = {"folders": ["", *engine.folders_on_path], "programs": PROGRAMS, "vllm": version}
        begin = time.monotonic()
        limit = int(piece_mib * (1 << 20))
        parcel, files = pieces.pack(content, out, f"vllm-{version}", limit, notes)
    print(f"{parcel.size / 1e6:.0f} MB as {parcel.compressed / 1e6:.0f} MB in {len(files)} pieces, "
          f"{time.monotonic() - begin:.0f} s: {out}", flush=True)  # fmt: skip


def archive(tree: Path, content: Path) -> None:
    """All files of a folder, alike ones beside each other, each with the same time and owner."""
    files = [path for path in tree.rglob("*") if path.is_file()]
    with tarfile.open(content, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(files, key=lambda path: (path.suffix, str(path))):
            entry = tarfile.TarInfo(str(path.relative_to(tree)))
            entry.size, entry.mtime = path.stat().st_size, _TIME
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)


def take(given: Path, root: Path) -> None:
    """Keep a piece; when all are there, unpack them and try what was unpacked."""
    parcel, lacking = pieces.take(given, root / "pieces")
    count = len(parcel.pieces)
    print(f"{parcel.name}: {count - len(lacking)} of {count} pieces are here", flush=True)
    if lacking:
        print(f"still to come: {', '.join(map(str, lacking))}", flush=True)
        return
    site, content = root / "site", root / "tree.tar"
    timed("joined", lambda: pieces.join(parcel, root / "pieces", content))
    timed("unpacked", lambda: unpack(content, site))
    content.unlink()
    timed("bytecode", lambda: compileall.compile_dir(site, quiet=2, workers=0, rx=_NO_PYTHON))
    (root / ENVIRONMENT).write_text(environment(parcel, site, root))
    print(environment(parcel, site, root), end="", flush=True)
    try_out(root, parcel.notes["vllm"])


def try_out(root: Path, version: str) -> None:
    """Import what the measurements will import, and say what is missing."""
    tried = f". {root}/{ENVIRONMENT} && exec {sys.executable} -m benchmarks.gpu.imports"
    subprocess.run(["/bin/sh", "-c", f"{tried} --vllm {version}"])


def unpack(content: Path, site: Path) -> None:
    """The folder, or nothing: a half one is not left."""
    half = site.with_name(f"{site.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    with tarfile.open(content) as tar:
        tar.extractall(half, filter="data")
    shutil.rmtree(site, ignore_errors=True)
    half.rename(site)


def environment(parcel: pieces.Parcel, site: Path, root: Path) -> str:
    """Lines for a shell: the folders on the path, caches below ``root``, nothing from the hub."""
    folders = [str(site / name) for name in parcel.notes["folders"]]
    lines = {
        "PYTHONPATH": ":".join([*folders, str(Path.cwd())]),
        "PATH": f"{site / parcel.notes['programs']}:$PATH",
        "VLLM_CACHE_ROOT": f"{root}/cache/vllm",
        "TRITON_CACHE_DIR": f"{root}/cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{root}/cache/inductor",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return "".join(f'export {name}="{value}"\n' for name, value in lines.items())


def timed(what: str, do: Callable[[], object]) -> None:
    """Do it, and print how long it took."""
    begin = time.monotonic()
    do()
    print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("lock", "make", "take"))
    parser.add_argument("given", type=Path, nargs="?", help="take: a piece")
    parser.add_argument("--vllm", default=VLLM)
    parser.add_argument("--out", type=Path, default=Path(".gpu/engine"))
    parser.add_argument("--piece-mib", type=float, default=PIECE_MIB)
    parser.add_argument("--tree", type=Path, help="make: unpacked before; else a temporary one")
    parser.add_argument("--root", type=Path, default=ROOT)
    given = parser.parse_args()
    if given.step == "lock":
        from benchmarks.gpu.engine_set import engine_set, lock

        lock(engine_set(given.vllm))
    elif given.step == "make":
        make(given.vllm, given.out, given.piece_mib, given.tree)
    elif given.given is None:
        parser.error("take needs a piece")
    else:
        take(given.given, given.root)


if __name__ == "__main__":
    main()
