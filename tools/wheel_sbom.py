"""The wheel's bill of materials as CycloneDX 1.6: what ``pip install peagle-toolkit`` brings.

The same lock gives the same bytes: no clock, and a serial number from the content. ``make lock``
runs ``python -m tools.wheel_sbom requirements/core.txt``.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

from peagle import __version__

_LOCKED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<rest>(?:.*\\\n)*.*)$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def wheel_sbom(lock: str) -> str:
    """The document for a lock file with hashes, for any Python and system."""
    packages = {
        (match["name"], match["version"], tuple(sorted(_HASH.findall(match["rest"]))))
        for match in _LOCKED.finditer(lock)
    }
    content: dict[str, Any] = {
        "metadata": {
            "component": {**_component("peagle-toolkit", __version__), "type": "application"},
            "tools": {"components": [{"type": "application", "name": "peagle-toolkit",
                                      "version": __version__}]},
        },
        "components": [_component(*package) for package in sorted(packages)],
    }  # fmt: skip
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }
    return json.dumps(document, indent=1) + "\n"


def _component(name: str, version: str, hashes: tuple[str, ...] = ()) -> dict[str, Any]:
    """A package, by PyPI's normalized name, with the SHA-256 of the files that may be it."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{name}@{quote(version)}"
    component = {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl
    }  # fmt: skip
    if not hashes:
        return component
    files = [{"alg": "SHA-256", "content": digest} for digest in hashes]
    return component | {
        "externalReferences": [{"type": "distribution", "url": purl, "hashes": files}]
    }


if __name__ == "__main__":
    sys.stdout.write(wheel_sbom(Path(sys.argv[1]).read_text(encoding="utf-8")))
