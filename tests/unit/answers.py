"""Answers of an engine that are not vLLM's: not UTF-8, not JSON, of another type, or cut short."""

import json
from typing import Any


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


INVALID: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"<html>busy</html>",
    "no UTF-8": b'{"choices": [{"text": "\xff\xfe"}]}',
    "UTF-16": '{"choices": []}'.encode("utf-16"),
    "cut short": b'{"choices": [{"message": {"content": "He',
    "two documents": b"{} {}",
    "NaN": b'{"choices": [], "usage": {"completion_tokens": NaN}}',
    "a name twice": b'{"choices": [], "choices": []}',
    "deep": b'{"choices": ' + b"[" * 100_000,
    "endless digits": b'{"usage": {"completion_tokens": ' + b"9" * 5_000 + b"}}",
    "half of a surrogate": b'{"choices": [{"text": "\\ud800"}]}',
    "null": b"null",
    "a list": b"[]",
    "text": b'"ready"',
    "a number": b"7",
    "choices of text": _json({"choices": "none"}),
    "choices that are an object": _json({"choices": {"text": "hi"}}),
    "a choice of null": _json({"choices": [None]}),
    "a choice that is a number": _json({"choices": [7]}),
    "a message of text": _json({"choices": [{"message": "hi"}]}),
    "a message that is a list": _json({"choices": [{"delta": ["hi"]}]}),
    "content that is a number": _json({"choices": [{"message": {"content": 7}}]}),
    "content that is a list": _json({"choices": [{"message": {"content": [{"text": "hi"}]}}]}),
    "text that is an object": _json({"choices": [{"text": {"a": 1}}]}),
    "reasoning that is a number": _json({"choices": [{"delta": {"reasoning": 1}}]}),
    "usage that is a list": _json({"choices": [], "usage": [1]}),
    "tokens that are text": _json({"choices": [], "usage": {"completion_tokens": "7"}}),
    "tokens below zero": _json({"choices": [], "usage": {"completion_tokens": -7}}),
    "tokens that are a fraction": _json({"choices": [], "usage": {"completion_tokens": 7.5}}),
}
