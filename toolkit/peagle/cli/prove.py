"""``peagle prove``: prove that an endpoint speculates, also a template's or another machine's."""

from __future__ import annotations

import click

from peagle import api
from peagle.cli.account import Account, cloud_options, complete_name, find_endpoint
from peagle.cli.context import PeagleCommand
from peagle.cli.options import command_catalog
from peagle.cli.output.console import json_option, print_json
from peagle.cli.output.progress import StatusLine
from peagle.errors import UserError
from peagle.proof import MIN_DRAFTS, InstanceProof, Proof


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle prove peagle-tiny --sandbox
  peagle prove --endpoint my-endpoint --floor 2.1 --json
""",
)
@click.argument("name", required=False, shell_complete=complete_name)
@click.option(
    "--endpoint",
    metavar="NAME",
    help="An endpoint of the account, made by a template, a pipeline or another machine.",
)
@click.option(
    "--floor",
    type=click.FloatRange(1.0),
    help="Minimum acceptance length of every instance.  [default: the pair's, from the catalogue]",
)
@click.option(
    "--min-drafts",
    type=click.IntRange(1),
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
    endpoint's log. Exits with 3 if an instance is below the floor or drafts nothing. Prompts are
    ordinary requests, which other clients' requests are measured with.
    """
    if (name is None) == (endpoint is None):
        raise UserError("name one endpoint: NAME, or --endpoint NAME", "give one of them")
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
    pair = record.current.served.pair if record else "PAIR"
    api.require_passed(proved, pair, chosen)


def _show(name: str, proved: Proof) -> None:
    verdict = "is proved" if proved.passed else "is not proved"
    click.secho(f"{name} {verdict}{_measured(proved)}", bold=True)
    for one in proved.instances:
        if one.stream:
            click.echo(f"  {one.stream}: {_drafted(one)}")
            continue
        click.echo(f"  {_drafted(one)}")


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
