"""A catalogue in which a drafter has the acceptance that a bench measured on the user's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peagle.bench.acceptance import FEW_DRAFTS, AcceptanceResult
from peagle.bench.imposed import rates_of, read_acceptance
from peagle.catalog.find import find_pair, pair_name
from peagle.catalog.schema import Catalog, Drafter, Target, TextAcceptance
from peagle.errors import UserError
from peagle.render.requests import tag_value


def with_text_acceptance(
    catalog: Catalog, pair: str, file: Path, domain: str | None = None
) -> Catalog:
    """The catalogue with the acceptance in ``file``, of one domain or of all, for the drafter of
    ``pair`` that was measured.

    Raises NotFound for an unknown pair, and UserError for a file that cannot be read, of another
    pair, of a stand-in, of an imposed acceptance, or with too few drafts.
    """
    measured = read_acceptance(file)
    target = find_pair(catalog, pair).target
    drafter = _drafter(catalog, target, pair, measured, file)
    rates = rates_of(measured, measured.k, domain)
    chosen = next((one for one in measured.domains if one.domain == domain), measured.total)
    why = ""
    if chosen.acceptance.basis != "measured":
        why = "its acceptance was imposed"
    elif measured.server.stand_in:
        why = f"{measured.server.stand_in} was measured in place of the target"
    elif not chosen.is_reliable:
        why = f"{chosen.acceptance.drafts} drafts are too few for a mean: {FEW_DRAFTS} are needed"
    if why:
        raise UserError(f"{file} cannot be used: {why}", "measure more of the text", "acceptance")
    text = f"{Path(measured.file).name}, {chosen.domain}" if domain else Path(measured.file).name
    source = f"{chosen.acceptance.drafts:,} drafts on {text}, {measured.started[:10]}"
    lengths = tuple(
        TextAcceptance(k=k, acceptance_length=round(1 + sum(rates[:k]), 3), source=source)
        for k in range(1, measured.k + 1)
    )
    changed = drafter.model_copy(update={"on_text": lengths})
    drafters = tuple(changed if one is drafter else one for one in target.drafters)
    replaced = target.model_copy(update={"drafters": drafters})
    return replace(catalog, targets={**catalog.targets, target.id: replaced})


def _drafter(
    catalog: Catalog, target: Target, pair: str, measured: AcceptanceResult, file: Path
) -> Drafter:
    """The drafter that was measured: the one of the pair in the file, else the one that ``pair``
    names. Raises UserError for a file of another pair, and where neither is known."""
    of_file = measured.server.pair
    named = find_pair(catalog, pair).drafter if "+" in pair else None
    if of_file is not None:
        for drafter in target.drafters:
            full = pair_name(target, drafter)
            if of_file in (full, tag_value(full)) and named in (None, drafter):
                return drafter
        raise UserError(f"{file} is of {of_file}, not of {pair}", "use its own pair", "acceptance")
    if named is None:
        raise UserError(
            f"{file} does not name the drafter that was measured",
            f"name it: {target.short_name}+DRAFTER",
            "acceptance",
        )
    return named
