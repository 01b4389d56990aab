"""What vLLM's own parser makes of the arguments that ``containers/serve`` gives it."""

from __future__ import annotations

import json
import random
import subprocess
from typing import Any

import pytest

from serve.checks import check
from serve.command import command
from serve.environment import PREFIX, arguments
from serve.errors import WrongEnvironment
from serve.names import KNOWN, check_arguments, check_names
from toolkit.catalog import load_catalog
from toolkit.errors import EngineMissing
from toolkit.local.engine import Engine, find_engine
from toolkit.planning import Options, Plan, make_plan

pytestmark = pytest.mark.engine

PARSE = """
import json, sys
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
flags = sorted({flag for action in parser._actions for flag in action.option_strings})
parsed = [vars(parser.parse_args(argv)) for argv in json.load(sys.stdin)]
sources = [sys.modules[name].__file__ for name in (
    "vllm.engine.arg_utils", "vllm.entrypoints.openai.cli_args")]
print("RESULT" + json.dumps({"flags": flags, "parsed": parsed, "sources": sources}, default=repr))
"""
SPECULATION: dict[str, Any] = {
    "method": "eagle3",
    "model": "models/50 % of 'it' \"quoted\" \u00e4\u65e5\U0001f600",
    "num_speculative_tokens": 7,
    "parallel_drafting": True,
}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "compact": {"SM_VLLM_SPECULATIVE_CONFIG": json.dumps(SPECULATION, separators=(",", ":"))},
    "many lines": {
        "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(SPECULATION, indent=2, ensure_ascii=False)
    },
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
    },
}

CATALOG = load_catalog()
PLANS: dict[str, Plan] = {
    f"{target.short_name}+{drafter.name}": make_plan(
        Options(pair=f"{target.short_name}+{drafter.name}"), CATALOG
    )
    for target in CATALOG.targets.values()
    for drafter in target.drafters
}
"""Every pair of the catalogue."""

ALPHABET = " \t\n'\"\\`$%{}[]()<>|&;:,=-_#~*?!/.@^+0aZ\u00e4\u65e5\U0001f600\u200b\u00a0\u2028"
CASES = 300


def nasty() -> list[dict[str, Any]]:
    """What people, templates and scripts put into values; the same in every run."""
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


def environment_of(values: dict[str, Any], number: int) -> dict[str, str]:
    """The values as variables, JSON spelled one way or the other."""
    spelling: dict[str, Any] = {"indent": (None, 1)[number % 2], "ensure_ascii": number % 3 == 0}
    return {
        PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value, **spelling)
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return find_engine("0.28.0")
    except EngineMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def told(engine: Engine) -> dict[str, Any]:
    """vLLM's flags, where they are defined, and what it parsed: all in one process."""
    argvs = {
        name: command({"SM_VLLM_MODEL": "a/b", **environment})[3:]
        for name, environment in ENVIRONMENTS.items()
    }
    for name, plan in PLANS.items():
        argvs[f"planned {name}"] = list(plan.engine_arguments)
        argvs[f"served {name}"] = arguments(plan.environment)
    for number, values in enumerate(nasty()):
        argvs[f"nasty {number}"] = arguments(environment_of(values, number))
    done = subprocess.run(
        [str(engine.python), "-c", PARSE],
        input=json.dumps(list(argvs.values())),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT")[2])
    source = ""
    for file in document["sources"]:
        with open(file, encoding="utf-8") as stream:
            source += stream.read()
    parsed = dict(zip(argvs, document["parsed"], strict=True))
    return {"flags": document["flags"], "source": source, **parsed}


@pytest.mark.parametrize("pair", PLANS)
def test_vllm_reads_of_the_environment_what_the_plan_says(told: dict[str, Any], pair: str) -> None:
    plan = PLANS[pair]
    served = told[f"served {pair}"]

    assert served == told[f"planned {pair}"]
    assert served["max_model_len"] == plan.max_model_len
    assert served["max_num_seqs"] == plan.concurrency
    assert plan.speculation is not None
    assert served["speculative_config"]["num_speculative_tokens"] == plan.speculation.k
    check(plan.environment)
    check_arguments(plan.environment, told["source"])


def test_nasty_values_come_through_vllms_parser_as_they_were_written(
    told: dict[str, Any],
) -> None:
    for number, values in enumerate(nasty()):
        parsed = told[f"nasty {number}"]
        assert {name: parsed[name] for name in values} == values


@pytest.mark.parametrize("spelled", ["compact", "many lines"])
def test_vllm_reads_the_speculation_that_was_written(told: dict[str, Any], spelled: str) -> None:
    assert told[spelled]["speculative_config"] == SPECULATION


def test_vllm_reads_every_kind_of_setting(told: dict[str, Any]) -> None:
    settings = told["settings"]

    assert settings["port"] == 8080
    assert settings["model"] == "a/b"
    assert settings["max_model_len"] == 16_000
    assert settings["enforce_eager"] is True
    assert settings["trust_remote_code"] is False
    assert settings["served_model_name"] == ["one", "two words"]
    assert settings["allowed_origins"] == ["https://a", "https://b"]
    assert settings["chat_template"] == "{% for m in messages %}{{ m }}\n{% endfor %}"
    assert settings["seed"] == -1
    assert settings["middleware"] == [
        "own.middleware.Class",
        "serve.counters.CountersMiddleware",
        "serve.lifecycle.LifecycleMiddleware",
    ]
    assert "'two words'" not in str(settings["lora_modules"])
    assert "x y" in str(settings["lora_modules"])


def test_every_name_that_counts_as_known_is_an_argument_of_vllm(told: dict[str, Any]) -> None:
    for name in KNOWN:
        flag = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
        assert flag in told["flags"]


def test_no_argument_of_vllm_is_taken_for_a_slip_of_another(told: dict[str, Any]) -> None:
    flags = [flag for flag in told["flags"] if flag.startswith("--")]
    assert len(flags) > 200

    check_names(PREFIX + flag.removeprefix("--").replace("-", "_").upper() for flag in flags)


def test_every_argument_is_found_in_vllms_source_without_importing_it(
    told: dict[str, Any],
) -> None:
    flags = [flag for flag in told["flags"] if flag.startswith("--") and "." not in flag]

    check_arguments((variable(flag) for flag in flags), told["source"])


def test_a_slip_in_any_argument_is_refused_and_the_right_one_named(told: dict[str, Any]) -> None:
    flags = [flag for flag in told["flags"] if len(flag) > 10 and not flag.startswith("--no-")]
    assert len(flags) > 150
    for flag in flags:
        wrong = variable(f"{flag[:-2]}{flag[-1]}{flag[-1]}x")
        with pytest.raises(WrongEnvironment, match=wrong) as refused:
            check_arguments([wrong], told["source"])
        assert "meant SM_VLLM_" in refused.value.fix, flag


def variable(flag: str) -> str:
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()
