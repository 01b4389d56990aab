"""Options of a compared plan: those of the deployed plan, overridden by the user's.

So the two variants differ only in what the user asked for. The end of the deployment (``ttl`` and
``budget``) stays the deployment's: a plan without a limit keeps it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from peagle.case import DEFAULT_AMI
from peagle.catalog.find import find_pair
from peagle.catalog.schema import Catalog
from peagle.checks.facts import is_aws_image
from peagle.deploy.revisions import deploy_command
from peagle.deploy.served import Served
from peagle.errors import NotFound, UserError
from peagle.planning import Plan

_LIMIT = {"ttl", "budget", "no_limit"}
_INSTANCES = {"instance_type", "instance_count"}
_WARM = {"warm_sha256", "allow_unpinned_warm"}
_TARGET_OPTIONS = {
    "model_source", "weights_by", "baked_weights", "image", "vllm", "max_model_len", "settings",
    "environment", "startup_timeout", "download_timeout", *_WARM,
}  # fmt: skip
"""Options that a different target does not share."""

_SPECULATION_OPTIONS = {"drafter", "k", "no_speculation"}
_MERGED = ("settings", "environment", "tags")
_REPLACES = {
    "image": {"vllm", "baked_weights"},
    "vllm": {"image", "baked_weights"},
    "baked_weights": {"model_source", "weights_by"},
    "warm_sha256": _WARM,
    "allow_unpinned_warm": _WARM,
    "rollout": {"rollout_step", "baking_time"},
    "scale_to_zero": {"min_instances"},
    "min_instances": {"scale_to_zero"},
    "max_price_per_hour": _INSTANCES,
    "verdict": _INSTANCES,
}
"""An option that the user states -> options of the deployment that it replaces."""


def deployed_words(plan: Plan) -> tuple[str, ...]:
    """PAIR and the options of ``peagle plan`` that reproduce the plan, with the image if the user
    chose that."""
    return deploy_command(plan)[2:]


def options_beside(
    plan: Plan,
    deployed: tuple[str, dict[str, Any]],
    asked: tuple[str, dict[str, Any]],
    catalog: Catalog,
) -> tuple[str, dict[str, Any]]:
    """The pair and the options of the plan to compare with the deployed ``plan``: ``deployed`` are
    those of ``deployed_words``, ``asked`` those that the user states."""
    (deployed_pair, options), (pair, own) = deployed, asked
    options = {
        **options,
        "workload": plan.workload,
        "prompt_tokens": plan.prompt_tokens,
        "cached_prompt_tokens": plan.cached_prompt_tokens or None,
        "shared_prompt_tokens": plan.shared_prompt_tokens or None,
        "output_tokens": plan.output_tokens,
        "slo": plan.slo,
        "baked_weights": plan.target.weights.kind == "image",
    }
    dropped = set(_LIMIT)
    for option in own:
        dropped |= _REPLACES.get(option, set())
    target, drafter = _stated(pair, own.get("drafter"), catalog)
    names = {plan.target.id, plan.target.weights.location}
    if target not in names:
        dropped |= _TARGET_OPTIONS | _SPECULATION_OPTIONS
    elif {"no_speculation", "verdict"} & own.keys():
        dropped |= _SPECULATION_OPTIONS
    elif drafter is not None:
        same = plan.drafter is not None and drafter in {plan.drafter.name, plan.drafter.id}
        dropped |= {"drafter", "no_speculation"} if same else _SPECULATION_OPTIONS
    elif plan.speculation is not None:
        pair = deployed_pair
    elif "k" in own:
        dropped |= {"no_speculation"}
    given = {name: value for name, value in options.items() if name not in dropped}
    merged = {
        name: {**given.get(name, {}), **own[name]}
        for name in _MERGED
        if isinstance(own.get(name), dict)
    }
    return pair, {**given, **own, **merged}


def _stated(pair: str, drafter: str | None, catalog: Catalog) -> tuple[str, str | None]:
    """The target's id, and the drafter's name, that the user states; ``None`` where none is. What
    the catalogue does not have stays as typed."""
    name, _, typed = pair.partition("+")
    head = drafter or typed or None
    with suppress(NotFound, UserError):
        name = find_pair(catalog, name).target.id
        if head is not None:
            found = find_pair(catalog, f"{name}+{head}").drafter
            head = found.name if found else head
    return name, head


def options_of_served(served: Served, catalog: Catalog) -> dict[str, Any]:
    """The options of what serves, as far as the account's descriptions show them."""
    concurrency = served.settings.get("max-num-seqs")
    found: dict[str, Any] = {
        "name": served.name,
        "region": served.region,
        "instance_type": served.instance_type,
        "instance_count": served.configured_count or served.instance_count,
        "copies": 1 if served.copies is None else served.per_instance,
        "max_model_len": served.max_model_len,
        "concurrency": concurrency if isinstance(concurrency, int) else None,
        "ami": served.ami or DEFAULT_AMI,
        "subnets": served.subnets,
        "security_groups": served.security_groups,
        "network_isolation": served.network_isolation,
        "kms_key": served.kms_key,
    }
    by_aws = is_aws_image(served.image, catalog.runtimes)
    return found | ({"vllm": served.vllm} if by_aws else {"image": served.image})
