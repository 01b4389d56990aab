"""Facts of a plan, one line each.

Price, speculation, scaling, observability, proof, licences, pins, what the company prescribes.
"""

from __future__ import annotations

from peagle.cli.output.answer import method_name
from peagle.planning import Plan
from peagle.planning.company import Company
from peagle.planning.observe import capture_text, observability_text
from peagle.planning.plan import Speculation, price_origin
from peagle.proof import MIN_DRAFTS
from peagle.text import format_price


def price_text(plan: Plan) -> str:
    """The price per hour, day and month of 730 hours."""
    words = format_price(plan.price_per_hour_usd, month=True)
    if plan.price_per_hour_usd is None:
        return words
    return f"{words} ({price_origin(plan)})"


def speculation_text(speculation: Speculation | None) -> str:
    """The method's common name, and K."""
    if speculation is None:
        return "none"
    how = f" ({speculation.method} with parallel_drafting)" if speculation.parallel_drafting else ""
    text = f"{method_name(speculation)}{how}, K={speculation.k}"
    floor = speculation.acceptance_floor
    if floor is None:
        return text
    origin = ", to break even" if speculation.floor_source == "break-even" else ""
    return f"{text}; deploy passes at a measured acceptance length of at least {floor:g}{origin}"


def scaling_text(plan: Plan) -> dict[str, str]:
    """The bounds of automatic scaling with their prices; empty without scaling."""
    if plan.scaling is None:
        return {}
    return {"scaling": plan.scaling.priced_text(plan.price_per_hour_usd, plan.instance_count)}


def observability_facts(plan: Plan) -> dict[str, str]:
    """Dashboard, alarms and log, and what is captured; empty without."""
    capture = plan.observe.capture if plan.observe else None
    texts = {
        "observe": observability_text(plan),
        "capture": capture_text(capture) if capture else "",
    }
    return {name: text for name, text in texts.items() if text}


def proof_text(plan: Plan) -> str:
    """How deploy proves the plan."""
    if plan.speculation is None:
        return "an answer: there is no speculation to prove"
    several, one = plan.engines > 1, "copy" if plan.copies else "instance"
    where = "the engine's counters" if plan.proof.source == "counters" else "the endpoint's log"
    if several:
        where = f"the log stream of each {one}"
    return f"at least {MIN_DRAFTS} drafts{f' of each {one}' if several else ''}, from {where}"


def licences_text(plan: Plan) -> str:
    """The licences of target and drafter."""
    target, drafter = f"target {plan.target.licence or 'unknown'}", plan.drafter
    if drafter is None or not drafter.weights:
        return target
    return f"{target}, drafter {drafter.licence or 'unknown'}"


def pinned_text(plan: Plan) -> dict[str, str]:
    """What the plan pins of the weights and of compiled code; empty where nothing is mounted."""
    pins = plan.pins
    warm = f"archives with sha256 {', '.join(pins.warm)}" if pins.warm else ""
    facts = {
        "manifest": f"sha256 {pins.weights}" if pins.weights else "",
        "warm start": "any archive next to the weights" if pins.any_warm else warm,
    }
    return {name: text for name, text in facts.items() if text}


def company_facts(company: Company) -> dict[str, str]:
    """Facts by name, without those that are not set."""
    network = [
        f"VPC: {', '.join(company.subnets)}; {', '.join(company.security_groups)}"
        if company.in_vpc
        else "",
        "isolated" if company.network_isolation else "",
    ]
    facts = {
        "network": ", ".join(filter(None, network)),
        "KMS key": company.kms_key or "",
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(company.tags.items())),
        "boundary": company.permissions_boundary or "",
    }
    return {name: text for name, text in facts.items() if text}
