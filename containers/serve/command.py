"""Read the environment, say what will run, and let vLLM take this process's place."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from serve.checks import check, port_of
from serve.environment import PREFIX, arguments
from serve.errors import WrongEnvironment
from serve.model import with_model

SERVER = "vllm.entrypoints.openai.api_server"
MIDDLEWARE = "serve.counters.CountersMiddleware"
EXIT_CODE = 2

_READ = (PREFIX, "HF_MODEL_ID", "PEAGLE_ML_ROOT", "SAGEMAKER_BIND_TO_PORT")
_SECRET_FLAG = re.compile(r"^--[\w.-]*(api-key|token|secret|password)$")
_SECRET_VALUE = re.compile(r"hf_[A-Za-z0-9]{8,}")


def main(given: Sequence[str]) -> NoReturn:
    """Become vLLM, or end with one line on stderr and exit code 2."""
    try:
        if list(given) not in ([], ["serve"]):
            raise WrongEnvironment(
                f"unknown arguments: {' '.join(given)}", "the only one is: serve; see SM_VLLM_*"
            )
        environment = decoded(os.environb)
        argv = command(environment)
        if find_spec("vllm") is None:
            raise WrongEnvironment(f"{sys.executable} has no vLLM", "use an image that has")
        passed = [_encoded(token) for token in argv]
    except WrongEnvironment as error:
        print(f"serve: error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE)
    print("serve:", json.dumps(redacted(argv), ensure_ascii=False), file=sys.stderr, flush=True)
    os.execve(argv[0], passed, {**os.environb, **_settings(os.environb)})


def command(environment: Mapping[str, str]) -> list[str]:
    """vLLM's whole argv. Raises WrongEnvironment."""
    check(environment)
    chosen = with_model(environment)
    chosen.pop(f"{PREFIX}PORT", None)
    return [
        sys.executable,
        "-m",
        SERVER,
        "--port",
        str(port_of(environment)),
        *arguments(chosen),
        "--middleware",
        MIDDLEWARE,
    ]


def decoded(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    """The variables as text. Raises WrongEnvironment if one that is read here is not UTF-8."""
    texts = {}
    for name, value in environment.items():
        label = name.decode("utf-8", errors="replace")
        try:
            texts[label] = value.decode("utf-8")
        except UnicodeDecodeError as error:
            if label.startswith(_READ):
                raise WrongEnvironment(
                    f"{label} is not UTF-8 (byte {error.start + 1})", "encode it as UTF-8"
                ) from None
            texts[label] = ""
    return texts


def redacted(argv: Sequence[str]) -> list[str]:
    """``argv`` for the log, without secrets."""
    shown: list[str] = []
    hide = False
    for token in argv:
        flag, equals, _ = token.partition("=")
        if hide and not token.startswith("--"):
            shown.append("***")
            continue
        hide = bool(_SECRET_FLAG.match(flag))
        shown.append(f"{flag}=***" if hide and equals else _SECRET_VALUE.sub("***", token))
    return shown


def _encoded(token: str) -> bytes:
    try:
        encoded = token.encode("utf-8")
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise WrongEnvironment(
            f"the argument {token!r} cannot be passed to a program",
            "remove the \\u0000 or the half of a \\ud800 pair",
        )
    return encoded


def _settings(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What vLLM needs to read its arguments as they were written, and to find the middleware;
    and no module of the working folder takes the place of one of vLLM's."""
    paths = [os.fsencode(Path(__file__).resolve().parent.parent)]
    paths += [environment[b"PYTHONPATH"]] if environment.get(b"PYTHONPATH") else []
    return {
        b"PYTHONUTF8": b"1",
        b"PYTHONSAFEPATH": b"1",
        b"PYTHONPATH": os.pathsep.encode().join(paths),
    }
