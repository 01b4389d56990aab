"""A ``docker`` with prepared answers that records its calls.

``answers.json`` beside it is a list of ``[words, exit code, stdout, stderr]``: the first whose
words are all in the argv is used. Other images do not exist.
``calls.jsonl`` gets argv, input and environment of each call.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

here = Path(__file__).parent
given = sys.stdin.buffer.read()
configuration = os.environ.get("DOCKER_CONFIG")
config = Path(configuration, "config.json") if configuration else None
call = {
    "argv": sys.argv[1:],
    "input": hashlib.sha256(given).hexdigest() if given else None,
    "environment": dict(os.environ),
    "config": config.read_text() if config and config.is_file() else None,
}
with (here / "calls.jsonl").open("a") as stream:
    stream.write(json.dumps(call) + "\n")
for words, code, out, err in json.loads((here / "answers.json").read_text()):
    if all(word in sys.argv for word in words):
        if out:
            print(out, flush=True)
        if err:
            print(err, file=sys.stderr)
        sys.exit(code)
if "inspect" in sys.argv:
    sys.exit(f"Error: No such image: {sys.argv[-1]}")
