"""What vLLM's own parser makes of the arguments that ``containers/serve`` gives it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from serve.command import command
from serve.environment import PREFIX
from serve.names import KNOWN, check_names
from toolkit.errors import EngineMissing
from toolkit.local.engine import Engine, find_engine

pytestmark = pytest.mark.engine

PARSE = """
import json, sys
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
flags = sorted({flag for action in parser._actions for flag in action.option_strings})
parsed = [vars(parser.parse_args(argv)) for argv in json.load(sys.stdin)]
print("RESULT" + json.dumps({"flags": flags, "parsed": parsed}, default=repr))
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


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return find_engine("0.28.0")
    except EngineMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def told(engine: Engine) -> dict[str, Any]:
    """vLLM's flags, and what it parsed of each environment."""
    argvs = [
        command({"SM_VLLM_MODEL": "a/b", **environment})[3:]
        for environment in ENVIRONMENTS.values()
    ]
    done = subprocess.run(
        [str(engine.python), "-c", PARSE],
        input=json.dumps(argvs),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT")[2])
    return {
        "flags": document["flags"],
        **dict(zip(ENVIRONMENTS, document["parsed"], strict=True)),
    }


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
    assert settings["middleware"] == ["own.middleware.Class", "serve.counters.CountersMiddleware"]
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
