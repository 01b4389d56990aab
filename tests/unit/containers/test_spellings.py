"""Every spelling of an argument that reaches vLLM is checked as the argument is."""

from __future__ import annotations

import json

import pytest

from peagle_serve.code_variables import code_variables
from peagle_serve.command import command
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import canonical_name, normalized
from peagle_serve.environment_checks import trusts_remote_code, unsafe_load_format
from peagle_serve.logs import Redactor, is_secret, without_colors

DRAFTER = {"method": "eagle3", "model": "a/head", "num_speculative_tokens": 3}
SPECULATION = json.dumps(DRAFTER)
PICKLES = {"draft_load_config": {"load_format": "pt"}}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SM_VLLM_config": "/opt/ml/model/evil.yaml"}, "SM_VLLM_CONFIG is not supported"),
        ({"SM_VLLM_Config": "evil.yaml"}, "SM_VLLM_CONFIG is not supported"),
        ({"SM_VLLM_load_format": "pt"}, "SM_VLLM_LOAD_FORMAT pt reads other weights"),
        ({"SM_VLLM_LOAD-FORMAT": "NpCache"}, "SM_VLLM_LOAD_FORMAT npcache reads other weights"),
        ({"SM_VLLM_LOAD_FORM": "hf"}, "SM_VLLM_LOAD_FORMAT hf reads other weights"),
        ({"SM_VLLM_trust_remote_code": "true"}, "SM_VLLM_TRUST_REMOTE_CODE lets code"),
        ({"SM_VLLM_TRUST_REM": ""}, "SM_VLLM_TRUST_REMOTE_CODE lets code"),
        ({"SM_VLLM_hf_overrides": '{"trust_remote\\u005fcode": true}'}, "lets code"),
        (
            {"SM_VLLM_disable_log_stats": "true", "SM_VLLM_speculative_config": SPECULATION},
            "SM_VLLM_DISABLE_LOG_STATS turns off the counters",
        ),
        ({"SM_VLLM_speculative_config": '{"method": "eagle3"}'}, "has no num_speculative_tokens"),
        ({"SM_VLLM_spec_model": "a/head"}, "SM_VLLM_SPEC_MODEL is not supported"),
        ({"SM_VLLM_Enable-Log_Requests": "true"}, "writes prompts into the log"),
        ({"SM_VLLM_port": "9000"}, "SM_VLLM_PORT is 9000"),
        ({"SM_VLLM_max_num_seqs": "0"}, "SM_VLLM_MAX_NUM_SEQS is '0'"),
        ({"SM_VLLM_model": "c/d"}, "SM_VLLM_MODEL and SM_VLLM_model set the same argument"),
        ({"SM_VLLM_load-format": "auto", "SM_VLLM_LOAD_FORMAT": "pt"}, "set the same argument"),
        ({"SM_VLLM_SPECULATIVE_CONFIG.model": "a/head"}, "is a part of SM_VLLM_SPECULATIVE_CONFIG"),
        ({"SM_VLLM_compilation_config.backend": "a.b"}, "is a part of SM_VLLM_COMPILATION_CONFIG"),
        (
            {"SM_VLLM_SPECULATIVE_CONFIG": json.dumps({**DRAFTER, **PICKLES})},
            "load format pt in SM_VLLM_SPECULATIVE_CONFIG reads other weights",
        ),
        (
            {"SM_VLLM_MODEL_LOADER_EXTRA_CONFIG": '{"a": [{"load\\u005fformat": "HF"}]}'},
            "load format hf in SM_VLLM_MODEL_LOADER_EXTRA_CONFIG reads other weights",
        ),
    ],
)  # fmt: skip
def test_no_spelling_passes_a_check(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        command({"SM_VLLM_MODEL": "a/b", **environment})

    assert message in refused.value.message


def test_a_key_is_no_argument_in_any_spelling() -> None:
    for name in ("SM_VLLM_API_KEY", "SM_VLLM_api_key", "SM_VLLM_Api-Key", "SM_VLLM_API_K"):
        assert "swordfish" not in " ".join(command({"SM_VLLM_MODEL": "a/b", name: "swordfish"}))


def test_other_spellings_reach_vllm_as_the_usual_one() -> None:
    usual = {"SM_VLLM_MODEL": "a/b", "SM_VLLM_MAX_MODEL_LEN": "8k", "SM_VLLM_NO_ENABLE_LORA": ""}
    other = {"SM_VLLM_model": "a/b", "SM_VLLM_max-model-len": "8k", "SM_VLLM_no_enable_Lora": ""}

    assert command(other) == command(usual)
    assert normalized({"sm_vllm_x": "1", "HOME": "/"}) == {"sm_vllm_x": "1", "HOME": "/"}


def test_flags_that_begin_a_guarded_one_stay_themselves() -> None:
    names = ("SM_VLLM_MODEL", "SM_VLLM_REASONING_PARSER", "SM_VLLM_CONFIG", "SM_VLLM_")

    assert tuple(map(canonical_name, names)) == names


@pytest.mark.parametrize("value", ["auto", "safetensors", "AUTO", "runai_streamer"])
def test_safetensors_may_be_named_everywhere(value: str) -> None:
    nested = json.dumps({**DRAFTER, "draft_load_config": {"load_format": value}})

    assert unsafe_load_format("SM_VLLM_load_format", value) is None
    assert unsafe_load_format("SM_VLLM_SPECULATIVE_CONFIG", nested) is None
    assert unsafe_load_format("SM_VLLM_SPECULATIVE_CONFIG", SPECULATION) is None


def test_names_of_code_are_known_in_every_spelling() -> None:
    names = ("SM_VLLM_config", "SM_VLLM_Tool-Parser-Plugin", "SM_VLLM_WORKER_E", "SM_VLLM_middlew")

    assert code_variables(dict.fromkeys(names, "a.b")) == tuple(sorted(names))
    assert trusts_remote_code("SM_VLLM_trust-rem", "true")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("MYPASSWORD", True), ("DBPASS", True), ("DB_PASS", True), ("MYSQL_PWD", True),
        ("DBPASSWD", True), ("HFTOKEN", True), ("OPENAI_APIKEY", True), ("PASSWORD_2", True),
        ("mysecret", True), ("SSH_PASSPHRASE", True), ("DJANGO_SECRET_KEY", True),
        ("SM_VLLM_api_key", True), ("AWS_CREDS", True),
        ("PASSWORDS", True), ("API_TOKENS", True), ("MY_SECRETS", True), ("API_KEYS", True),
        ("TOKENS", True), ("ADMIN_TOKENS", True), ("ACCESS_KEYS", True), ("SSH_PRIVATE_KEYS", True),
        ("MAX_TOKENS", False), ("SM_VLLM_SPEC_TOKENS", False), ("VLLM_USE_FASTOKENS", False),
        ("PWD", False), ("OLDPWD", False), ("BYPASS", False), ("COMPASS", False),
        ("SM_VLLM_ALLOW_CREDENTIALS", False), ("SM_VLLM_MAX_NUM_BATCHED_TOKENS", False),
        ("VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", False), ("PASSENGERS", False),
    ],
)  # fmt: skip
def test_a_name_says_whether_its_value_is_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
    assert ("swordfish" in Redactor({name: "swordfish"}).text("it is swordfish")) is not secret


@pytest.mark.parametrize("code", ["\x1b[1;36m", "#033[0;0m", "^[[31m", "\\x1b[0m", "\\u001b[1m"])
def test_colours_are_no_part_of_a_line(code: str) -> None:
    assert without_colors(f"{code}(APIServer pid=1){code} INFO") == "(APIServer pid=1) INFO"
