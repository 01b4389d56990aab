"""Environments of the container, and the command line with which its program starts vLLM, or how
it refuses: ``entrypoint.json``.

vLLM is a module that records its arguments; a file next to it defines some of its flags.
``TINY`` in a value is the folder of the bundled pair, ``FOLDER`` an empty one.
"""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import FROZEN_CATALOG

_PROGRAM = Path(__file__).parents[2] / "containers" / "peagle_serve"
_VLLM = """
import json, os, sys
with open(os.environ["RECORD"], "w", encoding="utf-8") as record:
    json.dump({"argv": sys.argv[1:], "environment": dict(os.environ)}, record)
"""
_FLAGS = """\
    api-key chat-template config data-parallel-size dtype enable-log-requests gpu-memory-utilization
    hf-overrides host kv-cache-dtype load-format max-model-len max-num-batched-tokens max-num-seqs
    middleware model model-loader-extra-config pipeline-parallel-size port quantization revision
    root-path seed served-model-name speculative-config tensor-parallel-size tokenizer
    tool-parser-plugin watermark-config worker-extension-cls
"""
_SWITCHES = "enforce-eager enable-prefix-caching enable-lora disable-log-stats trust-remote-code"
_SOURCE = "\n".join(
    [f'parser.add_argument("--{flag}")' for flag in _FLAGS.split()]
    + [f'parser.add_argument("--{flag}", action="store_true")' for flag in _SWITCHES.split()]
    + ["class ServerArguments:", "    hf_token: bool | str | None = None"]
)
"""How vLLM's source names its arguments."""
_SECRETS = ("VLLM_API_KEY", "HF_TOKEN")
_NAMES = re.compile(r"\b[A-Za-z]+_[\w.-]*\w")
"""Of variables, and of keys in them: what a refusal is about, in whichever words."""
HEAD = {"method": "eagle3", "model": "a/head", "num_speculative_tokens": 7}


def _head(**changes: Any) -> dict[str, str]:
    """A speculative configuration with changes; ``None`` leaves a key out."""
    config = {name: value for name, value in {**HEAD, **changes}.items() if value is not None}
    return {"SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config)}


ENVIRONMENTS: dict[str, dict[str, str]] = {
    # spelling
    "plain": {},
    "values": {"SM_VLLM_MAX_MODEL_LEN": "8k", "SM_VLLM_DTYPE": "bfloat16", "SM_VLLM_REVISION": ""},
    "lower case": {"SM_VLLM_max_model_len": "4096"},
    "mixed case and hyphens": {"SM_VLLM_Max-Model-Len": "4096"},
    "lower prefix": {"sm_vllm_max_model_len": "4096"},
    "twice": {"SM_VLLM_MAX_MODEL_LEN": "1", "SM_VLLM_max-model-len": "2"},
    "switch on": {"SM_VLLM_ENFORCE_EAGER": "true"},
    "switch without a value": {"SM_VLLM_ENFORCE_EAGER": ""},
    "switch off": {"SM_VLLM_ENABLE_PREFIX_CACHING": "false"},
    "switch negated": {"SM_VLLM_NO_ENABLE_PREFIX_CACHING": ""},
    "switch with a number": {"SM_VLLM_ENABLE_LORA": "7"},
    "quotes and blanks": {"SM_VLLM_CHAT_TEMPLATE": "{{ a 'b' }} \"c\""},
    "not ASCII": {"SM_VLLM_SERVED_MODEL_NAME": "modèle"},
    "a list in JSON": {"SM_VLLM_SERVED_MODEL_NAME": '["one", "two"]'},
    "a negative number": {"SM_VLLM_ROOT_PATH": "-1"},
    "objects": {"SM_VLLM_WATERMARK_CONFIG": '{"a": 1} {"b": 2}'},
    "an object": {"SM_VLLM_WATERMARK_CONFIG": '{"a": [1, {"b": null}]}'},
    "port of SageMaker": {"SAGEMAKER_BIND_TO_PORT": "PORT"},
    "host": {"SM_VLLM_HOST": "127.0.0.1"},
    "own port": {"SM_VLLM_PORT": "9000"},
    "other variables": {"VLLM_LOGGING_LEVEL": "DEBUG", "MODEL": "c/d", "HF_MODEL_ID": "c/d"},
    "API key": {"SM_VLLM_API_KEY": "swordfish"},
    "API keys": {"SM_VLLM_API_KEY": '["one", "two"]'},
    "HF token": {"SM_VLLM_HF_TOKEN": "hf_swordfish"},
    # config files and code
    "config file": {"SM_VLLM_CONFIG": "/opt/ml/model/config.yaml"},
    "config file in lower case": {"SM_VLLM_config": "config.yaml"},
    "remote code": {"SM_VLLM_TRUST_REMOTE_CODE": "true"},
    "no remote code": {"SM_VLLM_TRUST_REMOTE_CODE": "false"},
    "unknown name of ours": {"SM_VLLM_TRUST_REMOTE_CODE": "1", "PEAGLE_TRUST_REMOTE_CODE": "true"},
    "remote code abbreviated": {"SM_VLLM_TRUST_REM": "true"},
    "pickles": {"SM_VLLM_LOAD_FORMAT": "pt"},
    "pickles abbreviated": {"SM_VLLM_LOAD_FORM": "hf"},
    "safetensors": {"SM_VLLM_LOAD_FORMAT": "safetensors"},
    "streamed": {"SM_VLLM_LOAD_FORMAT": "runai_streamer"},
    "plugin": {"SM_VLLM_TOOL_PARSER_PLUGIN": "/tmp/parser.py"},
    "middleware": {"SM_VLLM_MIDDLEWARE": "a.b"},
    "worker": {"SM_VLLM_WORKER_EXTENSION_CLS": "a.b"},
    "overrides": {"SM_VLLM_HF_OVERRIDES": '{"trust_remote\\u005fcode": true}'},
    "loader": {"SM_VLLM_MODEL_LOADER_EXTRA_CONFIG": '{"load_format": "pt"}'},
    "prompts in the log": {"SM_VLLM_ENABLE_LOG_REQUESTS": "true"},
    # refused names
    "unknown name": {"SM_VLLM_FROBNICATE": "1"},
    "misspelled": {"SM_VLLM_SPECULATIVE_CONFG": "{}"},
    "without a prefix": {"SPECULATIVE_CONFIG": "{}"},
    "no name": {"SM_VLLM_": "1"},
    "a part": {"SM_VLLM_SPECULATIVE_CONFIG.model": "a/head"},
    "own number": {"PEAGLE_RESTARTS": "many"},
    "warm": {"PEAGLE_WARM": "sometimes"},
    # speculation
    "head": _head(),
    "parallel drafting": _head(parallel_drafting=True),
    "blanks around": {"SM_VLLM_SPECULATIVE_CONFIG": f"\n {json.dumps(HEAD)}\t"},
    "n-gram": _head(method="ngram", model=None, prompt_lookup_max=4),
    "MTP": _head(method="mtp", model=None, num_speculative_tokens=None),
    "without K": _head(num_speculative_tokens=None),
    "K is 0": _head(num_speculative_tokens=0),
    "K is text": _head(num_speculative_tokens="7"),
    "without a method": _head(method=None),
    "without a drafter": _head(model=None),
    "not JSON": {"SM_VLLM_SPECULATIVE_CONFIG": "{method:eagle3}"},
    "a list": {"SM_VLLM_SPECULATIVE_CONFIG": '["eagle3"]'},
    "pickled head": _head(draft_load_config={"load_format": "pt"}),
    "no counters": {"SM_VLLM_DISABLE_LOG_STATS": "true", **_head()},
    "spec model": {"SM_VLLM_SPEC_MODEL": "a/head"},
    # folders
    "tiny": {"SM_VLLM_MODEL": "TINY/target", **_head(model="TINY/p-eagle", parallel_drafting=True)},
    "tiny, not in parallel": {"SM_VLLM_MODEL": "TINY/target", **_head(model="TINY/p-eagle")},
    "tiny, head as target": {"SM_VLLM_MODEL": "TINY/target", **_head(model="TINY/target")},
    "tiny, EAGLE-3": {"SM_VLLM_MODEL": "TINY/target", **_head(model="TINY/eagle3")},
    "missing folder": {"SM_VLLM_MODEL": "FOLDER/missing"},
    "empty folder": {"SM_VLLM_MODEL": "FOLDER"},
    "no model": {"SM_VLLM_MODEL": ""},
}
"""A name -> the variables; ``SM_VLLM_MODEL`` is ``a/target`` where they have none."""


def record(folder: Path) -> dict[str, Any]:
    """How the entrypoint starts vLLM, or refuses to, with each of the environments."""
    package = folder / "packages" / "vllm"
    for name, content in {
        "__init__.py": "",
        "engine/arg_utils.py": _SOURCE,
        "entrypoints/openai/cli_args.py": "",
        "entrypoints/openai/api_server.py": _VLLM,
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(content, encoding="utf-8")
    (folder / "empty").mkdir()
    return {name: _started(folder, variables) for name, variables in ENVIRONMENTS.items()}


def _started(folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    places = {"TINY": str(FROZEN_CATALOG / "peagle" / "tiny"), "FOLDER": str(folder / "empty"),
              "PORT": str(_free_port())}  # fmt: skip
    environment = {
        "PYTHONPATH": str(folder / "packages"),
        "RECORD": str(folder / "record.json"),
        "SAGEMAKER_BIND_TO_PORT": places["PORT"],
        "SM_VLLM_MODEL": "a/target",
        **variables,
    }
    for place, value in places.items():
        environment = {name: text.replace(place, value) for name, text in environment.items()}
    done = subprocess.run([sys.executable, str(_PROGRAM), "serve"], env=environment,
                          capture_output=True, text=True, check=False, cwd=folder)  # fmt: skip
    file = folder / "record.json"
    if file.is_file():
        recorded = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        secrets = {n: v for n, v in recorded["environment"].items() if n in _SECRETS}
        argv = json.loads(_without(places, json.dumps(recorded["argv"])))
        return {"argv": argv, **({"environment": secrets} if secrets else {})}
    refusals = [json.loads(line) for line in done.stderr.splitlines()]
    (refusal,) = [line for line in refusals if line.get("event") == "refused"]
    message = _without(places, refusal["message"])
    names = sorted({*_NAMES.findall(message)})
    return {"exit_code": done.returncode, "cause": refusal["cause"], "names": names}


def _without(places: dict[str, str], text: str) -> str:
    for place, value in places.items():
        text = text.replace(value, place)
    return text


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
