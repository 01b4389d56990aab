"""Valid and damaged artifacts of warm starts."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peagle_serve.warm import Manifest, compute_key, pack

SUBJECT: dict[str, Any] = {
    "format": 1,
    "image": "sha256:" + "1" * 64,
    "software": "2" * 64,
    "device": {"gpus": ["NVIDIA H200 (9.0)"], "used": 1, "driver": "580"},
    "engine": {"SM_VLLM_MAX_MODEL_LEN": "2048"},
    "pair": {"target": "3" * 64, "drafter": "4" * 64},
}
CACHES = {
    "vllm/torch_compile_cache/torch_aot_compile/graph": b"a graph" * 1000,
    "vllm/modelinfos/vllm-model.json": b"{}",
    "inductor/ab/cabc.main.so": bytes(range(256)) * 40,
    f"triton/{'n' * 60}/{'k' * 60}/kernel.cubin": b"\x7fELF" + b"k" * 500,
}


def filled(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    """``folder`` with caches in it."""
    for name, content in (CACHES if files is None else files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def artifact(folder: Path, subject: dict[str, Any] | None = None) -> Manifest:
    """A valid artifact in ``folder``."""
    about = SUBJECT if subject is None else subject
    key = compute_key(about)
    folder.mkdir(parents=True, exist_ok=True)
    packed = pack(filled(folder.parent / "collected" / key), folder / f"{key}.tar.gz", [])
    manifest = Manifest(key=key, subject=about, seconds_cold=101.0, made="now", **packed)
    write(folder, manifest)
    return manifest


def write(folder: Path, manifest: Manifest, **changed: Any) -> None:
    """Write the manifest's file with some members changed."""
    document = {**manifest.document(), **changed}
    (folder / f"{manifest.key}.json").write_text(json.dumps(document))


def with_archive(folder: Path, manifest: Manifest, archive: bytes, **more: Any) -> Manifest:
    """Replace the archive, and make a manifest that matches it."""
    (folder / f"{manifest.key}.tar.gz").write_bytes(archive)
    changed = manifest._replace(
        size=len(archive), sha256=hashlib.sha256(archive).hexdigest(), **more
    )
    write(folder, changed)
    return changed


def locate_archive(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A gzipped tar of these members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def member(name: str, content: bytes = b"x", **changed: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of an archive: a regular file unless changed."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for attribute, value in changed.items():
        setattr(info, attribute, value)
    return info, content


def files_in(folder: Path) -> dict[str, bytes]:
    """All files below the folder, by path."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def is_empty(cache: Path) -> bool:
    """Whether the cache is missing or empty."""
    return not cache.exists() or list(cache.iterdir()) == []
