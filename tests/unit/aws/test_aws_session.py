"""A connection: region, credentials, URLs, tokens, and best-effort calls."""

import base64
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from peagle.aws.client import Aws, Keys, connect
from peagle.errors import UserError
from tests.support import raises_code

KEYS = Keys("AKIDEXAMPLE", "a-secret")
UNREACHABLE = "http://127.0.0.1:9"


def _token_of(aws: Aws, seconds: int = 3600) -> tuple[str, dict[str, list[str]]]:
    token = aws.bearer_token(seconds)
    prefix = "sagemaker-api-key-"
    assert token.startswith(prefix)
    url = urlsplit("https://" + base64.b64decode(token.removeprefix(prefix)).decode())
    return url.netloc + url.path, parse_qs(url.query)


def test_missing_credentials_name_what_to_run_and_the_sandbox() -> None:
    with raises_code("no-credentials", UserError) as missing:
        connect("us-east-1").account  # noqa: B018
    assert missing.value.command == ("aws", "sso", "login")
    assert "--sandbox" in missing.value.fix


@pytest.mark.parametrize("region", ["us-est-1", "us-east-7", "", "us east 1", "../x"])
def test_an_unknown_region_is_a_user_error(region: str) -> None:
    with raises_code("unknown-region", UserError) as unknown:
        connect(region)
    assert region != "us-est-1" or "us-east-1" in unknown.value.fix


def test_an_unknown_profile_is_a_user_error() -> None:
    with raises_code("unknown-profile", UserError):
        connect("us-east-1", profile="work")


def test_explicit_keys_replace_the_machines_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile work]\naws_access_key_id = a\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another accounts")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    aws = connect("us-east-1", endpoint_url=UNREACHABLE, keys=KEYS, scope="sandbox")
    assert aws.scope == "sandbox"
    assert aws.client("sagemaker").meta.endpoint_url == UNREACHABLE
    assert aws.client("sagemaker").meta.config.proxies == {}
    _, query = _token_of(aws)
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert "X-Amz-Security-Token" not in query


def test_the_openai_url_follows_the_endpoint_url(monkeypatch: pytest.MonkeyPatch) -> None:
    amazon = connect("eu-west-1", keys=KEYS)
    here = connect("eu-west-1", endpoint_url="http://127.0.0.1:5000/", keys=KEYS)
    assert amazon.openai_base_url("my-name") == (
        "https://runtime.sagemaker.eu-west-1.amazonaws.com/endpoints/my-name/openai/v1"
    )
    assert here.openai_base_url("my-name") == "http://127.0.0.1:5000/endpoints/my-name/openai/v1"
    assert amazon.is_amazon
    assert not here.is_amazon
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:6000")
    by_environment = connect("eu-west-1")
    assert by_environment.openai_base_url("x") == "http://127.0.0.1:6000/endpoints/x/openai/v1"


def test_a_token_is_a_presigned_call_with_bearer_token() -> None:
    place, query = _token_of(connect("eu-west-1", keys=KEYS), 1800)
    assert place == "sagemaker.amazonaws.com/"
    assert query["Action"] == ["CallWithBearerToken"]
    assert query["Version"] == ["1"]
    assert query["X-Amz-Expires"] == ["1800"]
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert query["X-Amz-Credential"][0].endswith("/eu-west-1/sagemaker/aws4_request")
    assert "a-secret" not in f"{query}{KEYS!r}"
