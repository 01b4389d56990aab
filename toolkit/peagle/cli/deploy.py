"""``peagle deploy``: show the plan, ask, apply it, prove it, and say how to call it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws
from peagle.cli.account import Account, account_options
from peagle.cli.context import PeagleCommand
from peagle.cli.options import command_words, plan_options, refuse_errors
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.deploy import print_calls, show_left, show_plan
from peagle.cli.output.progress import Ticker
from peagle.cli.output.weights import in_account
from peagle.deploy import state as records
from peagle.deploy import status
from peagle.deploy.apply import deploy as bring
from peagle.deploy.context import Work
from peagle.deploy.preflight import SETTLED_HERE, Choices, Preflight, preflight
from peagle.deploy.state import Deployment
from peagle.engine.crash import find_crash
from peagle.engine.installed import find_engine
from peagle.errors import NotProved, PeagleError, Refused, UserError
from peagle.findings import Finding
from peagle.planning import Plan, errors
from peagle.planning.runtime import IMAGE_WITHOUT_COUNTERS
from peagle.protocol import WarmStart, warm_start_in
from peagle.sandbox.state import engine_version

_ABOUT_IMAGES = frozenset({IMAGE_WITHOUT_COUNTERS})
"""Findings about an image that the sandbox does not run: it serves with our own entrypoint."""


@click.command(
    cls=PeagleCommand,
    epilog="Examples: peagle deploy tiny --sandbox    peagle deploy gpt-oss-20b --role MyRole",
)
@plan_options
@account_options
@click.option("--role", envvar="PEAGLE_ROLE", help="Execution role: ARN or name.  [default: found]")
@click.option("--bucket", help="Takes weights of your machine.  [default: one made for it]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--no-wait", is_flag=True, help="End when the endpoint is asked for.")
@click.option("--accept-unknown-price", is_flag=True, help="Deploy what has no known price.")
@json_option
@click.pass_context
def deploy(
    ctx: click.Context,
    plan: Plan,
    account: Account,
    role: str | None,
    bucket: str | None,
    yes: bool,
    no_wait: bool,
    accept_unknown_price: bool,
    as_json: bool,
) -> None:
    """Put PAIR into service on SageMaker and prove that it drafts.

    Shows what would be created, where and at what price, and asks. The same command again changes
    nothing, continues what was interrupted, or updates to another plan.
    """
    _refuse(plan.findings)
    if account.sandbox:
        find_engine(engine_version())
    started = account.start()
    aws = account.connect(plan.region)
    with records.held(aws.scope, plan.region, plan.name):
        with account.deciding(started):
            found = preflight(aws, plan, Choices(role, bucket))
            show_and_refuse(found, account)
            if found.change in ("create", "update"):
                refuse_unknown_price(found.wanted.plan, accept_unknown_price)
                if not yes:
                    _ask(found)
        again = f"peagle deploy {shlex.join(command_words(ctx))}{account.option}"
        run = _Run(aws, found, account, again, wait=not no_wait, as_json=as_json)
        run.deploy()


@dataclass(frozen=True)
class _Run:
    """One deploy, after the question; ``again`` is the command that goes on with it."""

    aws: Aws
    found: Preflight
    account: Account
    again: str
    wait: bool
    as_json: bool

    def deploy(self) -> None:
        """Apply, prove and report; whatever ends it early, say what is left."""
        with Ticker(free=self.account.sandbox) as ticker:
            work = Work(self.aws, self._record(), ticker.show, explain)
            unproved: NotProved | None = None
            begun = work.clock.now()
            try:
                bring(work, self.found.change, self.found.wanted, self.wait)
            except NotProved as error:
                unproved = error
            except (PeagleError, KeyboardInterrupt):
                self._keep_or_forget(work.record)
                raise
            warm = self._warm_start(work, begun)
        if warm:
            say(warm.text)
        self._report(work.record, unproved is None, warm)
        if unproved:
            show_left(work.record, self.account, self.again)
            raise unproved

    def _record(self) -> Deployment:
        name, aws = self.found.wanted.plan.name, self.aws
        return self.found.record or Deployment(
            name=name, scope=aws.scope, account=aws.account, region=aws.region
        )

    def _keep_or_forget(self, record: Deployment) -> None:
        """A record of nothing is no record; the file knows best what was begun."""
        record = records.load(record.scope, record.region, record.name) or record
        if record.resources:
            show_left(record, self.account, self.again)
        else:
            records.remove(record)
            say("Nothing was created.")

    def _warm_start(self, work: Work, begun: float) -> WarmStart | None:
        """What the log of the start just waited for says of a warm one, which comes with mounted
        weights only; ``begun`` is when this deploy was, in epoch seconds."""
        change = self.found.change
        if not (self.wait and change in ("create", "update") and self.found.wanted.plan.mounts):
            return None
        live = endpoints.describe(self.aws, work.record.name)
        since = live.created if live and change == "create" else begun
        try:
            return warm_start_in([event.raw for event in work.tail(since).drain()])
        except PeagleError:
            return None  # It is in service; that its log cannot be read just now is no matter.

    def _report(self, record: Deployment, proved: bool, warm: WarmStart | None) -> None:
        document = status.document(self.aws, record, endpoints.describe(self.aws, record.name))
        document["changed"] = self.found.change in ("create", "update")
        document["warm_start"] = warm.document() if warm else None
        if self.as_json:
            print_json(document)
        elif self.wait and proved:
            print_calls(document, self.found, self.account)
        elif not self.wait:
            say(f"Asked for. To wait and prove: {self.again}")


def explain(log: Sequence[str]) -> tuple[str, str]:
    """Why an engine ended, as the local room reads it from a log."""
    crash = find_crash(log)
    return crash.line, crash.fix


def show_and_refuse(found: Preflight, account: Account) -> None:
    """Plan, findings and change; raise Refused for the first error."""
    show_plan(found, account)
    settled = SETTLED_HERE | (_ABOUT_IMAGES if account.sandbox else frozenset())
    planned = [f for f in found.wanted.plan.findings if f.code not in settled]
    looked = (in_account(finding, account) for finding in found.findings)
    _refuse((*planned, *looked), show=True)


def _refuse(findings: tuple[Finding, ...], show: bool = False) -> None:
    if show or errors(findings):
        refuse_errors(findings)


def refuse_unknown_price(plan: Plan, accepted: bool) -> None:
    """Raise Refused for a plan of which nobody knows what it costs, unless that is accepted."""
    if plan.price_per_hour_usd is None and not accepted:
        raise Refused(
            f"the price of {plan.instance_type} in {plan.region} is not known",
            "look it up, then say --accept-unknown-price",
        )


def _ask(found: Preflight) -> None:
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask on", "read the plan above, then add --yes")
    words = {"create": "Deploy this?", "update": "Update the endpoint to this?"}
    if not click.confirm(words[found.change], err=True):
        raise UserError("not deployed", "nothing was changed")
