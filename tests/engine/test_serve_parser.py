"""What vLLM's own parser reads from the arguments of ``peagle_serve``."""

import functools
import json
from typing import Any

import pytest

from peagle.planning import Options, Plan, make_plan
from peagle.vllm.versions import CHOICE, ON_ONLY, SWITCH, WHOLE_NUMBER, find_facts
from peagle_serve.checks import check
from peagle_serve.command import command
from peagle_serve.contract import PREFIX, InvalidEnvironment
from peagle_serve.contract import SPECULATION as SPECULATIVE_CONFIG
from peagle_serve.environment import (
    KNOWN,
    arguments,
    check_arguments,
    check_names,
)
from tests.engine.conftest import Ask
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG

pytestmark = pytest.mark.engine
SPECULATION: dict[str, Any] = {
    "method": "eagle3",
    "model": "models/50 % of 'it' \"quoted\" \u00e4\u65e5\U0001f600",
    "num_speculative_tokens": 7,
    "parallel_drafting": True,
}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "settings": {
        "SM_VLLM_MAX_MODEL_LEN": "16k",
        "SM_VLLM_ENFORCE_EAGER": "true",
        "SM_VLLM_TRUST_REMOTE_CODE": "false",
        "SM_VLLM_SERVED_MODEL_NAME": '["one", "two words"]',
        "SM_VLLM_ALLOWED_ORIGINS": '["https://a", "https://b"]',
        "SM_VLLM_LORA_MODULES": '[{"name": "a", "path": "x y"}, {"name": "b", "path": "z"}]',
        "SM_VLLM_CHAT_TEMPLATE": "{% for m in messages %}{{ m }}\n{% endfor %}",
        "SM_VLLM_SEED": "-1",
        "SM_VLLM_MIDDLEWARE": "own.middleware.Class",
    }
}
FACTS = find_facts("0.28.0")


@functools.cache
def plan_of(pair: str) -> Plan:
    return make_plan(Options(pair=pair), CATALOG)


@pytest.fixture(scope="module")
def reported(ask: Ask) -> dict[str, Any]:
    """vLLM's flags, where they are defined, and what it parsed: all in one process."""
    argvs = {
        name: command({"SM_VLLM_MODEL": "a/b", **environment})[3:]
        for name, environment in ENVIRONMENTS.items()
    }
    for pair in ALL_PAIRS:
        plan = plan_of(pair)
        argvs[f"planned {pair}"] = list(plan.engine_arguments)
        argvs[f"served {pair}"] = arguments(plan.environment)
    report: dict[str, Any] = ask("parsed", argvs)
    return report


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_vllm_reads_the_arguments_of_the_plan_from_the_environment(
    reported: dict[str, Any], pair: str
) -> None:
    plan = plan_of(pair)
    served = reported[f"served {pair}"]
    assert served == reported[f"planned {pair}"]
    assert served["max_model_len"] == plan.max_model_len
    assert served["max_num_seqs"] == plan.concurrency
    assert plan.speculation is not None
    assert served["speculative_config"]["num_speculative_tokens"] == plan.speculation.k
    check(plan.environment)
    check_arguments(plan.environment, reported["source"])


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_vllm_builds_its_engine_arguments_from_them(reported: dict[str, Any], pair: str) -> None:
    served, built = reported[f"served {pair}"], reported["built"][f"served {pair}"]
    assert len(built) > 100
    assert {name: value for name, value in built.items() if name in served} == {
        name: value for name, value in served.items() if name in built
    }
    assert built["speculative_config"] == json.loads(plan_of(pair).environment[SPECULATIVE_CONFIG])


def test_vllm_reads_every_kind_of_setting(reported: dict[str, Any]) -> None:
    settings = reported["settings"]
    assert settings["port"] == 8080
    assert settings["model"] == "a/b"
    assert settings["max_model_len"] == 16_000
    assert settings["enforce_eager"] is True
    assert settings["trust_remote_code"] is False
    assert settings["served_model_name"] == ["one", "two words"]
    assert settings["allowed_origins"] == ["https://a", "https://b"]
    assert settings["chat_template"] == "{% for m in messages %}{{ m }}\n{% endfor %}"
    assert settings["seed"] == -1
    assert settings["middleware"] == ["own.middleware.Class", "peagle_serve.middleware.Middleware"]
    assert "'two words'" not in str(settings["lora_modules"])
    assert "x y" in str(settings["lora_modules"])


def test_the_beginning_of_a_flag_is_refused(reported: dict[str, Any], ask: Ask) -> None:
    parsed = ask("parsed", {"begun": ["--trust-remote-cod"]})
    assert parsed["begun"]["trust_remote_code"] is True, "vLLM reads it as the flag"
    with pytest.raises(InvalidEnvironment, match="did you mean SM_VLLM_TRUST_REMOTE_CODE"):
        check_arguments({"SM_VLLM_TRUST_REMOTE_COD": "true"}, reported["source"])


def test_every_known_name_is_an_argument_of_vllm(reported: dict[str, Any]) -> None:
    for name in KNOWN:
        flag = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
        assert flag in reported["flags"]


def test_no_argument_of_vllm_counts_as_misspelled(reported: dict[str, Any]) -> None:
    flags = [flag for flag in reported["flags"] if flag.startswith("--")]
    assert len(flags) > 200
    check_names([variable(flag) for flag in flags])


def test_exactly_the_switches_of_vllm_are_found_in_its_source(reported: dict[str, Any]) -> None:
    flags = {flag: takes for flag, takes in reported["flags"].items() if flag[:2] == "--"}
    switches = {variable(flag) for flag, takes in flags.items() if not takes} - {"SM_VLLM_HELP"}
    assert len(switches) > 80
    for name in switches:
        with pytest.raises(InvalidEnvironment) as refused:
            check_arguments({name: "maybe"}, reported["source"])
        assert refused.value.message == f"{name} is 'maybe'"
    check_arguments(
        {variable(flag): "maybe" for flag, takes in flags.items() if takes and "." not in flag},
        reported["source"],
    )


def test_the_table_knows_the_arguments_and_switches(reported: dict[str, Any]) -> None:
    flags = {flag for flag in reported["flags"] if flag[:2] == "--" and "." not in flag}
    off = {flag for flag in flags if flag.startswith("--no-")}
    switches = {flag for flag in flags - off if not reported["flags"][flag]} - {"--help"}
    assert {f"--{name}" for name in FACTS.arguments} == flags - off - {"--help"}
    assert {f"--{name}" for name in of_kind(SWITCH, ON_ONLY)} == switches
    assert {f"--no-{name}" for name in of_kind(SWITCH)} == off


def test_the_table_knows_the_values_of_every_argument(reported: dict[str, Any]) -> None:
    choices = {flag[2:]: sorted(some) for flag, some in reported["choices"].items()}
    assert {name: FACTS.arguments[name]["choices"] for name in of_kind(CHOICE)} == choices
    numbers = {flag[2:] for flag, kind in reported["numbers"].items() if kind == "int"}
    assert numbers <= of_kind(WHOLE_NUMBER)
    assert set(FACTS.variables) == {n for n in reported["variables"] if n.startswith("VLLM_")}


def of_kind(*kinds: str) -> set[str]:
    return {name for name, entry in FACTS.arguments.items() if entry["kind"] in kinds}


def test_no_variable_of_vllm_counts_as_an_argument(reported: dict[str, Any]) -> None:
    assert len(reported["variables"]) > 100
    check_names(reported["variables"])


def test_a_misspelled_argument_is_refused_and_the_right_one_suggested(
    reported: dict[str, Any],
) -> None:
    flags = [flag for flag in reported["flags"] if len(flag) > 10 and not flag.startswith("--no-")]
    assert len(flags) > 150
    for flag in flags:
        wrong = variable(f"{flag[:-2]}{flag[-1]}{flag[-1]}x")
        with pytest.raises(InvalidEnvironment) as refused:
            check_arguments({wrong: ""}, reported["source"])
        assert wrong in refused.value.message
        assert "did you mean SM_VLLM_" in refused.value.fix, flag


def variable(flag: str) -> str:
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()
