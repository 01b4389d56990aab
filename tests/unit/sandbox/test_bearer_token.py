"""Bearer tokens: those of the toolkit are accepted, all others refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.aws.client import Keys, connect
from peagle.sandbox.signatures import TOKEN_PREFIX, InvalidToken, Verifier
from peagle.sandbox.state import AccessKey

KEYS = Keys("testing", "a-secret")
region_of_token = Verifier(AccessKey("testing", "a-secret")).region_of_token


def make_token(region: str = "eu-west-1", seconds: int = 3600, keys: Keys = KEYS) -> str:
    aws = connect(region, endpoint_url="http://127.0.0.1:1", keys=keys)
    return aws.bearer_token(seconds)


def tampered(old: str, new: str) -> str:
    """A token whose content was changed."""
    text = base64.b64decode(make_token().removeprefix(TOKEN_PREFIX)).decode()
    assert old in text
    return TOKEN_PREFIX + base64.b64encode(text.replace(old, new).encode()).decode()


def test_a_token_names_its_region() -> None:
    assert region_of_token(f"Bearer {make_token('eu-west-1')}") == "eu-west-1"
    assert region_of_token(f"bearer {make_token('us-east-1')}") == "us-east-1"


def test_a_token_expires() -> None:
    token = f"Bearer {make_token(seconds=600)}"
    soon, late = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (9, 11))
    assert region_of_token(token, now=soon) == "eu-west-1"
    with pytest.raises(InvalidToken):
        region_of_token(token, now=late)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CallWithBearerToken", "DeleteEndpoint"),
        ("X-Amz-Credential", "Credential"),
        ("X-Amz-Date=2", "X-Amz-Date=x"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=long"),
        ("X-Amz-Expires=3600", f"X-Amz-Expires={10**18}"),
        ("X-Amz-Signature=", "X-Amz-Signature=&was="),
        ("%2Fsagemaker%2F", "%2Fs3%2F"),
        ("X-Amz-Credential=testing", "X-Amz-Credential=too%2Fmany%2Fparts"),
        ("X-Amz-Credential=testing", "X-Amz-Credential=other"),
        ("%2Feu-west-1%2F", "%2Fus-east-1%2F"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=7200"),
    ],
)
def test_a_token_for_something_else_is_refused(old: str, new: str) -> None:
    with pytest.raises(InvalidToken):
        region_of_token(f"Bearer {tampered(old, new)}")


def test_a_token_of_another_key_is_refused() -> None:
    for keys in (Keys("testing", "another-secret"), Keys("another", "a-secret")):
        with pytest.raises(InvalidToken, match="access key"):
            region_of_token(f"Bearer {make_token(keys=keys)}")


@given(st.text(max_size=80))
def test_malformed_tokens_are_refused(text: str) -> None:
    for authorization in (text, f"Bearer {text}", f"Bearer {TOKEN_PREFIX}{text}"):
        with pytest.raises(InvalidToken):
            region_of_token(authorization)
