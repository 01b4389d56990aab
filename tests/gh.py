"""``gh api`` for the comments of a pull request, which it keeps in the file ``$COMMENTS``; a filter
is run by jq."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMENT = "repos/acme/models/issues/comments/"


def main() -> int:
    parser = argparse.ArgumentParser(prog="gh", description=__doc__)
    parser.add_argument("command", choices=["api"])
    parser.add_argument("path")
    for name in ("--method", "--field", "--jq"):
        parser.add_argument(name, default="")
    for name in ("--paginate", "--silent"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    file = Path(os.environ["COMMENTS"])
    comments: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
    if not options.field:
        command = ["jq", "--raw-output", options.jq]
        return subprocess.run(command, input=json.dumps(comments), text=True).returncode
    body = Path(options.field.removeprefix("body=@")).read_text("utf-8")
    if options.method == "PATCH":
        identifier = int(options.path.removeprefix(COMMENT))
        next(comment for comment in comments if comment["id"] == identifier)["body"] = body
    else:
        author = {"login": "github-actions[bot]"}
        comments.append({"id": 1000 + len(comments), "user": author, "body": body})
    file.write_text(json.dumps(comments), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
