"""Images from the table that the SageMaker SDK carries: versions, tags, regions and accounts.

Only the package's data file is read: importing it takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.catalog.tables import Runtime, RuntimeTable
from toolkit.catalog.versions import parse
from toolkit.errors import UserError

PACKAGE = "sagemaker-core"
INSTALL = "pip install 'peagle-toolkit[sagemaker]'"
DATA_FILE = "sagemaker/core/image_uri_config/vllm.json"

_CUDA = re.compile(r"\bcu(\d+)(\d)\b")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Images:
    """The SDK's table: images by vLLM version, accounts by region, and where it is from.

    ``unread`` says which entries were not understood.
    """

    source: str
    accounts: Mapping[str, str]
    runtimes: Mapping[str, Runtime]
    unread: tuple[str, ...]


def sdk_images(table: RuntimeTable) -> Images:
    """The images of the installed SDK; ``table`` tells which AMI a version of CUDA needs.

    Raises UserError when the SDK is not installed, or its table is not there or not readable.
    """
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"the table of images comes with {PACKAGE}, which is not installed",
                        INSTALL) from None  # fmt: skip
    path = Path(str(package.locate_file(DATA_FILE)))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        versions = document["inference"]["versions"]
        return _images(versions, f"{PACKAGE} {package.version}, image_uri_config/vllm.json", table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{PACKAGE} {package.version} has no readable table of vLLM images: {error!r}",
            f"install another version: {INSTALL}",
        ) from error


def with_images(table: RuntimeTable, images: Images) -> RuntimeTable:
    """The table with the SDK's images; what the SDK does not have stays as it is."""
    kept = {runtime.vllm: runtime for runtime in table.runtimes}
    for version, new in images.runtimes.items():
        old = kept.get(version)
        kept[version] = new if old is None else old.model_copy(
            update={
                "repository": new.repository,
                "tag": new.tag,
                "digest": old.digest if _same_image(old, new) else None,
                "cuda": new.cuda,
                "regions": old.regions if set(old.regions) == set(new.regions) else new.regions,
            }
        )  # fmt: skip
    ordered = tuple(kept[version] for version in sorted(kept, key=parse))
    return table.model_copy(
        update={"accounts": {**table.accounts, **images.accounts}, "runtimes": ordered}
    )


def _same_image(old: Runtime, new: Runtime) -> bool:
    return (old.repository, old.tag) == (new.repository, new.tag)


def _images(versions: Mapping[str, Any], source: str, table: RuntimeTable) -> Images:
    accounts: dict[str, str] = {}
    runtimes: dict[str, Runtime] = {}
    unread: list[str] = []
    for version, entry in versions.items():
        runtime = _runtime(version, entry, table)
        if runtime is None:
            unread.append(version)
            continue
        runtimes[version] = runtime
        accounts |= {str(region): str(account) for region, account in entry["registries"].items()}
    return Images(source, dict(sorted(accounts.items())), runtimes, tuple(unread))


def _runtime(version: str, entry: Mapping[str, Any], table: RuntimeTable) -> Runtime | None:
    """``None`` for an entry that names no CUDA, or one whose AMI nobody knows."""
    container = str(entry["container_version"]["gpu"])
    found = _CUDA.search(container)
    cuda = f"{found[1]}.{found[2]}" if found else ""
    ami = _ami(cuda, table)
    if ami is None or not _VERSION.fullmatch(version):
        return None
    python = "-".join(entry["py_versions"][:1])
    parts = (str(entry["tag_prefix"]), "gpu", python, container)
    return Runtime(
        vllm=version,
        repository=str(entry["repository"]),
        tag="-".join(part for part in parts if part),
        cuda=cuda,
        ami=ami,
        regions=tuple(sorted(entry["registries"])),
    )


def _ami(cuda: str, table: RuntimeTable) -> str | None:
    """The AMI of the newest runtime on the same CUDA, else on the same major version of it."""
    newest = sorted(table.runtimes, key=lambda runtime: parse(runtime.vllm), reverse=True)
    for length in (len(cuda), cuda.find(".") + 1):
        for runtime in newest:
            if length > 0 and runtime.cuda[:length] == cuda[:length]:
                return runtime.ami
    return None
