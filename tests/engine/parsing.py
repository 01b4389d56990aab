"""What vLLM's own parser makes of arguments, asked of the engine in one process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from peagle.engine.installed import Engine

PARSE = """
import contextlib, io, json, sys
import vllm.envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

def parsed(argv):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parser.parse_args(argv)
    except SystemExit:
        return None

parser = make_arg_parser(FlexibleArgumentParser())
flags = {flag: action.nargs != 0 for action in parser._actions for flag in action.option_strings}
asked = json.load(sys.stdin)
read = {name: parsed(argv) for name, argv in asked.items()}
built = {name: vars(AsyncEngineArgs.from_cli_args(read[name]))
         for name in asked if name.startswith("served ")}
sources = [sys.modules[name].__file__ for name in (
    "vllm.engine.arg_utils", "vllm.entrypoints.openai.cli_args")]
print("RESULT" + json.dumps({
    "flags": flags, "sources": sources, "built": built,
    "variables": list(vllm.envs.environment_variables),
    "read": {name: told and vars(told) for name, told in read.items()},
}, default=repr))
"""
SPECULATION: dict[str, Any] = {
    "method": "eagle3",
    "model": "models/50 % of 'it' \"quoted\" \u00e4\u65e5\U0001f600",
    "num_speculative_tokens": 7,
    "parallel_drafting": True,
}


def told_by(engine: Engine, argvs: Mapping[str, list[str]]) -> dict[str, Any]:
    """What vLLM read of each of these arguments, by name: ``None`` where its parser refused them.

    Beside them ``flags`` (whether each takes a value), ``variables`` of vLLM's environment,
    ``source``, the text that defines the flags, and ``built``: the engine's own arguments, of all
    whose name begins with ``served``.
    """
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
    source = ""
    for file in document["sources"]:
        with open(file, encoding="utf-8") as stream:
            source += stream.read()
    return {**document, **document["read"], "source": source}
