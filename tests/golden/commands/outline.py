"""How a command line ended, without its prose: what a script can rest on.

Prices, sizes and sentences are left out; they change with the catalogue and with better words.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support import Done

Outline = dict[str, Any]
"""``code``, ``stdout`` (whether anything is on it), ``writes`` (files), and of a JSON document
``keys`` (path -> types of its values) and ``values`` (those that are a contract)."""
CONTRACTS = (
    "format", "name", "pair", "region", "vllm", "instance_type", "instance_count", "max_model_len",
    "concurrency", "tensor_parallel_size", "engine_arguments", "environment", "mounts", "settings",
    "fits", "state", "sandbox", "running", "default_drafter",
)  # fmt: skip
"""Keys at the top of a document whose values are kept, too."""
SPECULATION = ("method", "parallel_drafting", "k", "settings")
"""Keys of a plan's ``speculation`` whose values are kept."""
OWN_SOURCES = "peagle/peagle_serve/"
"""Below it a build context has the entrypoint's own files, which are nobody's contract."""
GROUPS = ("catalog", "engine", "image", "local", "sandbox", "weights")
"""Commands with commands below them."""
_TYPES = {dict: "object", list: "list", str: "text", bool: "truth", int: "number", float: "number"}


def outline(done: Done, writes: Sequence[str]) -> Outline:
    """What is kept of how a command ended; ``writes`` are the files that it wrote."""
    kept: Outline = {"code": done.code, "stdout": bool(done.out)}
    files = [name for name in writes if OWN_SOURCES not in name]
    if files:
        kept["writes"] = files
    document = _document(done.out)
    if document is not None:
        kept["keys"] = {p: "|".join(sorted(types)) for p, types in sorted(_keys(document).items())}
        kept["values"] = _values(document)
    return kept


def read_messages(done: Done) -> dict[str, dict[str, Any]]:
    """The errors and findings in a command's JSON by code: ``message`` and ``fix``."""
    last_line = done.err.splitlines()[-1] if done.err else ""
    messages: dict[str, dict[str, Any]] = {}
    nodes = [_document(done.out), _document(last_line)]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()
            if "code" in node and "message" in node:
                messages.setdefault(
                    node["code"], {key: node[key] for key in ("message", "fix") if node.get(key)}
                )
    return messages


def losses(before: Outline, now: Outline) -> list[str]:
    """What a script could rest on before and cannot now; additions are no losses."""
    lost = [
        f"{key} was {before[key]}, is {now[key]}"
        for key in ("code", "stdout")
        if before[key] != now[key]
    ]
    gone = set(before.get("writes", ())) - set(now.get("writes", ()))
    lost += [f"no longer writes {name}" for name in sorted(gone)]
    keys = now.get("keys", {})
    for path, types in before.get("keys", {}).items():
        if path not in keys:
            lost.append(f"the key {path} is gone")
        # Where only null was seen nothing is known of the type.
        elif types != "null" and not set(keys[path].split("|")) <= set(types.split("|")):
            lost.append(f"{path} was {types}, is {keys[path]}")
    values = now.get("values", {})
    for key, value in before.get("values", {}).items():
        if not _still(value, values.get(key)):
            lost.append(f"{key} was {value!r}, is {values.get(key)!r}")
    return lost


def losses_since(recording: dict[str, Any], kind: str, line: str, now: Outline) -> list[str]:
    """The losses since a ``recording`` of a line of ``kind``: ``commands`` or ``sandbox``."""
    return losses(with_shared(line, recording[kind][line], recording["shared"]), now)


def share_keys(groups: Sequence[dict[str, Outline]]) -> dict[str, dict[str, str]]:
    """Take the keys that all documents of a command have out of the outlines.

    Returns them by command (the first word of a line); ``with_shared`` puts them back.
    """
    documents: dict[str, list[dict[str, str]]] = {}
    for line, kept in ((line, kept) for group in groups for line, kept in group.items()):
        if "keys" in kept:
            documents.setdefault(_command(line), []).append(kept["keys"])
    shared = {
        command: dict(item for item in all_keys[0].items() if all(
            keys.get(item[0]) == item[1] for keys in all_keys))
        for command, all_keys in documents.items()
    }  # fmt: skip
    for command, all_keys in documents.items():
        for keys in all_keys:
            for path in shared[command]:
                del keys[path]
    return shared


def with_shared(line: str, kept: Outline, shared: dict[str, dict[str, str]]) -> Outline:
    """The whole outline of a line, of which ``kept`` is what its command does not share."""
    if "keys" not in kept:
        return kept
    return {**kept, "keys": {**shared[_command(line)], **kept["keys"]}}


def _command(line: str) -> str:
    """The command that a line calls, with the one below it: ``catalog list``, ``plan``."""
    words = line.split()
    while words and ("=" in words[0] or words[0] == "--catalog"):
        words = words[2 if words[0] == "--catalog" else 1 :]
    below = words[1:2] if words[0] in GROUPS else []
    return " ".join([*words[:1], *below])


def _document(text: str) -> Any:
    """The JSON document in ``text``, or a list of those on its lines; ``None`` for other text."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return None


def _keys(document: Any) -> dict[str, set[str]]:
    types: dict[str, set[str]] = {}
    for path, type_ in _types(document, ""):
        types.setdefault(path, set()).add(type_)
    return types


def _types(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each path in a document with a type found there; all items of a list have one path."""
    if path:
        yield path, "null" if value is None else _TYPES[type(value)]
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _types(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            yield from _types(item, f"{path}[]")


def _values(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        return {}
    kept = {key: document[key] for key in CONTRACTS if key in document}
    if isinstance(speculation := document.get("speculation"), dict):
        kept["speculation"] = {key: speculation[key] for key in SPECULATION}
    if "findings" in document:
        kept["findings"] = {
            f"{finding['level']} {finding['code']}": finding["where"]
            for finding in document["findings"]
        }
    if isinstance(rules := document.get("rules"), list):
        kept["rules"] = {rule["code"]: rule["about"] for rule in rules}
    return kept


def _still(before: Any, now: Any) -> bool:
    """Whether all of ``before`` is in ``now``; keys of objects may be added."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and _still(value, now[key]) for key, value in before.items())
    return bool(before == now)
