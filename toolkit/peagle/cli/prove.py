"""``peagle prove``: prove that an endpoint speculates, also a template's or another machine's, and
any vLLM behind a URL."""

from __future__ import annotations

import os
from pathlib import Path

import click

from peagle import api
from peagle.bench.server import KEY_VARIABLE
from peagle.bench.targets import UrlProof
from peagle.cli.account import Account, cloud_options, complete_name, find_endpoint
from peagle.cli.options import command_catalog
from peagle.cli.output.console import json_option, print_json, print_line, show_findings
from peagle.cli.output.progress import StatusLine
from peagle.cli.parameter_types import Decimal, WholeNumber, duration
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.errors import OptionMissing, OptionsConflict
from peagle.planning import Plan
from peagle.proof import MIN_DRAFTS, InstanceProof, Proof


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle prove peagle-tiny --sandbox
  peagle prove --endpoint my-endpoint --floor 2.1 --json
  peagle prove --url http://127.0.0.1:8080/v1 --plan plan.json --wait 30m
""",
)
@endpoint_argument(complete_name, instead=("endpoint", "url"))
@click.option(
    "--endpoint",
    metavar="NAME",
    help="An endpoint of the account, made by a template, a pipeline or another machine.",
)
@click.option(
    "--url",
    metavar="URL",
    help="Any vLLM with OpenAI's protocol and /metrics, as on Kubernetes. With HTTP every address "
    "of the host is an engine, as of a headless Service. $OPENAI_API_KEY is its key.",
)
@click.option(
    "--plan",
    "plan_file",
    metavar="PLAN",
    type=click.Path(path_type=Path),
    help="Plan file with prompts and floor, for --url.  [default: the catalogue's prompts for the "
    "served model; any accepted draft passes]",
)
@click.option("--model", help="Served model, for --url.  [default: the only one]")
@click.option(
    "--instances",
    type=WholeNumber(1),
    default=1,
    show_default=True,
    help="Number of engines that --url must have.",
)
@click.option(
    "--wait",
    metavar="DURATION",
    callback=duration,
    help="How long to wait for the engines of --url, such as 30m.  [default: not at all]",
)
@click.option(
    "--floor",
    type=Decimal("an acceptance length of 1 or more, such as 2.2", min=1.0),
    help="Minimum acceptance length of every instance.  [default: the pair's, from the catalogue]",
)
@click.option(
    "--min-drafts",
    type=WholeNumber(1),
    default=MIN_DRAFTS,
    show_default=True,
    help="Number of drafts that each instance must have made.",
)
@cloud_options
@json_option
@click.pass_context
def prove(
    ctx: click.Context,
    name: str | None,
    endpoint: str | None,
    url: str | None,
    plan_file: Path | None,
    model: str | None,
    instances: int,
    wait: int | None,
    floor: float | None,
    min_drafts: int,
    region: str | None,
    account: Account,
    as_json: bool,
) -> None:
    """Prove that the endpoint NAME speculates: send prompts until every instance has drafted
    enough, and compare its acceptance length with the floor.

    Prompts and floor are the plan's, or the catalogue's for the pair in the endpoint's tag. An
    image built by this toolkit is proved from its counters; any other from vLLM's statistics in the
    endpoint's log; engines behind --url from their /metrics. Exits with 3 if an instance is below
    the floor or drafts nothing. Prompts are ordinary requests, which other clients' requests are
    measured with. An endpoint that scaled to zero is woken first, in at most half an hour, and the
    copies that run then are proved.
    """
    if sum(one is not None for one in (name, endpoint, url)) != 1:
        raise OptionMissing("prove needs one endpoint", "use one of NAME, --endpoint and --url")
    if url is not None:
        plan = api.read_plan(plan_file) if plan_file else None
        key = os.environ.get(KEY_VARIABLE)
        asked = UrlProof(url, model, key, plan, floor, min_drafts, instances, wait or 0)
        return _prove_url(ctx, asked, as_json)
    if plan_file or model or wait or instances > 1:
        raise OptionsConflict(
            "--plan, --model, --instances and --wait are for --url", "leave them out, or add --url"
        )
    chosen = name or endpoint or ""
    record, aws = find_endpoint(account, chosen, region)
    catalog = command_catalog(ctx)
    with StatusLine() as status:
        proved = api.prove(
            aws,
            chosen,
            catalog,
            record,
            floor=floor,
            min_drafts=min_drafts,
            say=lambda line: status.show(f"Proving {chosen}", line),
        )
    if as_json:
        print_json({"name": chosen, "region": aws.region, **proved.document()})
    else:
        _show(chosen, proved)
    pair = api.request_of_revision(record.current, catalog).pair if record else ""
    api.require_passed(proved, pair, chosen)
    return None


def _prove_url(ctx: click.Context, asked: UrlProof, as_json: bool) -> None:
    """Prove the engines behind a URL, show the proof, and raise NotProved unless it passed."""
    with StatusLine() as status:
        proved = api.prove_url(
            asked,
            command_catalog(ctx),
            say=lambda line: status.show(f"Proving {asked.url}", line),
        )
    if as_json:
        print_json({"url": asked.url, **proved.document()})
    else:
        _show(asked.url, proved)
    again = ("peagle", "prove", "--url", asked.url)
    pair = _pair_of(asked.plan)
    api.require_passed(proved, pair, asked.url, again)


def _pair_of(plan: Plan | None) -> str:
    """The pair in the commands of a fix, where the plan is known."""
    return api.pair_in_catalogue(plan.target, plan.drafter) if plan else ""


def _show(name: str, proved: Proof) -> None:
    verdict = "is proved" if proved.passed else "is not proved"
    print_line(f"{name} {verdict}{_measured(proved)}", bold=True)
    for one in proved.instances:
        if one.stream:
            print_line(f"  {one.stream}: {_drafted(one)}")
            continue
        print_line(f"  {_drafted(one)}")
    if proved.second_turn:
        print_line(f"  {api.second_turn_text(proved.second_turn)}")
    show_findings(api.proof_findings(proved.second_turn))


def _measured(proved: Proof) -> str:
    if proved.floor is None:
        return ": it answers; it does not speculate"
    least = api.floor_text(proved.floor, proved.floor_source)
    where = "the engine's counters" if proved.source == "counters" else "the endpoint's log"
    if proved.acceptance_length is None:
        return f": no drafts in {where}"
    return (
        f": acceptance length {proved.acceptance_length:.2f} over {proved.drafts} drafts{least} "
        f"(from {where})"
    )


def _drafted(one: InstanceProof) -> str:
    if one.acceptance_length is None:
        return "drafted nothing"
    rates = " ".join(f"{rate:.2f}" for rate in one.acceptance_per_position)
    positions = f", accepted by position {rates}" if rates else ""
    return f"acceptance length {one.acceptance_length:.2f} over {one.drafts} drafts{positions}"
