"""``peagle compare``: a second plan on the same endpoint, and how both do with real requests."""

from __future__ import annotations

import shlex

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, cloud_options, complete_name, find_deployment
from peagle.cli.context import deployment_in_context, is_plan_file, own_command
from peagle.cli.options import command_catalog, complete_pair, deploy_options, refuse_errors
from peagle.cli.output.comparison import print_report, print_started, show_candidate
from peagle.cli.output.console import confirm, json_option, print_json, print_status
from peagle.cli.output.deploy import remaining_resources_shown
from peagle.cli.output.progress import DeploymentProgress, show_hashing
from peagle.cli.parameter_types import Parsed, duration
from peagle.cli.plan import options_in
from peagle.cli.planned import planned
from peagle.cli.project import ACCOUNT, ProjectCommand, endpoint_argument
from peagle.deploy.preflight import CHECKED_AGAIN
from peagle.deploy.state import Deployment
from peagle.errors import Fix, OptionsConflict, UserError
from peagle.planning import Plan
from peagle.text import parse_share

_DEFAULT_SHARE = 0.1

_WITH = "--with"


_REVIEWED = Fix("review the above, then pass --yes", options=("--yes",))


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle sandbox quota set ml.g6.xlarge 3
  peagle compare peagle-tiny --with 'tiny --no-speculation' --share 50% --sandbox
  peagle compare peagle-gpt-oss-20b --with plan.json --share 10%
  peagle compare peagle-gpt-oss-20b
""",
)
@endpoint_argument(complete_name, keys=(*ACCOUNT, "accept_unknown_price", "role"))
@click.option(
    "--with",
    "text",
    metavar="PAIR|PLAN",
    help="Serve this too: a plan file, or a pair, with planning options in quotes, such as "
    "'gpt-oss-20b --k 3'.",
    shell_complete=complete_pair,
)
@click.option(
    "--share",
    type=Parsed("share", parse_share),
    metavar="SHARE",
    help="Its share of the requests.  [default: 10%]",
)
@click.option(
    "--last",
    callback=duration,
    metavar="DURATION",
    help="Report on this time only, such as 1h.  [default: since the comparison began]",
)
@deploy_options
@cloud_options
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    name: str,
    text: str | None,
    share: float | None,
    last: int | None,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
    account: Account,
    region: str | None,
    as_json: bool,
) -> None:
    """Compare two plans on the endpoint NAME under the requests that it gets.

    With --with, a second production variant serves that plan, on instances of its own and with
    --share of the requests, and is proved. It has everything of the deployed plan that --with does
    not state: drafter, K, context, image, instances, network, tags and the rest. Repeat it to
    change the share, or change it with --share alone. SageMaker starts new instances for both plans
    before it ends those that serve, so the quota must allow them together: 3 where each plan has
    one instance of the same type. Without --with and --share, shows the times, acceptance and cost
    of each variant, and 95 % confidence intervals, from CloudWatch and from the engines' logs: no
    request is sent.

    `peagle promote NAME` lets the second plan serve alone, and `peagle drop NAME` removes it; no
    other change of NAME begins before that. A comparison is not rendered to templates.
    """
    if text is None and share is None:
        record, aws = find_deployment(account, name, region, complete=True)
        report = api.comparison_report(aws, record, last)
        if as_json:
            print_json(report.document())
        else:
            print_report(report, account)
        return
    if last is not None:
        raise OptionsConflict("--last is for the report only", "omit --with and --share, or --last")
    record, aws = find_deployment(account, name, region)
    with api.deployment_lock(*record.key):
        record, aws = find_deployment(account, name, region, complete=True)
        if text is None:
            _change_share(aws, record, account, share or _DEFAULT_SHARE, yes)
        else:
            plan = candidate_plan(ctx, record, text)
            running = record.comparison
            chosen = share or (running.share if running else _DEFAULT_SHARE)
            _start(ctx, aws, record, plan, account, chosen, role, yes, accept_unknown_price)
    record = api.load_record(*record.key) or record
    document = api.deployment_status(aws, record)
    if as_json:
        print_json(deployment_in_context(document))
    else:
        print_started(document, account)


def _start(
    ctx: click.Context,
    aws: Aws,
    record: Deployment,
    plan: Plan,
    account: Account,
    share: float,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
) -> None:
    """Check, show, ask, and bring the candidate into service; show what exists after an error."""
    refuse_errors([one for one in plan.findings if one.level == "error"])
    with show_hashing():
        found = api.preflight(aws, plan, command_catalog(ctx).instances, role, beside=True)
    record = api.require_comparable(found)
    show_candidate(aws, found, record, share, account)
    kept = [one for one in plan.findings if one.level == "error" and one.code not in CHECKED_AGAIN]
    refuse_errors((*kept, *found.findings))
    api.require_known_price(found.desired.plan, accept_unknown_price)
    if not yes:
        confirm("Serve both plans?", "not compared", _REVIEWED)
    again = own_command(ctx)
    remaining = remaining_resources_shown(aws, record, account, again)
    with remaining, DeploymentProgress(account.sandbox) as status:
        api.start_comparison(aws, found, share, command_catalog(ctx), status.observe)


def _change_share(aws: Aws, record: Deployment, account: Account, share: float, yes: bool) -> None:
    before = api.required_comparison(record).share
    if not yes and abs(before - share) > 1e-6:
        confirm(f"Change the share from {before:.1%} to {share:.1%}?", "not changed")
    with DeploymentProgress(account.sandbox) as status:
        api.change_share(aws, record, share, status.observe)


def candidate_plan(ctx: click.Context, record: Deployment, text: str) -> Plan:
    """The plan in ``text``, the value of ``--with``, for the endpoint. Raises UserError for another
    name or region, and what planning raises."""
    pair, own = options_in(ctx, text, _WITH)
    for option, value in (("name", record.name), ("region", record.region)):
        if own.get(option, value) != value:
            raise UserError(
                f"--{option} {own[option]} cannot be used within --with: the plan is for "
                f"{record.name} in {record.region}",
                f"omit --{option}",
            )
    if is_plan_file(pair):
        plan = planned(ctx, pair, own)
        if (plan.name, plan.region) != (record.name, record.region):
            raise UserError(
                f"{pair} is for {plan.name} in {plan.region}, not for {record.name} in "
                f"{record.region}",
                f"plan it with --name {record.name} --region {record.region}",
                code="plan-of-another-deployment",
            )
        return plan
    revision = record.serving or record.current
    catalog = command_catalog(ctx)
    if revision.plan is None:
        print_status(
            "This machine does not have the plan that serves: its --set, --env, tags, pins, "
            "scaling and rollout are not copied to the second variant."
        )
        return planned(ctx, pair, {**api.options_of_served(revision.served, catalog), **own})
    words = shlex.join(api.deployed_words(revision.plan))
    deployed = options_in(ctx, words, _WITH)
    return planned(ctx, *api.options_beside(revision.plan, deployed, (pair, own), catalog))
