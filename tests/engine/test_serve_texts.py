"""Special characters in values: vLLM gets the value unchanged, or the entrypoint refuses it."""

import contextlib
import json
import random
from typing import Any

import pytest

from peagle_serve.command import command
from peagle_serve.contract import PREFIX, InvalidEnvironment
from peagle_serve.environment import arguments
from tests.engine.conftest import Ask
from tests.engine.test_serve_parser import SPECULATION

pytestmark = pytest.mark.engine
SWITCH_WORDS = ("true", "false", "")
STARTS = ("[", "[]", "[1", "{", "{}", "{} ", "true", "True ", "false", " ", "\t", "\r", "\n", "-")
"""Beginnings of values that the entrypoint itself interprets."""
FREE_TEXTS = ("CHAT_TEMPLATE", "REVISION", "SERVED_MODEL_NAME")
ALPHABET = " \t\n'\"\\`$%{}[]()<>|&;:,=-_#~*?!/.@^+0aZ\u00e4\u65e5\U0001f600\u200b\u00a0\u2028"
CASES = 300


def nasty() -> list[dict[str, Any]]:
    """Values with special characters, as in templates and scripts; the same in every run."""
    drawn = random.Random(20261120)

    def text() -> str:
        return "".join(drawn.choices(ALPHABET, k=drawn.randrange(1, 30)))

    return [
        {
            "chat_template": "{% x %}" + text(),
            "served_model_name": [text().lstrip("-") or "x" for _ in range(drawn.randrange(1, 4))],
            "speculative_config": {**SPECULATION, "model": text(), text(): {text(): [text(), 1.5]}},
            "override_generation_config": {text(): text()},
            "revision": "-x" + text(),
        }
        for _ in range(CASES)
    ]


def free_texts() -> list[tuple[str, str]]:
    """Variables that accept any text, each with a text; the same in every run."""
    drawn = random.Random(20261121)
    alphabet = [*ALPHABET, "\r", "\t", "[", "]", "{", "}"]
    return [
        (
            FREE_TEXTS[number % len(FREE_TEXTS)],
            STARTS[number % len(STARTS)] + "".join(drawn.choices(alphabet, k=drawn.randrange(8))),
        )
        for number in range(CASES)
    ]


def environment_of(values: dict[str, Any], number: int) -> dict[str, str]:
    """The values as variables; the format of JSON depends on ``number``."""
    spelling: dict[str, Any] = {"indent": (None, 1)[number % 2], "ensure_ascii": number % 3 == 0}
    return {
        PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value, **spelling)
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def reported(ask: Ask) -> dict[str, Any]:
    """The values that vLLM parsed, all in one process."""
    argvs = {
        f"nasty {number}": arguments(environment_of(values, number))
        for number, values in enumerate(nasty())
    }
    for flag, text in free_texts():
        with contextlib.suppress(InvalidEnvironment):
            variables = {"SM_VLLM_MODEL": "a/b", PREFIX + flag: text}
            argvs[f"free {flag} {text}"] = command(variables)[3:]
    report: dict[str, Any] = ask("parsed", argvs)
    return report


def test_a_text_is_refused_or_arrives_unchanged(reported: dict[str, Any]) -> None:
    through = 0
    for flag, text in free_texts():
        parsed = reported.get(f"free {flag} {text}")
        if parsed is None or is_switch_or_array(text):
            continue
        value = parsed[flag.lower()]
        assert value == ([text] if flag == "SERVED_MODEL_NAME" else text)
        through += 1
    assert through > CASES / 2, "most texts are accepted"


def is_switch_or_array(text: str) -> bool:
    """Whether AWS's container, and so the entrypoint, reads the text as a switch or an array."""
    if text.strip().lower() in SWITCH_WORDS:
        return True
    try:
        return isinstance(json.loads(text.strip()), list)
    except ValueError:
        return False


def test_special_values_pass_vllms_parser_unchanged(reported: dict[str, Any]) -> None:
    for number, values in enumerate(nasty()):
        parsed = reported[f"nasty {number}"]
        assert {name: parsed[name] for name in values} == values
