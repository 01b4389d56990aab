"""What a manifest says of one folder, measured by a plan and by what lies there."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.aws.weights.layout import MANIFEST
from toolkit.aws.weights.manifest import Folder
from toolkit.planning.models import Plan

_SHOWN = 3


def another_pair(plan: Plan, part: str, folder: Folder) -> str:
    """Why the folder is not the plan's; "" when it is, or when nobody knows."""
    target = folder.pair.partition("+")[0]
    if target and target != plan.target.id:
        return f"{MANIFEST} says that the {part} there is that of {folder.pair}"
    speculation = plan.speculation
    if part != "drafter" or speculation is None or folder.parallel_drafting is None:
        return ""
    if folder.parallel_drafting == speculation.parallel_drafting:
        return ""
    kinds = {True: "a P-EAGLE head", False: "a head that drafts one token at a time"}
    return (
        f"{MANIFEST} says that {kinds[folder.parallel_drafting]} lies there, of {folder.pair}, and "
        f"the plan starts {kinds[speculation.parallel_drafting]}"
    )


def incomplete(folder: Folder, below: Mapping[str, int] | None) -> str:
    """What is not there as the manifest has it; "" when all is."""
    seen = below or {}
    missing = [name for name in folder.files if name not in seen]
    other = [n for n, entry in folder.files.items() if n in seen and seen[n] != entry.size]
    if below is not None and missing:
        return f"{_some(missing)} not there"
    if other:
        return f"{_some(other)} of another size than was copied"
    return "" if folder.complete else "the copy has not come to its end"


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN])
    if len(names) > _SHOWN:
        return f"{len(names)} files, such as {shown}, are"
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
