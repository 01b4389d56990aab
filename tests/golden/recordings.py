"""Recordings of what a user gets, as JSON files that are compared and written again.

``recorders()`` names the files; ``python -m tests.golden`` writes all of them from the code at
hand, ``python -m tests.golden aws_calls`` one of them, and so does ``PEAGLE_UPDATE_GOLDEN=1
pytest tests/golden``. Review the difference: each changed line is one that a user may notice.

The recorders use the command line, ``import peagle``, the entrypoint's program, and the events of
botocore, and not the modules below them: the recordings outlive a reorganization of the code.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import FROZEN_CATALOG

FOLDER = Path(__file__).parent
BUNDLED_CATALOG = "PEAGLE_BUNDLED_CATALOG"
Recorder = Callable[[Path], Any]
"""Makes a recording, a JSON document, in an empty folder."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a machine with the tests' catalogue and without AWS, Docker or settings;
    ``home`` is its user's folder."""
    return {
        "PATH": str(home / "nothing"),
        "HOME": str(home),
        "PEAGLE_HOME": str(home / "peagle"),
        BUNDLED_CATALOG: str(FROZEN_CATALOG),
        "HF_HUB_OFFLINE": "1",
        "AWS_CONFIG_FILE": str(home / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
        **more,
    }


@contextmanager
def replaced(place: Any, **values: Any) -> Iterator[None]:
    """Within the block, attributes of ``place`` have these values."""
    before = {name: getattr(place, name) for name in values}
    for name, value in values.items():
        setattr(place, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(place, name, value)


def text(value: Any, depth: int, indent: str = "") -> str:
    """JSON whose entries are on lines of their own down to ``depth``, so that a difference can be
    read; what is deeper is on one line."""
    if depth == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    within = indent + " "
    if isinstance(value, Mapping):
        lines = [
            f"{within}{json.dumps(key, ensure_ascii=False)}: {text(part, depth - 1, within)}"
            for key, part in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    lines = [within + text(part, depth - 1, within) for part in value]
    return "[\n" + ",\n".join(lines) + f"\n{indent}]"


def recorders() -> dict[str, tuple[Recorder, int]]:
    """The recordings by name: what makes them, and the depth of ``text``."""
    from tests.golden import digests, entrypoint, scenarios, tables

    return {
        "aws_calls": (scenarios.record, 5),
        "interruptions": (scenarios.record_interruptions, 3),
        "digests": (digests.record, 3),
        "entrypoint": (entrypoint.record, 2),
        "tables": (tables.record, 3),
    }


def written(name: str, folder: Path) -> bytes:
    """The recording as it is in its file; ``folder`` is empty."""
    record, depth = recorders()[name]
    return (text(record(folder), depth) + "\n").encode()
