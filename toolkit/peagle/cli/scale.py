"""``peagle scale``: the instances or copies of a deployment, or the bounds of its scaling."""

from __future__ import annotations

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, cloud_options, complete_name, find_deployment
from peagle.cli.context import deployment_in_context
from peagle.cli.options import yes_option
from peagle.cli.output.console import (
    confirm,
    json_option,
    print_facts,
    print_json,
    print_line,
    print_status,
)
from peagle.cli.output.progress import DeploymentProgress
from peagle.cli.parameter_types import REQUESTS_AT_A_TIME, WholeNumber
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.deploy.scale import Scale
from peagle.deploy.state import Deployment
from peagle.text import counted, format_price


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle scale peagle-gpt-oss-20b --to 2
  peagle scale peagle-gpt-oss-20b --min 2 --max 8
  peagle scale peagle-gpt-oss-20b --off --to 1
""",
)
@endpoint_argument(complete_name)
@cloud_options
@click.option("--to", type=WholeNumber(1), metavar="N", help="A fixed number.")
@click.option(
    "--min",
    "minimum",
    type=WholeNumber(0),
    metavar="N",
    help="Fewest that scaling keeps; 0 needs a deployment with --scale-to-zero.",
)
@click.option(
    "--max",
    "maximum",
    type=WholeNumber(1),
    metavar="N",
    help="Most that scaling starts; begins to scale automatically.",
)
@click.option(
    "--target-concurrency",
    "target",
    type=REQUESTS_AT_A_TIME,
    metavar="REQUESTS",
    help="Requests at a time that scaling gives each.  [default: the plan's]",
)
@click.option("--off", is_flag=True, help="End automatic scaling; what runs stays.")
@yes_option
@json_option
def scale(
    name: str,
    account: Account,
    region: str | None,
    to: int | None,
    minimum: int | None,
    maximum: int | None,
    target: float | None,
    off: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change the number of instances of the deployment NAME, or the bounds of its scaling. Of a
    deployment with --copies, the numbers are those of its copies.

    While it scales automatically, SageMaker chooses the number within the bounds, and a fixed
    number is refused. An update keeps the number that scaling chose, and replaces a fixed one by
    that of its plan; deploying a plan with other bounds changes those. With a --budget, a higher
    price moves the end to an earlier time.
    """
    request = api.scale_request(to, minimum, maximum, target, off)
    record, aws = find_deployment(account, name, region)
    with api.deployment_lock(*record.key):
        record, aws = find_deployment(account, name, region, complete=True)
        change = api.plan_scale(aws, record, request)
        _show(record, change, account)
        if not change.is_nothing:
            if not yes:
                confirm("Scale?", "not scaled")
            with DeploymentProgress(account.sandbox) as status:
                api.scale(aws, record, change, status.observe)
    _report(aws, record, change, as_json)


def _show(record: Deployment, change: Scale, account: Account) -> None:
    """What changes, and its price per hour: on stderr, before the confirmation."""
    served, copies = record.current.served, change.live.hosts_components
    lines = [("where", account.where(record.region))]
    if change.count is not None:
        lines.append((counted(2, copies), f"{change.running} -> {change.count}"))
    if change.scaling is not None:
        lines.append(("scaling", change.scaling.text))

    def price(count: int) -> str:
        return format_price(served.with_instances(count).usd_per_hour, account.sandbox)

    after = change.scaling.after if change.scaling else None
    if after is not None:
        lines.append(
            ("price", f"{price(after.min_instances)}; at most {price(after.max_instances)}")
        )
    else:
        lines.append(("price", price(change.instances or change.live.desired_count)))
    if change.end_text:
        lines.append(("ends", change.end_text))
    if change.is_nothing:
        lines.append(("change", "none"))
    print_status(record.name, bold=True)
    print_facts(lines)


def _report(aws: Aws, record: Deployment, change: Scale, as_json: bool) -> None:
    document = api.deployment_status(aws, record)
    document["changed"] = not change.is_nothing
    copies, component = change.live.hosts_components, change.live.component
    counts = counted(2, copies)
    running = document[f"{counts}_running"]
    desired = change.count or (component.desired_copies if component else change.live.desired_count)
    document[f"{counts}_desired"] = desired
    if as_json:
        print_json(deployment_in_context(document))
        return
    text = f"{record.name} runs {running} {counted(running, copies)}"
    if running != desired:
        text += f", on the way to {desired}"
    after = change.scaling.after if change.scaling else None
    print_line(f"{text}; scaling: {after.text}" if after else text, bold=True)
