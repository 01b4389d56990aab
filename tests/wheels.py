"""Small wheels and locks of them, which uv installs without a network."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], tag: str = "py3-none-any"
) -> str:
    """Write a wheel; return its line of a lock file, with its hash."""
    distribution = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about = {
        f"{distribution}.dist-info/METADATA": metadata,
        f"{distribution}.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
    }
    rows = []
    path = folder / f"{distribution}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, **about}.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            rows.append(f"{file},sha256={digest.decode()},{len(text)}\n")
        archive.writestr(f"{distribution}.dist-info/RECORD", "".join(rows))
    digest_of_wheel = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{digest_of_wheel}\n"
