"""SM_VLLM_* variables become vLLM's arguments as in AWS's container, byte for byte."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.vllm.environment import to_environment
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import arguments, flag_of

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)
SPACES = st.text(" \t\n", max_size=2)
WORDS = st.text(string.ascii_uppercase, min_size=1, max_size=8)
NAMES = st.lists(WORDS, min_size=1, max_size=4).map("_".join)


@pytest.mark.parametrize(
    ("value", "argv"),
    [
        ("8", ["--x-y", "8"]),
        ("true", ["--x-y"]),
        (" True ", ["--x-y"]),
        ("", ["--x-y"]),
        ("false", []),
        ("FALSE", []),
        (" ", ["--x-y", " "]),
        ("a b", ["--x-y", "a b"]),
        ('{"a": 1}', ["--x-y", '{"a": 1}']),
        ('["a", "b c"]', ["--x-y", "a", "b c"]),
        ("[]", []),
        ('[{"a":  1}, 2.50, true, null]', ["--x-y", '{"a":  1}', "2.50", "true", ""]),
        ('{"a":1} {"b":2}', ["--x-y", '{"a":1}', '{"b":2}']),
        ("[not json]", ["--x-y", "[not json]"]),
        ("{% for m in messages %}{{ m }}", ["--x-y", "{% for m in messages %}{{ m }}"]),
        ("-1", ["--x-y=-1"]),
        ("--model", ["--x-y=--model"]),
    ],
)
def test_a_value_becomes_the_same_tokens_as_in_awss_container(value: str, argv: list[str]) -> None:
    assert arguments({"SM_VLLM_X_Y": value}) == argv


@pytest.mark.parametrize("value", ['["a", "-b"]', '["-a", "b"]', '["--model", "x"]'])
def test_several_values_cannot_begin_with_a_dash(value: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        arguments({"SM_VLLM_X_Y": value})
    assert "SM_VLLM_X_Y has several values" in refused.value.message


@pytest.mark.parametrize("value", ["--", '["--"]'])
def test_two_dashes_cannot_be_a_value(value: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        arguments({"SM_VLLM_X_Y": value})
    assert refused.value.message == "SM_VLLM_X_Y has the value '--'"


def test_negative_numbers_are_values() -> None:
    assert arguments({"SM_VLLM_X": "[-1, 2, -0.5]"}) == ["--x", "-1", "2", "-0.5"]


@pytest.mark.parametrize("flag", ["ALLOWED_ORIGINS", "ALLOWED_METHODS", "ALLOWED_HEADERS"])
def test_arrays_that_vllm_parses_stay_one_token(flag: str) -> None:
    value = '["a", "b"]'

    assert arguments({f"SM_VLLM_{flag}": value})[1:] == [value]


def test_arguments_are_sorted_by_name_and_other_variables_ignored() -> None:
    environment = {"SM_VLLM_B": "2", "HF_TOKEN": "secret", "SM_VLLM_A": "1", "VLLM_C": "3"}

    assert arguments(environment) == ["--a", "1", "--b", "2"]


@given(NAMES)
def test_a_name_becomes_its_flag(name: str) -> None:
    assert flag_of(f"SM_VLLM_{name}") == "--" + "-".join(name.lower().split("_"))


@pytest.mark.thorough
@given(OBJECTS, SPACES, SPACES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_a_json_object_is_kept_byte_for_byte(
    document: dict[str, Any], before: str, after: str, indent: int | str | None, ascii_only: bool
) -> None:
    value = before + json.dumps(document, indent=indent, ensure_ascii=ascii_only) + after

    assert arguments({"SM_VLLM_SPECULATIVE_CONFIG": value}) == ["--speculative-config", value]


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.lists(OBJECTS, min_size=2, max_size=4), st.sampled_from([" ", "\n", ""]))
def test_each_of_several_json_objects_is_a_token_byte_for_byte(
    documents: list[dict[str, Any]], between: str
) -> None:
    spelled = [json.dumps(document, indent=1) for document in documents]

    assert arguments({"SM_VLLM_X": between.join(spelled)}) == ["--x", *spelled]


@given(st.lists(TEXT.filter(lambda text: not text.startswith("-")), min_size=1, max_size=5))
def test_each_string_of_an_array_is_a_token(texts: list[str]) -> None:
    assert arguments({"SM_VLLM_X": json.dumps(texts)}) == ["--x", *texts]


@given(TEXT.filter(lambda text: text.strip() and text.strip()[0] not in "-[{"))
def test_any_other_text_is_one_unchanged_token(value: str) -> None:
    expected = {"true": ["--x"], "false": []}.get(value.strip().lower(), ["--x", value])

    assert arguments({"SM_VLLM_X": value}) == expected


@pytest.mark.thorough
@given(
    st.dictionaries(
        st.lists(st.text(string.ascii_lowercase, min_size=1), min_size=1, max_size=3).map(
            lambda words: "--" + "-".join(words)
        ),
        st.lists(TEXT.filter(lambda text: not text.startswith("-")), max_size=3),
        max_size=4,
    ).filter(lambda flags: not any(flag.startswith(("--allowed", "--middle")) for flag in flags))
)
def test_a_plans_arguments_survive_the_environment(
    flags: dict[str, list[str]],
) -> None:
    planned = [token for flag, tokens in flags.items() for token in (flag, *tokens)]

    served = arguments(to_environment(planned))

    assert _by_flag(served) == _by_flag(planned)


def _by_flag(argv: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for token in argv:
        if token.startswith("--"):
            current = groups.setdefault(token, [])
        else:
            current.append(token)
    return groups
