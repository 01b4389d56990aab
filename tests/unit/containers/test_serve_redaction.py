"""Secrets and prompts are redacted from the log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_serve.logs import Redactor

HUB_TOKEN = "hf_" + "a1B2c3D4" * 4
AWS_KEY = "AKIA" + "ABCDEFGH23456789"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"401 for {HUB_TOKEN}.", HUB_TOKEN),
        (f"key {AWS_KEY} was refused", AWS_KEY),
        (f"ASIA{AWS_KEY[4:]}", AWS_KEY[4:]),
        ("Authorization: Bearer abc.def-ghi+jkl/mno=", "abc.def"),
        ("'authorization': 'bearer 0123456789'", "0123456789"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalr"),
        ("{'secretAccessKey': 'wJalrXUtnFEMI'}", "wJalr"),
        ("https://b.s3/x?X-Amz-Signature=00ff00ff&X-Amz-Credential=ABCD%2F20", "00ff00ff"),
        ("GET /x?X-Amz-Security-Token=IQoJb3JpZ2lu", "IQoJ"),
        ("https://user:pass1234@host/x", "pass1234"),
        ("sagemaker-api-key-aHR0cHM6Ly9z", "aHR0"),
        ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abcdef", "eyJzdWIi"),
        ("Received request cmpl-1: prompt: 'my diary', params: x", "diary"),
        ("Request cmpl-1 details: prompt: 'my\ndiary', prompt_token_ids: [1, 2]", "diary"),
        ("NewRequestData(prompt_token_ids=[17, 18], x=1)", "17"),
        ("Generated response cmpl-1: output: 'a secret', finish", "a secret"),
    ],
)
def test_known_patterns_of_secrets_are_hidden(text: str, secret: str) -> None:
    shown = Redactor({}).text(text)

    assert secret not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "Loading weights took 0.35 seconds",
        "non-default args: {'api_key': None, 'max_num_batched_tokens': 2048}",
        "tokenizer: hf_config of amazon/GPT-OSS-20B-P-EAGLE",
        "Avg prompt throughput: 0.3 tokens/s",
        "see https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert Redactor({}).text(text) == text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "SM_VLLM_API_KEY", "VLLM_API_KEY", "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY"]
)
def test_a_secret_of_the_environment_is_hidden_everywhere(name: str) -> None:
    redactor = Redactor({name: "plain-words", "SM_VLLM_MAX_NUM_BATCHED_TOKENS": "204800"})

    assert redactor.text("args: 'plain-words' 204800") == "args: '***' 204800"


def test_each_of_several_keys_is_hidden() -> None:
    redactor = Redactor({"SM_VLLM_API_KEY": '["first-key", "second-key"]'})

    assert redactor.text("['first-key', 'second-key']") == "['***', '***']"


def test_a_secret_joined_to_its_flag_is_hidden_too() -> None:
    shown = Redactor({}).argv(["--api-key=-s", "--model", "a", "--hf-token", "b", "c", "--x", "d"])

    assert shown == ["--api-key=***", "--model", "a", "--hf-token", "***", "***", "--x", "d"]


def test_input_values_are_hidden_only_while_serving() -> None:
    text = "Input should be 'a' [type=literal_error, input_value='my diary', input_type=str]"

    assert "diary" in Redactor({}).text(text)
    assert "diary" not in Redactor({}).text(text, serving=True)


@given(st.text(), st.text("abcXYZ019-_/+=", min_size=6, max_size=60), st.text())
def test_no_secret_of_the_environment_is_shown(before: str, secret: str, after: str) -> None:
    redactor = Redactor({"HF_TOKEN": secret})

    assert secret not in redactor.text(before + secret + after).replace("***", "\0")
    assert secret not in json.dumps(redactor.argv(["--x", secret])).replace("***", "\0")


def test_a_long_text_is_not_cut_inside_of_a_secret() -> None:
    redactor = Redactor({"MY_SECRET": "first-half-second-half"})
    text = "x" * 30_000

    for place in range(5500, 5600, 5):
        shown = redactor.short(text[:place] + "first-half-second-half" + text)
        assert "half" not in shown
        assert len(shown) < 13_000
