"""A plan for a pair, wherever its parts are: in the catalogue, in a folder, in S3 or on the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle.catalog.find import UNKNOWN_DRAFTER
from peagle.catalog.schema import Catalog
from peagle.checkpoints.contents import contents_of, files_below
from peagle.checkpoints.models import location_fix
from peagle.data import weights_folder
from peagle.errors import Fix, NotFound
from peagle.planning.options import Options
from peagle.planning.plan import Plan
from peagle.planning.planner import make_plan
from peagle.planning.runtime import DEFAULT_REGION
from peagle.planning.weights import local_weights, with_contents
from peagle.weights.layout import own_head
from peagle_serve.contract import is_s3_uri

if TYPE_CHECKING:
    from peagle.account import Account
    from peagle.aws.client import Aws
    from peagle.weights.layout import AwsOf


def plan_pair(
    pair: str,
    given: Mapping[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
    verdict: Path | None = None,
) -> Plan:
    """The plan for that pair and those fields of Options; drafter and K from the file ``verdict``,
    if there is one.

    With ``aws_of`` the user's own head is read from any location, else only from a folder. Raises
    NotFound and UserError for what the catalogue, the head or the verdict does not have.
    """
    given = dict(given)
    if "drafter" in given:
        given |= own_head(given["drafter"], aws_of)
        if aws_of and is_s3_uri(given["drafter"]):
            from peagle.weights.manifest import copied_pair  # imports boto3

            of_head = copied_pair(aws_of(), given["drafter"])
            given["drafter_checkpoint"] = replace(given["drafter_checkpoint"], pair=of_head)
    options = Options(pair=pair, **given)
    try:
        if verdict is not None:
            made = _planned_by_verdict(options, verdict, catalog)
        else:
            made = make_plan(options, catalog)
    except NotFound as error:
        fix = _drafter_fix(options.drafter) if error.code == UNKNOWN_DRAFTER else None
        raise NotFound(error.message, fix or error.remedy, error.code) from None
    return _of_these_files(made)


def _planned_by_verdict(options: Options, file: Path, catalog: Catalog) -> Plan:
    # Most plans need no verdict, whose models take 20 ms to import.
    from peagle.planning.by_verdict import plan_by_verdict
    from peagle.render.verdict_file import read_verdict

    return plan_by_verdict(options, read_verdict(file), file, catalog)


def _of_these_files(plan: Plan) -> Plan:
    """The plan with the hash of its folders of weights: equal files are at one prefix, whichever
    machine plans and whatever was deployed before. Without a folder, deploy reports it."""
    paths = [weights_folder(one.location) for one in local_weights(plan)]
    if not paths or not all(path.is_dir() for path in paths):
        return plan
    return with_contents(plan, contents_of(map(files_below, paths)))


def _drafter_fix(drafter: str | None) -> Fix | None:
    """What the user may have meant by an unknown drafter; ``None`` without a guess."""
    if drafter == "hf":
        return Fix("omit it: the pair's own head comes from the Hub; hf is for check and fit")
    return location_fix(drafter or "", "--drafter")


def plan_pair_online(
    account: Account,
    pair: str,
    given: Mapping[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
    verdict: Path | None = None,
) -> Plan:
    """``plan_pair`` with today's price, the Hub's commits, and findings about quota and weights.

    ``account`` has been started. Raises what ``plan_pair`` and reading raise; where AWS does not
    answer about prices and quotas, the catalogue's prices count, with a warning.
    """
    from peagle.deploy.preflight import plan_with_live_prices
    from peagle.weights.revisions import pin_revisions

    aws = account.connect(given.get("region") or DEFAULT_REGION)
    pinned = pin_revisions(catalog, plan_pair(pair, given, catalog, aws_of, verdict))
    given = {**given, **({"drafter": pinned.drafter} if pinned.drafter else {})}

    def planned(catalog: Catalog, reads_head: bool) -> Plan:
        reader = (lambda: aws) if reads_head else aws_of
        return plan_pair(pair, given, catalog, reader, verdict)

    head_in_s3 = is_s3_uri(given.get("drafter") or "")
    made = plan_with_live_prices(
        _for_optional_queries(account, aws), pinned.catalog, planned, head_in_s3
    )
    return pinned.add_to(made)


def plan_file_online(account: Account, plan: Plan, catalog: Catalog) -> Plan:
    """The plan of a file with today's price, the same findings and missing pins; nothing else
    changes."""
    from peagle.deploy.preflight import live_price_of_plan

    return live_price_of_plan(
        _for_optional_queries(account, account.connect(plan.region)), catalog, plan
    )


def _for_optional_queries(account: Account, aws: Aws) -> Aws:
    """Prices and quotas are optional, so AWS must answer soon; the sandbox may still be loading."""
    return aws if account.sandbox else aws.best_effort()
