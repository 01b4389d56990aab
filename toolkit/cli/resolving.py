"""From PAIR|PLAN and the options that were given to a Plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from toolkit.catalog import load_catalog
from toolkit.catalog.models import Catalog
from toolkit.cli.checkpoints import AwsOf, own_head
from toolkit.errors import NotFound, UserError
from toolkit.planning import Options, Plan, make_plan
from toolkit.rendering import read_plan
from toolkit.rendering.image_names import is_own_image


def catalog_of(ctx: click.Context) -> Path | None:
    """The user's own catalogue folder, from ``peagle --catalog``."""
    folder = ctx.find_root().obj
    return Path(folder) if folder else None


def names_own_image(plan: Plan) -> bool:
    """Whether the plan of the running command names an image of the user's, and not AWS's as the
    bundled catalogue or the user's own has it."""
    catalog = load_catalog(catalog_of(click.get_current_context()))
    return is_own_image(plan, catalog.runtimes)


def is_plan_file(pair: str) -> bool:
    """Whether PAIR|PLAN is a plan: pairs do not end in ``.json``."""
    return pair.endswith(".json")


def resolve_plan(
    pair: str,
    chosen: dict[str, Any],
    own_catalog: Path | None,
    priced: Callable[[Catalog], Catalog] = lambda catalog: catalog,
    aws_of: AwsOf | None = None,
) -> Plan:
    """The plan in the file ``pair``, or the plan for that pair and those options.

    ``priced`` may put other prices into the catalogue before it is planned with. With ``aws_of``
    the user's own head is read wherever it lies, else only from a folder.
    """
    given = {n: value for n, value in chosen.items() if value is not None and value is not False}
    if is_plan_file(pair):
        return _from_file(Path(pair), given)
    if "drafter" in given:
        given |= own_head(given["drafter"], aws_of)
    speculation = not given.pop("no_speculation", False)
    options = Options(pair=pair, speculation=speculation, **given)
    catalog = priced(load_catalog(own_catalog))
    try:
        return make_plan(options, catalog)
    except NotFound as error:
        hint = _meant(options.drafter) if "drafter" in error.message else ""
        raise NotFound(error.message, hint or error.fix) from None


def _meant(drafter: str | None) -> str:
    """What a word after ``--drafter`` that is no drafter may have been meant for."""
    if drafter == "hf":
        return "leave it out: the pair's own head comes from the hub; hf is for check and fit"
    if drafter is not None and Path(drafter).is_dir():
        return f"for the folder of that name write --drafter ./{drafter}"
    return ""


def _from_file(path: Path, given: dict[str, Any]) -> Plan:
    plan = read_plan(path)
    region = given.pop("region", plan.region)
    if given or region != plan.region:
        name = next(iter(given), "region").replace("_", "-")
        raise UserError(
            f"{path} is a whole plan, so --{name} has no place",
            "make a new plan with `peagle plan PAIR ... --out FILE`",
        )
    return plan
