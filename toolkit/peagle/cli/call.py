"""``peagle invoke``, ``prove`` and ``token``: requests to an endpoint or an engine."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle.aws.client import MAX_TOKEN_SECONDS
from peagle.bench.targets import KEY_VARIABLE
from peagle.cli import view
from peagle.cli.options import command, option
from peagle.cli.project import complete_name
from peagle.cli.session import Session, cloud_options, deployment_command
from peagle.cli.view.watch import print_proof
from peagle.errors import OptionMissing, UserError
from peagle.proof import MIN_DRAFTS, Proof
from peagle.render import read_plan
from peagle.text import plain
from peagle_serve import json_reader


@command("peagle invoke peagle-tiny 'What does os.path.join do?' --sandbox")
@click.argument("name", shell_complete=complete_name)
@cloud_options
@click.argument("prompt")
@option("--stream/--no-stream", "Print the answer as it is generated.  [default: stream]",
        default=True, show_default=False)  # fmt: skip
@option("--chat/--completion", "[default: depends on the target]", default=None)
@option("--max-tokens", "Maximum length of the answer, in tokens.", "tokens", default=256)
@option(
    "--temperature", "Sampling temperature; 0 is greedy.", click.FloatRange(min=0.0), default=0.0
)
@option("--wake-timeout", "How long to wait for an endpoint that scaled to zero, "
        "such as 10m; 0s: not at all.", "duration", default="30m")  # fmt: skip
def invoke(name: str, session: Session, prompt: str, **request: Any) -> None:
    """Send PROMPT to the endpoint NAME, or to the local engine of that name; `local` is the only
    one. With PROMPT -, read the prompt from standard input. A PROMPT that is a JSON object is sent
    as it is, as the body of the request, without what options say: {"messages": [...]}.

    With --no-stream, AWS times out after 60 seconds. The acceptance length includes other clients'
    requests. A request to an endpoint that scaled to zero wakes it, and waits.
    """
    text = sys.stdin.buffer.read().decode(errors="replace") if prompt == "-" else prompt

    def show(text: str) -> None:
        line.clear()
        view.print_text(text, nl=False)

    with view.StatusLine() as line:
        result = session.invoke(
            name, text, **request, payload=_payload(text), on_text=show, say=line.show_line
        )
    view.print_json(vars(result))
    parts = (
        (result.waited_seconds, "woke up after {:.1f} s"),
        (result.output_tokens, "{} token" if result.output_tokens == 1 else "{} tokens"),
        (result.seconds, "{:.1f} s"),
        (result.first_token_seconds, "first token after {:.2f} s"),
        (result.acceptance_length, "acceptance length {:.2f}"),
    )
    texts = (text.format(value) for value, text in parts if value is not None)
    view.print_text("")
    view.print_status(f"[{', '.join(texts)}]")


def _payload(text: str) -> dict[str, Any] | None:
    """The JSON object that the prompt is; ``None`` for text."""
    if not text.lstrip().startswith('{"'):
        return None
    try:
        body: dict[str, Any] = json_reader.read(text, "the JSON of the prompt")
    except json_reader.InvalidJson as error:
        raise UserError(str(error), "correct it, and quote it for the shell") from error
    return body


@deployment_command(
    "peagle prove peagle-tiny --sandbox",
    "peagle prove --endpoint my-endpoint --floor 2.1 --json",
    "peagle prove --url http://127.0.0.1:8080/v1 --plan plan.json --wait 30m",
    instead=("endpoint", "url"),
)
@option("--endpoint NAME", "An endpoint of the account, made by a template, a pipeline or "
        "another machine.")  # fmt: skip
@option("--url URL", "Any vLLM with OpenAI's protocol and /metrics, as on Kubernetes. With "
        "HTTP every address of the host is an engine, as of a headless Service. "
        "$OPENAI_API_KEY is its key.")  # fmt: skip
@option("--plan plan_file PLAN", "Plan file with prompts and floor, for --url.  [default: the "
        "catalogue's prompts for the served model; any accepted draft passes]", "path",
        needs="--url")  # fmt: skip
@option("--model", "Served model, for --url.  [default: the only one]", needs="--url")
@option("--instances", "Number of engines that --url must have.", "count", default=1, needs="--url")
@option("--wait", "How long to wait for the engines of --url, such as 30m.  "
        "[default: not at all]", "duration", needs="--url")  # fmt: skip
@option("--floor", "Minimum acceptance length of every instance.  [default: the pair's, from "
        "the catalogue]", click.FloatRange(min=1.0))  # fmt: skip
@option("--min-drafts", "Number of drafts that each instance must have made.", "count",
        default=MIN_DRAFTS)  # fmt: skip
def prove(
    name: str | None,
    endpoint: str | None,
    url: str | None,
    plan_file: Path | None,
    model: str | None,
    instances: int,
    wait: int | None,
    session: Session,
    **limits: Any,
) -> None:
    """Prove that the endpoint or local engine NAME speculates: send prompts until every instance
    has drafted enough, and compare its acceptance length with the floor.

    Prompts and floor are the plan's, or the catalogue's for the pair in the endpoint's tag. An
    image built by this toolkit is proved from its counters; any other from vLLM's statistics in the
    endpoint's log; engines behind --url from their /metrics; other clients' requests count too.
    Exits with 3 if an instance is below the floor or drafts nothing. An endpoint that scaled to
    zero is woken first.
    """
    if sum(value is not None for value in (name, endpoint, url)) != 1:
        raise OptionMissing("prove needs one endpoint", "use one of NAME, --endpoint and --url")
    proved = name or endpoint or url or ""
    with view.StatusLine() as status:

        def report(proof: Proof, region: str = "") -> None:
            status.clear()
            place = {"url": url} if url else {"name": proved, "region": region or None}
            view.print_result({**place, **plain(proof)}, lambda _: print_proof(proved, proof))

        limits |= {"say": partial(status.show, f"Proving {proved}"), "report": report}
        if url is None:
            session.prove(proved, **limits)
        else:
            plan = read_plan(plan_file) if plan_file else None
            key = os.environ.get(KEY_VARIABLE)
            session.prove_url(
                url, plan=plan, model=model, key=key, instances=instances, wait_seconds=wait or 0,
                **limits,
            )  # fmt: skip


@deployment_command('export OPENAI_API_KEY="$(peagle token peagle-tiny)"')
@option("--duration", "Validity: 30m, 2h; 12h at most.", "duration", default="12h")
def token(name: str, session: Session, duration: int) -> None:
    """Print a bearer token for OpenAI clients of the endpoint NAME.

    The token is computed from your credentials without a call to AWS, is valid for every endpoint
    that you may invoke in the region, and needs sagemaker:CallWithBearerToken and
    sagemaker:InvokeEndpoint.
    """
    record, aws = session.find_served(name)
    if not 0 < duration <= MAX_TOKEN_SECONDS:
        raise UserError("a token is valid for 1s to 12h", "choose a different --duration")
    key = aws.bearer_token(duration)
    has_copies = record is not None and record.current.served.copies is not None
    url = aws.openai_base_url(name, has_copies)
    document = {"token": key, "expires_in_seconds": duration, "openai_base_url": url}
    view.print_result(document, lambda _: click.echo(key))
