"""Record commands, options, exit codes and JSON keys from the build at hand."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.commands import INTERFACE, MESSAGES, RUNS, command_lines
from tests.golden.commands.interface import interface
from tests.golden.commands.outline import share_keys
from tests.golden.commands.workplace import Workplace
from tests.golden.recordings import text
from tests.sandbox.sandboxes import Sandbox, fake_engine, started


def record() -> None:
    """Write ``interface.json``, ``runs.json`` and ``messages.json``."""
    messages: dict[str, dict[str, Any]] = {}
    _write(INTERFACE, interface(), depth=3)
    with TemporaryDirectory() as folder:
        workplace = Workplace(Path(folder))
        workplace.furnish()
        runs = {}
        for line in command_lines("commands.txt"):
            runs[line], line_messages = workplace.outline(line)
            for code in line_messages:
                messages.setdefault(code, {"line": line, **line_messages[code]})
    with TemporaryDirectory() as folder:
        place = Path(folder)
        with started(Sandbox(place / "home", fake_engine(place / "engine"))) as sandbox:
            workplace = Workplace(place, sandbox.settings)
            served = {line: workplace.outline(line)[0] for line in command_lines("sandbox.txt")}
    document = {"commands": runs, "sandbox": served}
    _write(RUNS, {"shared": share_keys([runs, served]), **document}, depth=3)
    _write(MESSAGES, dict(sorted(messages.items())), depth=2)


def _write(path: Path, document: Any, depth: int) -> None:
    path.write_text(text(document, depth) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    record()
