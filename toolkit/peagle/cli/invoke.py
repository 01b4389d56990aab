"""``peagle invoke``: send a prompt to an endpoint or a local engine, and stream the answer."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import (
    Account,
    cloud_options,
    complete_name,
    find_endpoint,
    names_deployment,
)
from peagle.cli.context import TYPED, PeagleCommand
from peagle.cli.output.console import json_option, print_json, print_status
from peagle.cli.output.progress import StatusLine
from peagle.cli.parameter_types import TOKENS, Decimal, duration
from peagle.deploy.invoke import InvokeRequest, InvokeResult, OnText, WakeUpOptions
from peagle.deploy.state import Deployment
from peagle.engine.state import LocalEngine
from peagle.errors import OptionsConflict, UserError
from peagle.store import SANDBOX
from peagle_serve import json_reader

_LIKE_JSON = re.compile(r"""\s*\{\s*["'}]""")
"""The beginning of a JSON object, or of an attempt at one; ``{name}`` and ``{{`` are text."""

_IN_BODY = {
    "stream": "--stream/--no-stream",
    "chat": "--chat/--completion",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
}
"""Parameter -> option that a body of JSON has in place of it."""

Ask = Callable[[InvokeRequest, OnText, WakeUpOptions], InvokeResult]


@click.command(
    cls=PeagleCommand,
    epilog="Example: peagle invoke peagle-tiny 'What does os.path.join do?' --sandbox",
)
@click.argument("name", shell_complete=complete_name)
@cloud_options
@click.argument("prompt")
@click.option(
    "--stream/--no-stream",
    default=True,
    help="Print the answer as it is generated.  [default: stream]",
)
@click.option("--chat/--completion", default=None, help="[default: depends on the target]")
@click.option(
    "--max-tokens",
    type=TOKENS,
    metavar="TOKENS",
    default=256,
    show_default=True,
    help="Maximum length of the answer, in tokens.",
)
@click.option(
    "--temperature",
    type=Decimal("a temperature of 0 or more, such as 0.7", min=0.0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0 is greedy decoding.",
)
@click.option(
    "--wake-timeout",
    metavar="DURATION",
    callback=duration,
    default="30m",
    show_default=True,
    help="How long to wait for an endpoint that scaled to zero, such as 10m; 0s: not at all.",
)
@json_option
def invoke(
    name: str,
    region: str | None,
    account: Account,
    prompt: str,
    stream: bool,
    chat: bool | None,
    max_tokens: int,
    temperature: float,
    wake_timeout: int,
    as_json: bool,
) -> None:
    """Send PROMPT to the endpoint NAME, or to the local engine of that name. With PROMPT -, read
    the prompt from standard input. A PROMPT that is a JSON object is sent as it is, as the body of
    the request: {"messages": [...], "max_tokens": 64}.

    With --no-stream, AWS times out after 60 seconds. The acceptance length is computed from the
    engine's counters, which include other clients' requests. A request to an endpoint that scaled
    to zero wakes it, and waits. If an endpoint and a local engine have the same name, the endpoint
    answers.
    """
    ask = _find_server(account, name, region)
    text = _read_prompt(prompt)
    payload = _payload(text)
    request = InvokeRequest(text, chat, max_tokens, temperature, stream, payload)
    line, texts = StatusLine(), list[str]()

    def show(text: str) -> None:
        if not texts:
            line.clear()
        texts.append(text)
        if not as_json:
            click.echo(text, nl=False)

    wake_up = api.WakeUpOptions(wake_timeout, lambda progress: line.show_line(progress.text))
    try:
        result = ask(request, show, wake_up)
    finally:
        if not texts:
            line.clear()
    if as_json:
        print_json(vars(result))
        return
    click.echo()
    print_status(_summary(result))


def _find_server(account: Account, name: str, region: str | None) -> Ask:
    """How to ask a deployed endpoint, a local engine, or an endpoint that deploy did not create.

    Options about AWS exclude local engines. Raises NotFound, and UserError for a local engine that
    is not ready.
    """
    on_aws = names_deployment(account, region, name)
    if engine := None if on_aws else api.ready_engine(name):
        return partial(_ask_engine, engine)
    record, aws = find_endpoint(account, name, region)
    return partial(_ask_endpoint, aws, name, record)


def _ask_engine(
    engine: LocalEngine, request: InvokeRequest, show: OnText, _: WakeUpOptions
) -> InvokeResult:
    if engine.image is None and engine.speculates:
        _warn_of_noise(engine.vllm, request)
    return api.invoke_local(engine, request, show)


def _ask_endpoint(
    aws: Aws,
    name: str,
    record: Deployment | None,
    request: InvokeRequest,
    show: OnText,
    wake_up: WakeUpOptions,
) -> InvokeResult:
    """Ask after printing what differs from AWS: a stand-in, and vLLM's sampling on a CPU."""
    if aws.scope == SANDBOX:
        if stand_in := api.stand_in_of(aws, name):
            print_status(
                f"Answered by {stand_in}, a stand-in for a target too large for this machine."
            )
        if record and record.current.served.k > 0:
            _warn_of_noise(api.engine_version(), request)
    return api.invoke(aws, name, record, request, show, wake_up)


def _warn_of_noise(version: str, request: InvokeRequest) -> None:
    if request.temperature > 0:
        print_status(
            f"vLLM {version} on a CPU returns noise when it samples with speculation "
            "(vllm issue 55005): use --temperature 0 here."
        )


def _read_prompt(prompt: str) -> str:
    """The prompt, or standard input for ``-``. Raises UserError if it is empty or not UTF-8."""
    data = sys.stdin.buffer.read() if prompt == "-" else prompt.encode("utf-8", "surrogateescape")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt is not UTF-8 (invalid byte at offset {error.start})",
            "convert it, for example with iconv",
        ) from error
    if not text.strip():
        raise UserError("the prompt is empty", "pass a prompt, or - to read it from standard input")
    return text


def _payload(text: str) -> dict[str, Any] | None:
    """The JSON object that the prompt is; ``None`` for one that does not look like one.

    Raises UserError for invalid JSON, and OptionsConflict for options that it says itself.
    """
    if not _LIKE_JSON.match(text):
        return None
    try:
        body: dict[str, Any] = json_reader.read(text, "the JSON of the prompt")
    except json_reader.InvalidJson as error:
        fix = "correct it; only a prompt that does not begin as JSON is sent as text"
        raise UserError(str(error), fix) from error
    typed = click.get_current_context().meta[TYPED]
    if options := [flag for name, flag in _IN_BODY.items() if name in typed]:
        raise OptionsConflict(
            f"{options[0]} cannot be combined with a prompt that is JSON", "set it in the JSON"
        )
    return body


def _summary(result: InvokeResult) -> str:
    parts = [f"{result.seconds:.1f} s"]
    if result.output_tokens is not None:
        parts.insert(0, f"{result.output_tokens} tokens")
    if result.first_token_seconds is not None:
        parts.append(f"first token after {result.first_token_seconds:.2f} s")
    if result.waited_seconds is not None:
        parts.insert(0, f"woke up after {result.waited_seconds:.1f} s")
    if result.acceptance_length is not None:
        parts.append(f"acceptance length {result.acceptance_length:.2f}")
    return f"[{', '.join(parts)}]"
