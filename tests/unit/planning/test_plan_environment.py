"""Arguments as environment variables: the container gets the same arguments."""

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.catalog.schema import EngineSetting
from peagle.data import data_folder
from peagle.errors import UserError
from peagle.vllm.environment import check_environment, to_environment
from tests.support import raises_code
from tests.unit.planning.small_catalog import CHAT, plan, with_target

ONE_TOKEN = ("--allowed-origins", "--allowed-methods", "--allowed-headers", "--middleware")
NASTY = (
    "two words", "it's", '"quoted"', "back\\slash", "line\nbreak", "tab\tstop", "ünïcödé 日本語 🦅",
    "$(rm -rf /)", "`x`; & | > < * ? ~", "50%", "${HOME}", " space around ", "-1", "true", "False",
    " TRUE ", "", " ", "[1, 2]", "[not json]", '["a", "b"]', "[]", "{}", '{"a": 1} {"b": 2}',
    "{% for m in messages %}", '{"method":"eagle3", "n": 5}',
)  # fmt: skip


def as_container(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """AWS's rule, implemented from its description: flag -> the tokens after it."""
    variables: dict[str, list[str]] = {}
    for key, value in environment.items():
        flag = "--" + key.removeprefix("SM_VLLM_").lower().replace("_", "-")
        if value.strip().lower() == "false":
            continue
        variables[flag] = list(_tokens(flag, value))
    return variables


def _tokens(flag: str, value: str) -> Iterator[str]:
    if value == "" or value.strip().lower() == "true":
        return
    parsed = _json_values(value)
    if flag in ONE_TOKEN or parsed is None:
        yield value
    elif len(parsed) == 1 and isinstance(parsed[0], list):
        for element in parsed[0]:
            yield element if isinstance(element, str) else json.dumps(element)
    elif len(parsed) > 1 and all(isinstance(item, dict) for item in parsed):
        for item in parsed:
            yield json.dumps(item, separators=(",", ":"))
    else:
        yield value


def _json_values(text: str) -> list[Any] | None:
    """``text`` as a sequence of JSON values; ``None`` if it is not one."""
    rest, values = text.strip(), []
    while rest:
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            return None
        values.append(value)
        rest = rest[end:].lstrip()
    return values


flags = st.from_regex(r"--[a-z]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
values = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    ).map(json.dumps),
).filter(lambda value: not value.startswith("--"))


@pytest.mark.thorough
@settings(deadline=None)
@given(st.dictionaries(flags, st.lists(values, max_size=4), max_size=5))
def test_the_container_reads_the_arguments_of_the_plan(meant: dict[str, list[str]]) -> None:
    arguments = [word for flag, tokens in meant.items() for word in (flag, *tokens)]
    assert as_container(to_environment(arguments)) == meant


def test_the_entrypoint_reads_the_same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(data_folder("containers")))
    made = plan("chat", drafter="s3://bucket/head", model_source="s3://bucket/model")
    read = import_module("peagle_serve.environment").arguments(made.environment)
    variables = to_environment(read)
    assert variables == to_environment(made.engine_arguments)


def test_plain_values_stay_unquoted() -> None:
    config = '{"method":"eagle3","model":"a/b","num_speculative_tokens":7}'
    assert to_environment(
        ["--max-model-len", "4096", "--async-scheduling", "--speculative-config", config]
    ) == {
        "SM_VLLM_MAX_MODEL_LEN": "4096",
        "SM_VLLM_ASYNC_SCHEDULING": "true",
        "SM_VLLM_SPECULATIVE_CONFIG": config,
    }


@pytest.mark.parametrize("arguments", [
    ["--a", "1", "--a", "2"],
    ["--a-b", "1", "--a-b"],
    ["value", "--a"],
    ["--Upper", "1"],
    ["--a_b", "1"],
    ["--a=1"],
    ["--allowed-origins", "a", "b"],
    ["--middleware", "true"],
])  # fmt: skip
def test_arguments_that_no_environment_can_express_are_refused(arguments: list[str]) -> None:
    with raises_code("invalid-argument", UserError):
        to_environment(arguments)


TOO_LARGE, INVALID = "environment-too-large", "invalid-variable"


@pytest.mark.parametrize(("environment", "code"), [
    ({f"K{n}": "v" for n in range(101)}, TOO_LARGE),
    ({"K": "v" * 1025}, TOO_LARGE),
    ({f"KEY{n:02}": "ä" * 500 for n in range(40)}, TOO_LARGE),
    ({"K" * 1025: "v"}, INVALID),
    ({"1K": "v"}, INVALID),
    ({"K-K": "v"}, INVALID),
    ({"K": "50%"}, INVALID),
    ({"K": "a\0b"}, INVALID),
    ({"K": "a\ud800b"}, INVALID),
])  # fmt: skip
def test_environments_that_sagemaker_refuses_are_refused(
    environment: dict[str, str], code: str
) -> None:
    with raises_code(code, UserError):
        check_environment(environment)


def test_values_at_the_limits_are_accepted() -> None:
    check_environment({f"K{n}": "v" for n in range(100)})
    check_environment({"K": "v" * 1024})
    check_environment({"K" * 1024: "v"})
    check_environment({f"KEY{n:02}": "v" * 1019 for n in range(32)})


def test_a_percent_sign_in_a_setting_stops_the_plan() -> None:
    setting = EngineSetting(name="chat-template", value="{% if a %}", because="")
    target = with_target(CHAT.model_copy(update={"engine_arguments": (setting,)}))
    with raises_code("invalid-variable", UserError) as refused:
        plan(catalog=target)
    assert "SM_VLLM_CHAT_TEMPLATE contains %" in refused.value.message


def test_settings_become_flags() -> None:
    settings = tuple(
        EngineSetting(name=name, value=value, because="")
        for name, value in (("a", True), ("b", False), ("c", 1.5), ("d", 3), ("e", "x"))
    )
    made = plan(catalog=with_target(CHAT.model_copy(update={"engine_arguments": settings})))
    text = " ".join(made.engine_arguments)
    assert "--a --no-b --c 1.5 --d 3 --e x" in text
    assert made.environment["SM_VLLM_NO_B"] == "true"


def test_variables_of_the_target_come_with_their_reason() -> None:
    variable = EngineSetting(
        name="VLLM_FAST", value="1", because="faster", gpu_architectures=("sm_100",)
    )
    target = with_target(CHAT.model_copy(update={"environment": (variable,)}))
    on_blackwell = plan(catalog=target, instance_type="ml.p6-b200.48xlarge")
    assert on_blackwell.environment["VLLM_FAST"] == "1"
    assert "VLLM_FAST" not in plan(catalog=target).environment


@pytest.mark.parametrize(("image", "digest"), [
    ("repo/mine@sha256:abc", "sha256:abc"), ("repo/mine:1@sha256:abc", "sha256:abc"),
    ("repo/mine:1", None),
])  # fmt: skip
def test_the_environment_has_the_digest_of_a_pinned_image(image: str, digest: str | None) -> None:
    assert plan(image=image).environment.get("PEAGLE_IMAGE_DIGEST") == digest
