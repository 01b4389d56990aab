"""What an image or the wheel is made of, as CycloneDX 1.6: a separate file, never part of it.

SageMaker takes a plain image manifest, and none with an attached bill of materials. The same input
gives the same bytes: no clock, and a serial number from the content. ``make lock`` writes the
wheel's file: ``python -m peagle.images.sbom requirements/core.txt``.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from peagle import __version__
from peagle.errors import EngineError
from peagle.images.docker import Docker
from peagle.images.inspect import Image
from peagle.store import home, private_folder, write_file
from peagle_serve import json_reader

SUFFIX = ".cdx.json"

_LOCKED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<rest>(?:.*\\\n)*.*)$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

_PRINT_INVENTORY = """
import importlib.metadata, json
def field(block, name):
    found = [l[len(name) + 2:] for l in block.splitlines() if l.startswith(name + ": ")]
    return found[0] if found else ""
def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
blocks = text("/var/lib/dpkg/status").split("\\n\\n")
blocks = [b for b in blocks if " installed" in field(b, "Status")]
debian = {tuple(field(b, n) for n in ("Package", "Version", "Architecture")) for b in blocks}
release = dict(l.split("=", 1) for l in text("/etc/os-release").splitlines() if "=" in l)
found = importlib.metadata.distributions()
python = {(d.metadata["Name"], d.version) for d in found if d.metadata["Name"]}
print(json.dumps({
    "python": sorted(python),
    "debian": sorted(debian),
    "system": [release.get("ID", "").strip('"'), release.get("VERSION_ID", "").strip('"')],
}))
"""
"""Prints the Python distributions and Debian packages of the image that it runs in."""


@dataclass(frozen=True, order=True)
class Component:
    """A package; ``hashes`` are the SHA-256 of the files that may be it."""

    name: str
    version: str
    purl: str
    hashes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
        }
        if self.hashes:
            files = [{"alg": "SHA-256", "content": one} for one in self.hashes]
            reference = {"type": "distribution", "url": self.purl, "hashes": files}
            entry["externalReferences"] = [reference]
        return entry


def python_component(name: str, version: str, hashes: Sequence[str] = ()) -> Component:
    """A Python distribution, by the normalized name of PyPI."""
    normalized = re.sub(r"[-_.]+", "-", name).lower()
    return Component(normalized, version, f"pkg:pypi/{normalized}@{quote(version)}", tuple(hashes))


def locked_components(lock: str) -> list[Component]:
    """The packages of a lock file with hashes, for any Python and system."""
    return [
        python_component(found["name"], found["version"], sorted(_HASH.findall(found["rest"])))
        for found in _LOCKED.finditer(lock)
    ]


def wheel_sbom(lock: str) -> dict[str, Any]:
    """The SBOM of the wheel: what ``pip install peagle-toolkit`` brings, with all hashes."""
    own = python_component("peagle-toolkit", __version__)
    subject = {**own.document(), "type": "application"}
    return _document(subject, locked_components(lock))


def image_sbom(docker: Docker, image: Image) -> dict[str, Any]:
    """The SBOM of an image on this machine, which is run to list its packages.

    Raises EngineError when the image does not run or prints something else, and as ``Docker.run``.
    """
    printed = docker.run(
        "run", "--rm", "--network", "none", "--entrypoint", "python3", image.id or image.name,
        "-c", _PRINT_INVENTORY,
        doing=f"listing the packages of {image.name}",
    )  # fmt: skip
    try:
        found = json_reader.read(printed, "the list of packages")
        system, release = map(str, found["system"])
        python = [python_component(str(name), str(version)) for name, version in found["python"]]
        debian = [
            _debian(str(name), str(version), str(machine), system, release)
            for name, version, machine in found["debian"]
        ]
    except (json_reader.InvalidJson, KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"{image.name} lists no packages: {error}", "build it again", code="no-packages"
        ) from error
    subject: dict[str, Any] = {
        "type": "container",
        "bom-ref": image.name,
        "name": image.name,
        "version": image.id,
        "properties": [
            {"name": label, "value": value} for label, value in sorted(image.labels.items())
        ],
    }
    return _document(subject, [*python, *debian])


def _debian(name: str, version: str, machine: str, system: str, release: str) -> Component:
    distro = f"&distro={quote(f'{system}-{release}')}" if release else ""
    purl = f"pkg:deb/{system or 'debian'}/{quote(name)}@{quote(version)}?arch={machine}{distro}"
    return Component(name, version, purl)


def _document(subject: dict[str, Any], components: Iterable[Component]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "metadata": {
            "component": subject,
            "tools": {"components": [{"type": "application", "name": "peagle-toolkit",
                                      "version": __version__}]},
        },
        "components": [one.document() for one in sorted(set(components))],
    }  # fmt: skip
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }


def sbom_file(name: str) -> Path:
    """Where the SBOM of the image ``name`` is by default."""
    return home() / "images" / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}{SUFFIX}"


def write_image_sbom(docker: Docker, image: Image, file: Path | None = None) -> Path:
    """Write the SBOM of an image to ``file``, else to ``sbom_file``; returns where it is.

    Raises as ``image_sbom``, and OSError for a file that cannot be written.
    """
    document, path = image_sbom(docker, image), file or sbom_file(image.name)
    if file is None:
        private_folder(path.parent)
    write_file(path, sbom_text(document).encode())
    return path


def sbom_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(sbom_text(wheel_sbom(Path(sys.argv[1]).read_text(encoding="utf-8"))))
