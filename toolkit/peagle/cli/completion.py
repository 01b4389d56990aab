"""Shell completion with names from the catalogue, which is loaded only for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peagle import api
from peagle.errors import PeagleError

if TYPE_CHECKING:
    from peagle.catalog.schema import Catalog

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def pairs(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Targets, after a ``+`` the drafters of that target, and plan files."""
    catalog = _catalog(ctx)
    if catalog is None:
        return []
    target, plus, _ = typed.partition("+")
    named = {t.short_name: t for t in catalog.targets.values()}
    if plus and target in named:
        return _from(typed, (f"{target}+{d.name}" for d in named[target].drafters))
    return [*_from(typed, named), *_from(typed, map(str, sorted(Path().glob("*.json"))))]


def _names(of: Callable[[Catalog], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
        catalog = _catalog(ctx)
        return _from(typed, of(catalog)) if catalog is not None else []

    return complete


instance_types = _names(lambda catalog: (i.type for i in catalog.instances.instances))
versions = _names(lambda catalog: (r.vllm for r in catalog.runtimes.runtimes))
regions = _names(lambda catalog: sorted(catalog.runtimes.accounts))


def _catalog(ctx: click.Context) -> Catalog | None:
    """The catalogue, or ``None`` if it cannot be read: completion shows no errors."""
    folder = ctx.find_root().params.get("catalog_folder")
    try:
        return api.load_catalog(Path(folder) if folder else None)
    except PeagleError:
        return None


def _from(typed: str, names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.startswith(typed)))
