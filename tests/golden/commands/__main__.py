"""Record commands, options, exit codes and JSON keys from the build at hand."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.commands import INTERFACE, RUNS, command_lines
from tests.golden.commands.interface import interface
from tests.golden.commands.outline import share_keys
from tests.golden.commands.workplace import Workplace
from tests.sandbox.sandboxes import Sandbox, fake_engine, started


def record() -> None:
    """Write ``interface.json`` and ``runs.json``."""
    _write(INTERFACE, interface(), depth=3)
    with TemporaryDirectory() as folder:
        workplace = Workplace(Path(folder))
        workplace.furnish()
        runs = {line: workplace.outline(line) for line in command_lines("commands.txt")}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        with started(Sandbox(place / "home", fake_engine(place / "engine"))) as sandbox:
            workplace = Workplace(place, sandbox.settings)
            served = {line: workplace.outline(line) for line in command_lines("sandbox.txt")}
    document = {"commands": runs, "sandbox": served}
    _write(RUNS, {"shared": share_keys([runs, served]), **document}, depth=3)


def _write(path: Path, document: Any, depth: int) -> None:
    path.write_text(_text(document, depth) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def _text(value: Any, depth: int, indent: str = "") -> str:
    """JSON whose entries are on lines of their own down to ``depth``, so that a difference can be
    read; what is deeper is on one line."""
    if depth == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    within = indent + " "
    if isinstance(value, list):
        lines = [within + _text(one, depth - 1, within) for one in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    lines = [
        f"{within}{json.dumps(key, ensure_ascii=False)}: {_text(one, depth - 1, within)}"
        for key, one in value.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    record()
