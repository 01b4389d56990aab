"""A ``docker`` with prepared answers that records its calls.

``answers.json`` beside it is a list of ``[words, exit code, stdout, stderr]``: the first whose
words are all in the argv is used. Other images do not exist.
``calls.jsonl`` gets argv, input and environment of each call.
"""

import json
import os
import sys

HERE = os.path.dirname(__file__)


def text_of(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def digest(content: bytes) -> str | None:
    if not content:
        return None
    import hashlib

    return hashlib.sha256(content).hexdigest()


config = os.path.join(os.environ.get("DOCKER_CONFIG", ""), "config.json")
call = {
    "argv": sys.argv[1:],
    "input": digest(sys.stdin.buffer.read()),
    "environment": dict(os.environ),
    "config": text_of(config) if "DOCKER_CONFIG" in os.environ and os.path.isfile(config) else None,
}
with open(os.path.join(HERE, "calls.jsonl"), "a", encoding="utf-8") as stream:
    stream.write(json.dumps(call) + "\n")
for words, code, out, err in json.loads(text_of(os.path.join(HERE, "answers.json"))):
    if all(word in sys.argv for word in words):
        if out:
            print(out, flush=True)
        if err:
            print(err, file=sys.stderr)
        sys.exit(code)
if "inspect" in sys.argv:
    sys.exit(f"Error: No such image: {sys.argv[-1]}")
