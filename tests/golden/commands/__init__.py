"""What scripts of users rest on: commands, options, exit codes and the keys of JSON documents.

``commands.txt``   command lines that need no engine, no Docker and no AWS, one a line
``sandbox.txt``    command lines against the sandbox, which run one after the other
``interface.json`` every command with its options and arguments, as recorded
``runs.json``      how each command line ends, as recorded
``messages.json``  the words of errors and findings by code: the one place that records wording
``first.json``     the first recording of all of them, with which ``first.py`` compares
``first_changes.json`` what ends in another way than at first, with the reason

``python -m tests.golden.commands`` records ``interface.json``, ``runs.json`` and
``messages.json`` again from the current code. Review the diff before committing: a removed or
changed line breaks a user's script.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
INTERFACE = FOLDER / "interface.json"
RUNS = FOLDER / "runs.json"
MESSAGES = FOLDER / "messages.json"


def command_lines(name: str) -> tuple[str, ...]:
    """The command lines in ``commands.txt`` or ``sandbox.txt``; blank lines and remarks go."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def recorded(path: Path) -> dict[str, Any]:
    """The recording in ``path``."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
