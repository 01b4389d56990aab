"""Cases for the rules: from the tiny pair's files, from real geometry, from the catalogue."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle.case import Case, build_case
from peagle.catalog import find_pair, load_catalog
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.checkpoints import Checkpoint, FolderSource, read_checkpoint
from peagle.options import Options
from peagle.vllm.environment import Value
from tests.unit.checks.damage import Damage, as_speculators, config_only, damaged, tiny

GEOMETRY = Path(__file__).parents[3] / "model_catalog" / "configs"
"""``<short name>/{target,p-eagle,eagle3}/config.json``: real targets, and heads made for them."""
CATALOG = load_catalog()
OWN_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
"""An image of the user's own: with it, a version without an AWS image is no error."""
UNHARMED = Damage()


def make_case(
    catalog: Catalog,
    target: Target,
    drafter: Drafter | None,
    *,
    settings: Mapping[str, Value] | None = None,
    ami: str | None = None,
    **more: Any,
) -> Case:
    """A case with these settings and this AMI only, without the catalogue's."""
    options = Options(
        pair=target.id, **{name: more.pop(name) for name in Options.model_fields.keys() & more}
    )
    case = build_case(catalog, target, drafter, options, own_target=False, **more)
    return replace(case, settings=settings or {}, ami=ami)


def with_options(case: Case, **changes: Any) -> Case:
    """The case with other options, such as checkpoints."""
    return replace(case, options=case.options.model_copy(update=changes))


def tiny_case(
    folder: Path,
    damage: Damage = UNHARMED,
    *,
    head: str = "p-eagle",
    pair: str = "tiny",
    target: Damage = UNHARMED,
    entry: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:
    """The tiny pair's files, with this damage to its head and its target.

    ``head`` is the folder that is damaged, ``pair`` what the engine is started as; ``entry``
    changes the catalogue's architecture of the target.
    """
    match = find_pair(CATALOG, pair)
    return make_case(
        CATALOG,
        _with_shape(match.target, entry),
        match.drafter,
        target_checkpoint=read(
            tiny("target")
            if target is UNHARMED
            else damaged(tiny("target"), folder / "target", target)
        ),
        drafter_checkpoint=read(damaged(tiny(head), folder / "head", damage)),
        **more,
    )


def speculators_case(
    folder: Path, kind: str, damage: Damage = UNHARMED, *, pair: str = "tiny", **more: Any
) -> Case:
    """The tiny pair's head, its config.json as the speculators library writes it, damaged."""
    head = {"peagle": "p-eagle", "eagle3": "eagle3"}[kind]
    written = as_speculators(json.loads((tiny(head) / "config.json").read_text()), kind)
    source = damaged(tiny(head), folder / "whole", Damage(text=json.dumps(written)))
    match = find_pair(CATALOG, pair)
    return make_case(
        CATALOG,
        match.target,
        match.drafter,
        target_checkpoint=read(tiny("target")),
        drafter_checkpoint=read(damaged(source, folder / "head", damage)),
        **more,
    )


def geometry_case(
    folder: Path,
    short: str,
    head: str = "p-eagle",
    changes: Mapping[str, Any] | None = None,
    *,
    target: Mapping[str, Any] | None = None,
    pair: str | None = None,
    **more: Any,
) -> Case:
    """Real geometry, config.json only, with these keys of the head's or the target's changed."""
    match = find_pair(CATALOG, pair or f"{short}+{head}")
    return make_case(
        CATALOG,
        match.target,
        match.drafter,
        target_checkpoint=read(_changed(folder / "target", GEOMETRY / short / "target", target)),
        drafter_checkpoint=read(_changed(folder / "head", GEOMETRY / short / head, changes)),
        **more,
    )


def catalog_case(pair: str, **more: Any) -> Case:
    """A pair of the catalogue without checkpoints."""
    match = find_pair(CATALOG, pair)
    return make_case(CATALOG, match.target, match.drafter, **more)


def read(folder: Path) -> Checkpoint:
    """The checkpoint in this folder."""
    return read_checkpoint(FolderSource(folder))


def _changed(folder: Path, source: Path, changes: Mapping[str, Any] | None) -> Path:
    config = json.loads((source / "config.json").read_text())
    kept = {key: value for key, value in (changes or {}).items() if value is not None}
    dropped = {key for key, value in (changes or {}).items() if value is None}
    return config_only(folder, {k: v for k, v in config.items() if k not in dropped} | kept)


def _with_shape(target: Target, changes: Mapping[str, Any] | None) -> Target:
    shape = target.architecture.model_copy(update=dict(changes or {}))
    return target.model_copy(update={"architecture": shape})
