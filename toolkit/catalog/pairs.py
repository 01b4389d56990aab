"""Finds what the user named: a pair, a drafter, an instance type; else says what is near."""

from __future__ import annotations

from toolkit.catalog.loading import Targets
from toolkit.catalog.models import Catalog, Drafter, NamedDrafter, NamedTarget, Pair, Target
from toolkit.catalog.tables import Instance, InstanceTable
from toolkit.errors import NotFound, UserError, nearest


def find_pair(catalog: Catalog, name: str) -> Pair:
    """The pair ``TARGET[+DRAFTER]``; a bare target comes with its default drafter.

    TARGET is a short name or an id, DRAFTER a drafter's name or the id of its weights; neither
    cares for upper and lower case. Raises NotFound with the nearest names, and CatalogError when
    the target's file is wrong.
    """
    target_name, plus, drafter_name = name.strip().partition("+")
    if not target_name or (plus and not drafter_name):
        raise UserError(f"{name!r} is not a pair", "write TARGET or TARGET+DRAFTER")
    target = _find_target(catalog, target_name)
    return Pair(target=target, drafter=find_drafter(target, drafter_name or target.default_drafter))


def find_drafter(target: Target, name: str) -> Drafter:
    """The drafter of ``target`` with this name or these weights; raises NotFound."""
    wanted = name.lower()
    for drafter in target.drafters:
        if wanted in {drafter.name.lower(), (drafter.weights or "").lower()}:
            return drafter
    names = [drafter.name for drafter in target.drafters]
    hint = nearest(name, names) or f"it has {', '.join(names)}"
    raise NotFound(f"{target.id} has no drafter {name!r}", hint)


def find_instance(table: InstanceTable, name: str) -> Instance:
    """The instance type; raises NotFound with those of its family, else the nearest ones."""
    for instance in table.instances:
        if instance.type == name:
            return instance
    known = [instance.type for instance in table.instances]
    family = [other for other in known if other.rpartition(".")[0] == name.rpartition(".")[0]]
    hint = f"there are {', '.join(family)}" if family else nearest(name, known)
    raise NotFound(f"there is no instance type {name!r} with a GPU for endpoints", hint)


def pair_name(target: NamedTarget, drafter: NamedDrafter | None) -> str:
    """The pair in full: ``openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE``.

    A drafter without weights on the hub goes by its name: ``peagle/tiny+p-eagle``.
    """
    if drafter is None:
        return target.id
    weights = drafter.weights
    on_hub = weights is not None and not weights.startswith("./")
    return f"{target.id}+{weights if on_hub else drafter.name}"


def _find_target(catalog: Catalog, name: str) -> Target:
    short_names = _short_names(catalog)
    by_name = {target_id.lower(): target_id for target_id in catalog.targets}
    by_name |= {short.lower(): target_id for short, target_id in short_names.items()}
    if name.lower() not in by_name:
        hint = nearest(name, [*short_names, *catalog.targets])
        fix = f"{hint} see `peagle catalog list`; a target of your own: peagle --catalog DIR; what "
        fix = f"{fix}one takes: peagle fit --target PLACE".strip()
        raise NotFound(f"there is no target {name!r} in the catalogue", fix)
    return catalog.targets[by_name[name.lower()]]


def _short_names(catalog: Catalog) -> dict[str, str]:
    if isinstance(catalog.targets, Targets):
        return dict(catalog.targets.short_names)
    return {target.short_name: target.id for target in catalog.targets.values()}
