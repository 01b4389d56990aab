"""Selects the drafter: the pair's, the user's, the user's own head, a fallback, or none.

A pair names the kind of drafter; ``--drafter`` may name its weights: ``gpt-oss-20b+eagle3`` with
``--drafter s3://bucket/head/`` is the user's own head, run like the catalogue's EAGLE-3 head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from peagle.case import CaseOptions, Checkpoints, build_case
from peagle.catalog import find_drafter, find_pair, pair_name
from peagle.catalog.find import same_sizes
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.checkpoints.entries import drafter_from_checkpoint, own_drafter
from peagle.checkpoints.models import is_hub_id, is_location, split_revision
from peagle.checks import check
from peagle.checks.rules.head_pairing import OWN_HEAD, head_not_for_target, replaced_by
from peagle.errors import Fix, NotFound, OptionsConflict, UserError
from peagle.findings import note
from peagle.options import Options
from peagle.planning.load import choose_length, choose_workload
from peagle.planning.plan import Decision, Reason, decide
from peagle.s3uri import lower_scheme
from peagle.vllm.defaults import method_title

NO_HEAD = "no-head"
"""The code of the findings about a target for which no head is known."""

NOT_READ = "head-not-read"
"""The code of the finding that the head was not read."""


@dataclass(frozen=True)
class SelectedPair:
    """The target and its drafter. ``own`` is the location of the user's own head.

    ``is_default``: this is the target's default pair, so the endpoint's name has no drafter.
    """

    target: Target
    drafter: Drafter | None
    own: str | None = None
    is_default: bool = True

    @property
    def name(self) -> str:
        """The pair in full: ``target+drafter``, or the target alone."""
        if self.own is not None:
            return f"{self.target.id}+{self.own}"
        return pair_name(self.target, self.drafter)


def choose_drafter(options: Options, catalog: Catalog) -> Decision[SelectedPair]:
    """The pair to plan: the named drafter, else the default one, or that for a longer context, or
    the fallback of one whose weights are not public. Raises NotFound and UserError."""
    pair = find_pair(catalog, options.pair)
    target, named = pair.target, pair.drafter if "+" in options.pair else None
    if not options.speculation:
        return Decision(SelectedPair(target, None, is_default=False))
    if options.drafter is not None:
        name, revision = split_revision(options.drafter)
        try:
            drafter = find_drafter(target, name)
        except NotFound:
            if is_location(name):
                return _own_head(options, target, named, catalog)
            raise
        if named not in (None, drafter):
            raise OptionsConflict(
                f"{options.pair} and --drafter {options.drafter} specify different drafters",
                "use one of them",
            )
        named = drafter
        if revision is not None:
            named = drafter.model_copy(update={"revision": revision})
    if named is None and target.default_drafter is None:
        return _without_head(options, target, catalog)
    drafter = named or find_drafter(target, target.default_drafter or "")
    choice = SelectedPair(target, drafter, is_default=drafter.name == target.default_drafter)
    if not drafter.public:
        if drafter.fallback is None:
            raise UserError(f"{drafter.title} is not public", OWN_HEAD, code="head-not-public")
        fallback = find_drafter(target, drafter.fallback)
        findings = (replaced_by(drafter, fallback),)
        return Decision(replace(choice, drafter=fallback), findings=findings)
    if named is not None:
        return Decision(choice)
    length = choose_length(options, target).value
    size = choose_workload(options, target, length).value
    if drafter.long_context is not None and is_for_shorter(drafter, length, size.tokens):
        longer = find_drafter(target, drafter.long_context.drafter)
        because = f"{drafter.name} is for shorter contexts or requests"
        return decide(replace(choice, drafter=longer), "drafter", because, longer.name)
    because = f"the catalogue's default for {target.id}"
    because += f", for {drafter.use}" if drafter.use else ""
    return decide(choice, "drafter", because, drafter.name)


def is_for_shorter(drafter: Drafter, max_model_len: int, request_tokens: int) -> bool:
    """Whether the target has another drafter for this context or this size of requests."""
    longer = drafter.long_context
    return longer is not None and (
        max_model_len > longer.max_model_len or request_tokens >= longer.request_tokens
    )


def _without_head(options: Options, target: Target, catalog: Catalog) -> Decision[SelectedPair]:
    """The target alone: no head is known for it. Findings say what its owner can do: n-gram lookup,
    the public head of the only target that it may be a copy of, or training."""
    plan, because = ("peagle", "plan"), f"no EAGLE-3 or P-EAGLE head is known for {target.id}"
    ngram = Fix("n-gram lookup needs no head", (*plan, f"{options.pair}+ngram"))
    findings = [
        note(NO_HEAD, "drafter", f"plans of {target.id} do not speculate: {because}", ngram)
    ]
    read = options.target_checkpoint
    named = str(read.config.get("_name_or_path") or "") if read else ""
    heads = []
    for other in catalog.targets.values():
        if other.id != target.id and other.default_drafter and same_sizes(target, other):
            head = find_drafter(other, other.default_drafter)
            if head.public and is_hub_id(head.weights or ""):
                heads.append((other, str(head.weights)))
    bases = [base for base in heads if named in (base[0].id, base[0].weights)] or heads
    if len(bases) == 1:
        base, weights = bases[0]
        message = f"{target.id} has the sizes of {base.id}: try the head of that model"
        command = (*plan, options.pair, "--drafter", weights, "--online")
        try_it = Fix("measure its acceptance before you rely on it", command)
        findings.append(note(NO_HEAD, "drafter", message, try_it))
    train = Fix(
        "train a head for it, as docs/no-head.md shows, and plan with it",
        (*plan, options.pair, "--drafter", "./head"),
    )
    message = f"a head trained for {target.id} has the best acceptance"
    findings.append(note(NO_HEAD, "drafter", message, train))
    decided = {"drafter": "none", "speculation": "no"}
    reasons = [Reason(what=what, value=v, because=because) for what, v in decided.items()]
    return Decision(SelectedPair(target, None), tuple(reasons), tuple(findings))


def _own_head(
    options: Options, target: Target, named: Drafter | None, catalog: Catalog
) -> Decision[SelectedPair]:
    """The user's own head as a drafter of the kind that the pair names: else the target's default
    one or first that is a head, or where the catalogue has no drafters, what the head itself says.

    A head whose checkpoint the options hold is checked; an unread one gets a note.
    """
    location, read = lower_scheme(options.drafter or ""), options.drafter_checkpoint
    default = find_drafter(target, target.default_drafter) if target.default_drafter else None
    drafters = [*([default] if default else []), *target.drafters]
    kind = named or next((drafter for drafter in drafters if drafter.method == "eagle3"), None)
    if kind is None and not drafters and read is not None:
        kind = drafter_from_checkpoint(read)
    if kind is None and not target.drafters:
        raise UserError(
            f"{location} was not read, and {target.id} has no drafter in the catalogue: the head's "
            "method is unknown",
            "use a folder, or plan with --online to read a head on the Hub or in S3",
            code="head-method-unknown",
        )
    if kind is None or kind.method != "eagle3":
        raise UserError(
            f"{location}: {kind.title if kind else target.title} does not use a draft head",
            f"use the pair {target.short_name}, or one with an EAGLE-3 or P-EAGLE drafter",
            code="drafts-without-head",
        )
    head, target_read = own_drafter(location, target, kind, read), options.target_checkpoint
    checkpoints = Checkpoints(target_read, read, own_target=target_read is not None)
    case = build_case(catalog, target, head, CaseOptions(vllm=options.vllm), checkpoints)
    if read is None:
        called = method_title(kind.method, kind.parallel_drafting)
        message = f"{location} was not read; assuming a head like {kind.title} ({called})"
        fix = Fix("read and check it", ("peagle", "check", options.pair, "--drafter", location))
        unread = note(NOT_READ, "drafter", message, fix)
        findings = (*check(case, only={head_not_for_target.code}), unread)
    else:
        findings = check(case, about="head")
    # A head for a pair whose default head is not public replaces that head.
    is_default = default is not None and kind is default and not default.public
    pair = SelectedPair(target, head, split_revision(location)[0], is_default)
    return Decision(pair, findings=findings)
