"""Acceptance from a file of ``peagle bench --acceptance``: in a catalogue, and imposed on engines.

vLLM's synthetic sampler accepts drafts at given rates, whatever the drafter proposes. So the speed
of a pair with the acceptance of the user's own text can be measured with any prompts, and even with
random weights. The rates are of all drafts (not of those accepted so far), one for each position.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from peagle.bench.acceptance import (
    ACCEPTANCE_FORMAT,
    FEW_DRAFTS,
    AcceptanceResult,
    DomainAcceptance,
)
from peagle.catalog.find import find_pair, pair_name
from peagle.catalog.schema import Catalog, Drafter, Target, TextAcceptance
from peagle.errors import Fix, UserError, nearest
from peagle.planning.plan import Plan
from peagle.planning.speculation import with_speculation, without_floor
from peagle.render.requests import tag_value
from peagle.store import read_record

_FIX = Fix("measure it again", ("peagle", "bench", "NAME", "--acceptance", "PROMPTS.jsonl"))


def read_acceptance(file: Path) -> AcceptanceResult:
    """The result in ``file``.

    Raises UserError for a file that is missing, of another format, or with impossible numbers: a
    rate below 0 or above 1, or above that of the position before, or a length above K + 1.
    """
    try:
        found = read_record(file, AcceptanceResult, _FIX)
    except UserError as error:  # whose code is about the toolkit's own records
        raise UserError(error.message, _FIX, "acceptance-file") from error
    if found is None:
        raise UserError(f"{file} does not exist", _FIX, "acceptance-file")
    if found.format != ACCEPTANCE_FORMAT:
        raise _wrong(file, f"its format is {found.format}, not {ACCEPTANCE_FORMAT}")
    try:
        json.dumps(found.document(), allow_nan=False)
    except ValueError:  # a text such as "nan" is a number for pydantic
        raise _wrong(file, "a number is infinite or none") from None
    for one in (found.total, *found.domains):
        if why := _impossible(one, found.k):
            raise _wrong(file, f"{one.domain[:60]!r} {why}")
    return found


def _impossible(one: DomainAcceptance, k: int) -> str:
    """Why these numbers cannot have been measured; empty if they can."""
    rates, length = one.acceptance.per_position, one.acceptance.length
    if one.acceptance.drafts < 1:
        return "has no drafts"
    if not 1 <= k == len(rates):
        return f"has rates of {len(rates)} positions, and K is {k}"
    if not all(0 <= rate <= 1 for rate in rates):
        return "has a rate that is not between 0 and 1"
    if any(later > earlier for earlier, later in pairwise(rates)):
        return "has a rate above that of the position before"
    if not math.isclose(length, 1 + sum(rates), rel_tol=1e-3):
        return f"has a length of {length:.4g}, and its rates give {1 + sum(rates):.4g}"
    if not 1 <= one.interval.low <= length + 1e-6 <= one.interval.high + 2e-6 <= k + 1.001:
        return "has an interval that does not hold its length"
    return ""


def _wrong(file: Path, why: str) -> UserError:
    return UserError(f"{file} cannot be used: {why}", _FIX, "acceptance-file")


def rates_of(result: AcceptanceResult, k: int, domain: str | None = None) -> tuple[float, ...]:
    """The share of drafts accepted at each of the first ``k`` positions, of one domain or of all
    together.

    A smaller K than the measured one has the same rates at its positions. Raises UserError for a
    larger K, and for an unknown domain.
    """
    known = {one.domain: one for one in result.domains}
    if domain is not None and domain not in known:
        hint = nearest(domain, known) or f"known: {', '.join(known)}"
        raise UserError(f"the acceptance has no domain {domain!r}", hint, "acceptance-file")
    if k > result.k:
        raise UserError(
            f"acceptance was measured with K={result.k}: nothing is known of K={k}",
            f"measure acceptance with K={k}, or leave K={k} out",
            "acceptance-file",
        )
    chosen = result.total if domain is None else known[domain]
    return tuple(round(rate, 4) for rate in chosen.acceptance.per_position[:k])


def with_imposed_acceptance(plan: Plan, rates: tuple[float, ...]) -> Plan:
    """``plan`` with vLLM's synthetic sampler, which accepts drafts at these rates.

    Its answers are not the target's: an engine of it is for measurements only, and runs on a GPU:
    the CPU engine has no such sampler. Raises UserError for a plan without speculation or with
    another K.
    """
    speculation = without_floor(plan).speculation
    if speculation is None or speculation.k != len(rates):
        k = speculation.k if speculation else 0
        raise UserError(
            f"rates of {len(rates)} positions cannot be imposed on K={k}",
            "give a rate for each position",
            "acceptance-file",
        )
    settings = {
        **speculation.settings,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(rates),
    }
    return with_speculation(plan, speculation.model_copy(update={"settings": settings}))


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
