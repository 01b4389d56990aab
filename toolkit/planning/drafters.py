"""Which drafter: the pair's, the one the user named, the user's own head, a fallback, or none.

A pair names the kind of drafter, ``--drafter`` may name its weights: ``gpt-oss-20b+eagle3`` with
``--drafter s3://bucket/head/`` is the user's own head, run as the catalogue's EAGLE-3 head is.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.catalog import find_drafter, find_pair, pair_name
from toolkit.catalog.models import Catalog, Drafter, Target
from toolkit.errors import NotFound, UserError
from toolkit.findings import warning
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.models import Options
from toolkit.planning.own_heads import is_location, own_head, split_revision


@dataclass(frozen=True)
class Chosen:
    """The target and what drafts for it. ``own`` is where the user's own head lies.

    ``usual`` is whether this is what the bare target gives; it decides the endpoint's name.
    """

    target: Target
    drafter: Drafter | None
    own: str | None = None
    usual: bool = True

    @property
    def name(self) -> str:
        """The pair in full: ``target+drafter``, or the target alone."""
        own = f"{self.target.id}+{self.own}"
        return own if self.own is not None else pair_name(self.target, self.drafter)


def choose_drafter(options: Options, catalog: Catalog) -> Choice[Chosen]:
    """The pair to plan. Raises NotFound and UserError for what cannot be meant."""
    _refuse_contradictions(options)
    pair = find_pair(catalog, options.pair)
    target, named = pair.target, pair.drafter if "+" in options.pair else None
    if not options.speculation:
        return Choice(Chosen(target, None, usual=False))
    if options.drafter is None:
        return _from_catalogue(target, named)
    name, revision = split_revision(options.drafter)
    drafter = _known(target, name)
    if drafter is None:
        return _own(options, options.drafter, target, named, catalog)
    if named not in (None, drafter):
        raise UserError(
            f"{options.pair} and --drafter {options.drafter} name two drafters", "name one of them"
        )
    if revision is not None:
        drafter = drafter.model_copy(update={"revision": revision})
    return _from_catalogue(target, drafter)


def _refuse_contradictions(options: Options) -> None:
    for given, flag in ((options.drafter, "--drafter"), (options.k, "--k")):
        if given is not None and not options.speculation:
            raise UserError(
                f"{flag} and --no-speculation contradict each other", "give one of the two"
            )


def _known(target: Target, name: str) -> Drafter | None:
    try:
        return find_drafter(target, name)
    except NotFound:
        if is_location(name):
            return None
        raise


def _from_catalogue(target: Target, named: Drafter | None) -> Choice[Chosen]:
    """The drafter that was named, else the usual one; or what stands in for it."""
    drafter = named or find_drafter(target, target.default_drafter)
    usual = drafter.name == target.default_drafter
    if not drafter.public:
        return _stand_in(target, drafter, usual)
    choice = Chosen(target, drafter, usual=usual)
    if named is not None:
        return Choice(choice)
    use = f", for {drafter.use}" if drafter.use else ""
    because = f"the catalogue's choice for {target.id}{use}"
    return chosen(choice, "drafter", because, shown=drafter.name)


def _stand_in(target: Target, drafter: Drafter, usual: bool) -> Choice[Chosen]:
    """What drafts while the weights of ``drafter`` are not public."""
    fix = "give your own with --drafter s3://..., a Hugging Face id, or a folder"
    if drafter.fallback is None:
        raise UserError(f"{drafter.title} is not public", fix)
    stand_in = find_drafter(target, drafter.fallback)
    message = f"{drafter.title} is not public, so {stand_in.title} drafts instead"
    finding = warning("head-not-public", "drafter", message, fix)
    return Choice(Chosen(target, stand_in, usual=usual), findings=(finding,))


def _own(
    options: Options, location: str, target: Target, named: Drafter | None, catalog: Catalog
) -> Choice[Chosen]:
    usual = find_drafter(target, target.default_drafter)
    eagle = [drafter for drafter in (usual, *target.drafters) if drafter.method == "eagle3"]
    kind = named or next(iter(eagle), None)
    if kind is None or kind.method != "eagle3":
        raise UserError(
            f"{location} cannot draft as {kind.title if kind else 'nothing'}: it is not a head",
            f"name the pair as {target.short_name}, or with an EAGLE-3 or P-EAGLE drafter",
        )
    head = own_head(location, options, target, kind, catalog)
    where, _ = split_revision(location)
    # A head for a pair whose usual head is not public takes that head's place.
    taken = kind is usual and not usual.public
    return Choice(Chosen(target, head.value, where, taken), head.reasons, head.findings)
