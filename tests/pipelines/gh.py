"""``gh api`` for the comments of pull requests, which it keeps in the files ``$COMMENTS/N.json``.

Takes what the workflows call, and ends with exit code 2 for anything else. A filter is run by jq.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

AUTHOR = "github-actions[bot]"
"""Who writes with the token of a workflow."""
_OF_PULL = re.compile(r"repos/[\w.-]+/[\w.-]+/issues/(\d+)/comments")
_ONE = re.compile(r"repos/[\w.-]+/[\w.-]+/issues/comments/(\d+)")


def comments(folder: Path, number: int | str) -> list[dict[str, Any]]:
    """The comments on a pull request, the oldest first."""
    file = folder / f"{number}.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one call; the exit code."""
    options = _options(arguments)
    folder = Path(os.environ["COMMENTS"])
    body = options.field and Path(options.field.removeprefix("body=@")).read_text("utf-8")
    pull, one = _OF_PULL.fullmatch(options.path), _ONE.fullmatch(options.path)
    if pull and options.method == "GET" and body is None:
        return _show(comments(folder, pull[1]), options.jq)
    if pull and options.method in ("GET", "POST") and body:
        return _add(folder, pull[1], body)
    if one and options.method == "PATCH" and body:
        return _replace(folder, int(one[1]), body)
    return 2


def _show(found: list[dict[str, Any]], jq: str) -> int:
    command = ["jq", "--raw-output", jq]
    return subprocess.run(command, input=json.dumps(found), text=True, check=False).returncode


def _add(folder: Path, number: str, body: str) -> int:
    known = [one["id"] for file in folder.glob("*.json") for one in comments(folder, file.stem)]
    made = {"id": max(known, default=1000) + 1, "user": {"login": AUTHOR}, "body": body}
    _write(folder / f"{number}.json", [*comments(folder, number), made])
    return 0


def _replace(folder: Path, identifier: int, body: str) -> int:
    for file in folder.glob("*.json"):
        found = comments(folder, file.stem)
        for one in found:
            if one["id"] == identifier:
                one["body"] = body
                _write(file, found)
                return 0
    return 1


def _write(file: Path, content: list[dict[str, Any]]) -> None:
    file.write_text(json.dumps(content, indent=2), "utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gh", description=__doc__)
    parser.add_argument("command", choices=["api"])
    parser.add_argument("path")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--field")
    parser.add_argument("--jq", default=".")
    parser.add_argument("--paginate", action="store_true")
    parser.add_argument("--silent", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
