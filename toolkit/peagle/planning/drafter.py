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
from peagle.checkpoints.models import Checkpoint, is_hub_id, is_location, split_revision
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

_READ_HEAD = "use a folder, or plan with --online to read a head on the Hub or in S3"


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
    """The pair to plan. Raises NotFound and UserError for impossible options."""
    for value, flag in ((options.drafter, "--drafter"), (options.k, "--k")):
        if value is not None and not options.speculation:
            raise OptionsConflict(
                f"{flag} cannot be combined with --no-speculation", "leave one of them out"
            )
    pair = find_pair(catalog, options.pair)
    target, named = pair.target, pair.drafter if "+" in options.pair else None
    if not options.speculation:
        return Decision(SelectedPair(target, None, is_default=False))
    if options.drafter is None:
        return _from_catalogue(target, named, options, catalog)
    name, revision = split_revision(options.drafter)
    drafter = _known(target, name)
    if drafter is None:
        return _own(options, lower_scheme(options.drafter), target, named, catalog)
    if named not in (None, drafter):
        raise OptionsConflict(
            f"{options.pair} and --drafter {options.drafter} specify different drafters",
            "use one of them",
        )
    if revision is not None:
        drafter = drafter.model_copy(update={"revision": revision})
    return _from_catalogue(target, drafter, options, catalog)


def _known(target: Target, name: str) -> Drafter | None:
    try:
        return find_drafter(target, name)
    except NotFound:
        if is_location(name):
            return None
        raise


def _from_catalogue(
    target: Target, named: Drafter | None, options: Options, catalog: Catalog
) -> Decision[SelectedPair]:
    """The named drafter, else the default one, or that for a longer context, or its fallback; none
    if the target has none."""
    if named is None and target.default_drafter is None:
        return _without_default(target, options, catalog)
    drafter = named or find_drafter(target, target.default_drafter or "")
    is_default = drafter.name == target.default_drafter
    if not drafter.public:
        return _fallback(target, drafter, is_default)
    choice = SelectedPair(target, drafter, is_default=is_default)
    if named is not None:
        return Decision(choice)
    length = choose_length(options, target).value
    size = choose_workload(options, target, length).value
    if is_for_shorter(drafter, length, size.prompt_tokens + size.output_tokens):
        assert drafter.long_context is not None
        longer = find_drafter(target, drafter.long_context.drafter)
        because = f"{drafter.name} is for shorter contexts or requests"
        return decide(replace(choice, drafter=longer), "drafter", because, shown=longer.name)
    use = f", for {drafter.use}" if drafter.use else ""
    because = f"the catalogue's default for {target.id}{use}"
    return decide(choice, "drafter", because, shown=drafter.name)


def is_for_shorter(drafter: Drafter, max_model_len: int, request_tokens: int) -> bool:
    """Whether the target has another drafter for this context or this size of requests."""
    longer = drafter.long_context
    return longer is not None and (
        max_model_len > longer.max_model_len or request_tokens >= longer.request_tokens
    )


def _without_default(target: Target, options: Options, catalog: Catalog) -> Decision[SelectedPair]:
    """The target alone: no head is known for it. Findings say what its owner can do."""
    pair = options.pair
    because = f"no EAGLE-3 or P-EAGLE head is known for {target.id}"
    ngram = Fix("n-gram lookup needs no head", ("peagle", "plan", f"{pair}+ngram"))
    train = Fix(
        "train a head for it, as docs/no-head.md shows, and plan with it",
        ("peagle", "plan", pair, "--drafter", "./head"),
    )
    findings = [
        note(NO_HEAD, "drafter", f"plans of {target.id} do not speculate: {because}", ngram)
    ]
    base = _base_of(target, options.target_checkpoint, catalog)
    if base is not None:
        head = find_drafter(base, base.default_drafter or "")
        message = f"{target.id} has the sizes of {base.id}: try the head of that model"
        try_it = Fix(
            "measure its acceptance before you rely on it",
            ("peagle", "plan", pair, "--drafter", str(head.weights), "--online"),
        )
        findings.append(note(NO_HEAD, "drafter", message, try_it))
    findings.append(
        note(NO_HEAD, "drafter", f"a head trained for {target.id} has the best acceptance", train)
    )
    reasons = tuple(
        Reason(what=what, value=value, because=because)
        for what, value in (("drafter", "none"), ("speculation", "no"))
    )
    return Decision(SelectedPair(target, None), reasons=reasons, findings=tuple(findings))


def _base_of(target: Target, read: Checkpoint | None, catalog: Catalog) -> Target | None:
    """The catalogue's target of which this one may be a fine-tuned copy, and that has a public
    head: named in config.json, else the only one of its class and sizes."""
    named = str(read.config.get("_name_or_path") or "") if read else ""
    alike = {
        other.id: other
        for other in catalog.targets.values()
        if other.id != target.id and _has_public_head(other) and same_sizes(target, other)
    }
    bases = [other for other in alike.values() if named in (other.id, other.weights)]
    candidates = bases or list(alike.values())
    return candidates[0] if len(candidates) == 1 else None


def _has_public_head(target: Target) -> bool:
    default = target.default_drafter
    head = find_drafter(target, default) if default else None
    return head is not None and head.public and is_hub_id(head.weights or "")


def _fallback(target: Target, drafter: Drafter, is_default: bool) -> Decision[SelectedPair]:
    """The fallback of a drafter whose weights are not public."""
    if drafter.fallback is None:
        raise UserError(f"{drafter.title} is not public", OWN_HEAD, code="head-not-public")
    fallback = find_drafter(target, drafter.fallback)
    finding = replaced_by(drafter, fallback)
    return Decision(SelectedPair(target, fallback, is_default=is_default), findings=(finding,))


def _own(
    options: Options, location: str, target: Target, named: Drafter | None, catalog: Catalog
) -> Decision[SelectedPair]:
    """The user's own head at ``location``, as a drafter of the kind that the pair names.

    A head whose checkpoint the options hold is checked; an unread one gets a note.
    """
    read = options.drafter_checkpoint
    default = find_drafter(target, target.default_drafter) if target.default_drafter else None
    kind = named or _kind_of_head(target, default, read)
    if kind is None and not target.drafters:
        message = f"{location} was not read, and {target.id} has no drafter in the catalogue"
        raise UserError(
            f"{message}: the head's method is unknown", _READ_HEAD, code="head-method-unknown"
        )
    if kind is None or kind.method != "eagle3":
        raise UserError(
            f"{location}: {kind.title if kind else target.title} does not use a draft head",
            f"use the pair {target.short_name}, or one with an EAGLE-3 or P-EAGLE drafter",
            code="drafts-without-head",
        )
    head = own_drafter(location, target, kind, read)
    version = CaseOptions(vllm=options.vllm)
    target_checkpoint = options.target_checkpoint
    checkpoints = Checkpoints(target_checkpoint, read, own_target=target_checkpoint is not None)
    case = build_case(catalog, target, head, version, checkpoints)
    if read is None:
        called = method_title(kind.method, kind.parallel_drafting)
        message = f"{location} was not read; assuming a head like {kind.title} ({called})"
        fix = Fix("read and check it", ("peagle", "check", options.pair, "--drafter", location))
        unread = note(NOT_READ, "drafter", message, fix)
        findings = (*check(case, only={head_not_for_target.code}), unread)
    else:
        findings = check(case, about="head")
    where, _ = split_revision(location)
    # A head for a pair whose default head is not public replaces that head.
    is_default = default is not None and kind is default and not default.public
    return Decision(SelectedPair(target, head, where, is_default), findings=findings)


def _kind_of_head(
    target: Target, default: Drafter | None, read: Checkpoint | None
) -> Drafter | None:
    """The target's drafter that is an EAGLE-3 or P-EAGLE head, the default one if it is; where the
    catalogue has no drafters, what the head itself says."""
    drafters = (*((default,) if default else ()), *target.drafters)
    if drafters or read is None:
        return next((drafter for drafter in drafters if drafter.method == "eagle3"), None)
    return drafter_from_checkpoint(read)
