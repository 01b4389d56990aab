"""The best settings of the drafter by their speeds: the one rule of plans and verdicts."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Protocol, TypeVar

from pydantic import ConfigDict, Field

from peagle.catalog.tables import NotNegative
from peagle.speed.acceptance import SAME_SPEED_SHARE, Basis

Line = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Text for people."""


@dataclass(frozen=True)
class Setting:
    """What to draft with, by its name in the catalogue, and how much; without a drafter K is 0."""

    drafter: Line | None
    k: NotNegative

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    def __post_init__(self) -> None:
        if (self.drafter is None) != (self.k == 0):
            raise ValueError("a drafter needs a K of at least 1, and a K a drafter")

    @property
    def text(self) -> str:
        """``p-eagle K=3``, or ``no speculation``."""
        return "no speculation" if self.drafter is None else f"{self.drafter} K={self.k}"


NO_SPECULATION = Setting(drafter=None, k=0)
"""The target without speculation."""


class Speed(Protocol):
    """A speed of one setting, with its origin: ``Performance``, or what a verdict keeps of it."""

    @property
    def basis(self) -> Basis: ...

    @property
    def tokens_per_second(self) -> float | None: ...

    @property
    def low(self) -> float | None: ...

    @property
    def extrapolated(self) -> bool: ...


Speeds = Mapping[Setting, Speed]

SAME_ESTIMATE_SHARE = 0.02
"""The same of two estimates, whose shared errors do not change their order. With up to 0.02 no
choice among held-out rows loses more than 5 %, with 0.03 one in 24 does (docs/estimates.md)."""

ESTIMATE_MUST_WIN_BY = 0.1
"""A measured setting yields only to an estimate of another drafter that is faster by more than this
share, about the error of estimates compared with measurements: the fastest of many estimates is too
optimistic. Where a K of that drafter is measured, ``compute_threshold`` applies instead."""


S = TypeVar("S", bound=Speed)


def compute_threshold(measured: Speed) -> float:
    """The tokens/s above which an estimate of the same drafter is clearly faster: by more than
    ``SAME_SPEED_SHARE``, and by more than half of what the repetitions differ. Among held-out rows
    this loses 0.9 % on average; estimates that must be faster by the half width of their own range
    lose 1.7 %, mostly where a faster K is not taken (docs/estimates.md)."""
    speed = speed_or_zero(measured)
    return speed + max(SAME_SPEED_SHARE * speed, 0.5 * (speed - (measured.low or speed)))


def decisive(speeds: Collection[S]) -> list[S]:
    """The speeds between which is chosen: the measured ones, if any, and estimates that are clearly
    faster, of a K whose acceptance is known."""
    measured = (speed for speed in speeds if speed.basis == "measured")
    fastest = max(measured, key=speed_or_zero, default=None)
    if fastest is None:
        return [*speeds]
    least = compute_threshold(fastest)
    return [
        s for s in speeds
        if s.basis == "measured" or (speed_or_zero(s) > least and not s.extrapolated)
    ]  # fmt: skip


class Ranking(NamedTuple):
    """The settings that tie with the fastest, the simplest first, and the tokens/s of the fastest.
    ``counted`` are those that may be recommended: neither an estimate of a drafter of which a K is
    measured to be about as fast, nor one above the winner that does not tie with it."""

    tied: tuple[Setting, ...]
    fastest: float
    counted: frozenset[Setting] = frozenset()


def rank_settings(speeds: Speeds, default_drafter: str | None = None) -> Ranking:
    """The best settings of these; none where no speed is known. Of a drafter of which a K is
    measured, estimates of others count only if they are ``decisive``. Where something is measured,
    the fastest measured setting wins, unless an estimate is clearly faster; the target alone may
    tie with it by an estimate."""
    by_drafter: dict[str | None, list[Speed]] = defaultdict(list)
    for setting, speed in speeds.items():
        by_drafter[setting.drafter].append(speed)
    counted = {drafter: decisive(of_drafter) for drafter, of_drafter in by_drafter.items()}
    eligible = {
        setting: speed
        for setting, speed in speeds.items()
        if speed.tokens_per_second and speed in counted[setting.drafter]
    }
    if not eligible:
        return Ranking((), 0.0)
    measured = {setting: speed for setting, speed in eligible.items() if speed.basis == "measured"}
    drafters = {setting.drafter for setting in measured}
    best = max(measured.values(), key=speed_or_zero, default=None)
    least, least_of_others = 0.0, 0.0
    if best is not None:
        least = compute_threshold(best)
        least_of_others = max(least, speed_or_zero(best) * (1 + ESTIMATE_MUST_WIN_BY))

    def is_clearly_faster(setting: Setting) -> bool:
        is_measured = setting.drafter in drafters
        return speed_or_zero(eligible[setting]) > (least if is_measured else least_of_others)

    fastest_settings = list(filter(is_clearly_faster, eligible)) or [*measured]
    top = max((eligible[setting] for setting in fastest_settings), key=speed_or_zero)
    compared = {*fastest_settings, NO_SPECULATION} & eligible.keys()
    fastest = speed_or_zero(top)

    def ties(speed: Speed) -> bool:
        estimates = speed.basis == top.basis == "estimated"
        share = SAME_ESTIMATE_SHARE if estimates else SAME_SPEED_SHARE
        return speed_or_zero(speed) >= max(fastest * (1 - share), top.low or 0)

    def simplicity(setting: Setting) -> tuple[bool, bool, int, str]:
        return bool(setting.k), setting.drafter != default_drafter, setting.k, setting.drafter or ""

    tied = [setting for setting in compared if ties(eligible[setting])]
    slower = (setting for setting, speed in eligible.items() if speed_or_zero(speed) <= fastest)
    return Ranking(tuple(sorted(tied, key=simplicity)), fastest, frozenset([*tied, *slower]))


def speed_or_zero(speed: Speed) -> float:
    """Tokens per second; 0 where unknown."""
    return speed.tokens_per_second or 0.0
