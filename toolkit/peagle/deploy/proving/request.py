"""What to prove of an endpoint: by its plan, or by the catalogue for the pair in its tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peagle import proof
from peagle.catalog.find import pair_name
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.checkpoints.entries import PROOF_PROMPTS
from peagle.deploy.served import Served
from peagle.planning.plan import FloorSource, Plan
from peagle.planning.runtime import proof_source
from peagle.planning.speculation import floor_of
from peagle.proof import MIN_DRAFTS, Conversations
from peagle.protocol import request_body
from peagle.render.requests import tag_value
from peagle.vllm.environment import settings_in
from peagle.vllm.prefix_caching import caches_prefixes

DEFAULT_PROMPTS = (*PROOF_PROMPTS[:2], PROOF_PROMPTS[3])
"""For an endpoint whose pair the catalogue does not have: three of those for a target without
prompts of its own, sent as chats."""

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class ProofRequest:
    """What to prove of the endpoint ``name``; the members are those of ``ProofPlan`` and ``Proof``.

    ``pair`` completes the commands of fixes; it is the part that the catalogue has. The floor does
    not apply to the sandbox's stand-in, whose acceptance says nothing about the pair, unless the
    user set it (``floor_source``).
    ``revision_started`` is when the revision in service was requested, in epoch seconds, where it
    is known: log streams that are older do not count. ``variant``: prove only that one.
    ``two_turns``: prefix caching is on, so the prompts are sent as conversations.
    """

    name: str
    prompts: tuple[str, ...]
    chat: bool
    max_tokens: int
    speculates: bool
    floor: float | None
    source: proof.Source
    pair: str = ""
    min_drafts: int = MIN_DRAFTS
    floor_source: FloorSource | None = None
    revision_started: float = 0.0
    variant: str | None = None
    two_turns: bool = False

    @property
    def target(self) -> dict[str, str]:
        """The parameters of an invocation of the variant."""
        return {"TargetVariant": self.variant} if self.variant else {}

    def body(self) -> dict[str, Any]:
        """The first prompt alone."""
        return request_body(self.prompts[0], chat=self.chat, max_tokens=self.max_tokens)

    def conversations(self, ask: Callable[[dict[str, Any]], Any]) -> Conversations:
        """The prompts for one engine, which ``ask`` sends to it."""
        settings: dict[str, Any] = {"chat": self.chat, "max_tokens": self.max_tokens}
        return Conversations(self.prompts, ask, **settings, two_turns=self.two_turns)


def request_of_plan(plan: Plan, name: str) -> ProofRequest:
    """The proof that ``plan`` asks for, of the endpoint ``name``."""
    settings, speculation = plan.proof, plan.speculation
    return ProofRequest(
        name=name,
        prompts=settings.prompts,
        chat=settings.chat,
        max_tokens=settings.max_tokens,
        speculates=speculation is not None,
        floor=speculation.acceptance_floor if speculation else None,
        source=settings.source,
        pair=proof.pair_in_catalogue(plan.target, plan.drafter),
        floor_source=speculation.floor_source if speculation else None,
        two_turns=caches_prefixes(settings_in(plan.environment)),
    )


def request_of_served(served: Served, catalog: Catalog) -> ProofRequest:
    """The proof of an endpoint without a plan: with the catalogue's prompts and floor for its pair,
    else with default prompts and no floor."""
    target, drafter = find_pair_of_tag(served.pair, catalog)
    settings = target.proof if target else None
    floor = floor_of(drafter, served.k) if drafter and served.k else None
    return ProofRequest(
        name=served.name,
        prompts=settings.prompts if settings else DEFAULT_PROMPTS,
        chat=settings.chat if settings else True,
        max_tokens=settings.max_tokens if settings else DEFAULT_MAX_TOKENS,
        speculates=served.k > 0,
        floor=floor,
        source=proof_source(served.image, catalog.runtimes),
        pair=proof.pair_in_catalogue(target, drafter) if served.pair else "",
        floor_source=None if floor is None else "catalogue",
        two_turns=caches_prefixes(served.settings),
    )


def request_of_model(model: str, name: str, catalog: Catalog) -> ProofRequest:
    """The proof of a server of which only the name of its model is known: with the prompts of the
    target of that name, else with default prompts. Any accepted draft passes."""
    target = catalog.targets.get(model)
    return ProofRequest(
        name=name,
        prompts=target.proof.prompts if target else DEFAULT_PROMPTS,
        chat=target.proof.chat if target else True,
        max_tokens=target.proof.max_tokens if target else DEFAULT_MAX_TOKENS,
        speculates=True,
        floor=None,
        source="counters",
        pair=model,
        two_turns=True,
    )


def find_pair_of_tag(tagged: str, catalog: Catalog) -> tuple[Target | None, Drafter | None]:
    """The target and drafter of a pair, as the value of a tag; a target alone where the drafter is
    the user's own."""
    for target_id in catalog.targets:
        value = tag_value(target_id)
        if tagged != value and not tagged.startswith(f"{value}+"):
            continue
        target = catalog.targets[target_id]
        for drafter in target.drafters:
            if tag_value(pair_name(target, drafter)) == tagged:
                return target, drafter
        return target, None
    return None, None
