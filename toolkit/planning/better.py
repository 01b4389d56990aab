"""What the same evidence knows to be better than a drafter that loses."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.catalog.models import Drafter, Target
from toolkit.planning.speeds import Estimate, compare, names_of


def better_words(target: Target, loser: Drafter, alone: Estimate) -> Iterator[str]:
    """``chat+p-eagle --k 3 (10,732 tokens/s)``: the fastest of the target's other drafters, when it
    is faster than ``alone``, the target without one."""
    others = (drafter for drafter in target.drafters if drafter.name != loser.name)
    found = [(best, drafter) for drafter in others if (best := _wins(drafter, alone))]
    if found:
        best, drafter = max(found, key=lambda pair: pair[0].tokens_per_second)
        pair = f"{target.short_name}+{drafter.name} --k {best.k}"
        yield f"{pair} ({best.tokens_per_second:,.0f} tokens/s)"


def _wins(drafter: Drafter, alone: Estimate) -> Estimate | None:
    """The drafter's fastest K where ``alone`` was measured, if it is faster and can be used."""
    if not drafter.public:
        return None
    names = names_of(drafter, own=False)
    found = compare([alone.run], names, alone.load, k_trained=drafter.k_trained)
    # A run may have measured one load with requests of two sizes: only like is compared with like.
    if found is None or found.alone != alone:
        return None
    faster = found.fastest.tokens_per_second > alone.tokens_per_second
    return found.fastest if faster else None
