"""Files of prompts: what is read, and one clear error for every other file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.workloads import MOST_DOMAINS, PromptSet, parse_prompts, read_prompts
from peagle.errors import UserError
from tests.support import raises_code

USER = {"role": "user", "content": "Hi"}


def lines(*documents: Any) -> bytes:
    return "\n".join(json.dumps(one) for one in documents).encode()


def test_prompts_and_chats_of_several_domains_are_read() -> None:
    data = lines(
        {"prompt": "def f(", "domain": "code", "max_tokens": 7, "id": 3},
        {"messages": [USER], "domain": " chat "},
        {"prompt": "import os", "domain": "code"},
    )

    found = parse_prompts(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\r\n"), "p.jsonl")

    assert {name: [one.line for one in of] for name, of in found.domains.items()} == {
        "code": [1, 5],
        "chat": [3],
    }
    assert found.ignored == ("id",)
    code, chat, _ = found.prompts
    assert code.body(chat=False, max_tokens=99) == {
        "prompt": "def f(",
        "max_tokens": 7,
        "temperature": 0.0,
    }
    assert code.body(chat=True, max_tokens=99)["messages"] == [
        {"role": "user", "content": "def f("}
    ]
    assert chat.body(chat=False, max_tokens=99, temperature=0.5) == {
        "messages": [USER],
        "max_tokens": 99,
        "temperature": 0.5,
    }


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(lines({"prompt": "Hi"}))

    found = read_prompts(file)

    assert found == PromptSet(
        str(file), hashlib.sha256(file.read_bytes()).hexdigest(), found.prompts
    )
    assert list(found.domains) == ["all"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "p has no prompts"),
        (b"\n \n", "p has no prompts"),
        (b"{", "p, line 1: is not valid JSON"),
        (b'{"prompt": "a"}\nprompt', "p, line 2: is not valid JSON: Expecting value at column 1"),
        (b'{"prompt": "a"}\n\xff\xfe', "p, line 2: is not UTF-8 (invalid byte at offset 0)"),
        (b'{"prompt": "\\ud800"}', "p, line 1: has half of a surrogate pair"),
        (b'{"prompt": "a", "prompt": "b"}', "p, line 1: has 'prompt' twice in one object"),
        (b'["a"]', "p, line 1: is not a JSON object"),
        (b"null", "p, line 1: is not a JSON object"),
        (lines({}), "p, line 1: has neither prompt nor messages"),
        (lines({"prompt": "a"}, {"domain": "b"}), "p, line 2: has neither prompt nor messages"),
        (lines({"prompt": "a", "messages": [USER]}), "p, line 1: has both prompt and messages"),
        (lines({"prompt": " \n"}), "p, line 1: prompt: "),
        (lines({"prompt": ["a"]}), "p, line 1: prompt: "),
        (lines({"messages": []}), "p, line 1: messages: "),
        (lines({"messages": "Hi"}), "p, line 1: messages: "),
        (lines({"messages": ["Hi"]}), "p, line 1: messages.0: "),
        (lines({"messages": [USER, {"role": "user", "content": 3}]}),
         "p, line 1: messages.1.content"),
        (lines({"messages": [{"role": "user", "content": ""}]}),
         "p, line 1: has messages without content"),
        (lines({"prompt": "a", "domain": 3}), "p, line 1: domain"),
        (lines({"prompt": "a", "domain": " "}), "p, line 1: domain"),
        (lines({"prompt": "a", "domain": "a\x1bb"}), "p, line 1: domain"),
        (lines({"prompt": "a", "max_tokens": 0}), "p, line 1: max_tokens: "),
        (lines({"prompt": "a", "max_tokens": True}), "p, line 1: max_tokens: "),
        (lines({"prompt": "a", "max_tokens": 1.5}), "p, line 1: max_tokens: "),
        (lines(*({"prompt": "a", "domain": str(n)} for n in range(MOST_DOMAINS + 1))),
         "p has 101 domains; at most 100 are measured"),
    ],
)  # fmt: skip
def test_every_other_file_is_one_error_with_its_line(data: bytes, message: str) -> None:
    with raises_code("prompts", UserError) as raised:
        parse_prompts(data, "p")

    assert raised.value.message.startswith(message)
    assert raised.value.fix
    assert raised.value.exit_code == 2


def test_the_fix_knows_the_likely_mistakes() -> None:
    with raises_code("prompts", UserError) as typed:
        parse_prompts(lines({"promt": "a"}), "p")
    with raises_code("prompts", UserError) as array:
        parse_prompts(b'[\n{"prompt": "a"}\n]', "p")

    assert typed.value.fix == "did you mean prompt?"
    assert "one JSON document, not JSON lines" in array.value.fix


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "missing.jsonl"):
        with raises_code("prompts", UserError) as raised:
            read_prompts(file)
        assert str(file) in raised.value.message
