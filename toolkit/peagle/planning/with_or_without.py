"""Whether speculation pays on the best instances with and without it, as reasons and findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peagle.findings import Finding, warning
from peagle.planning.candidates import Candidate
from peagle.planning.evaluation import CandidateEvaluator
from peagle.planning.options import Options
from peagle.planning.plan import Reason
from peagle.planning.speculation import SpeedsByK, is_drafter_named
from peagle.text import format_usd


def cheapest_of(options: Options, candidates: Sequence[Candidate]) -> Candidate | None:
    """The lowest price per hour of those that hold the load, and that meet what the options
    require, if any does."""
    priced = [other for other in candidates if other.usd_per_hour is not None and other.holds_load]
    priced = [other for other in priced if other.meets(options)] or priced
    return min(priced, key=lambda other: other.usd_per_hour or 0.0, default=None)


@dataclass(frozen=True)
class WithOrWithout:
    """``candidate``, planned or considered, and all that fit with its drafter (else the pair's)
    and without speculation, best first; of the user's instance type only, if there is one."""

    evaluator: CandidateEvaluator
    candidate: Candidate
    speculating: Sequence[Candidate]
    alone: Sequence[Candidate]

    def instead(self) -> Candidate | None:
        """The target alone, to plan instead of the candidate: where the speed with its drafter is
        unknown, the user did not name it, and that of the target alone is known, costs less per
        hour, or meets what is required. A verdict, which selects known speeds only, is the same."""
        options, candidate = self.evaluator.options, self.candidate
        unknown = candidate.tokens_per_second is None and candidate.fit.fits
        if candidate.drafter is None or not unknown or is_drafter_named(options):
            return None
        if not self.alone:
            return None
        best, cheapest = self.alone[0], cheapest_of(options, self.alone) or self.alone[0]
        if candidate.holds_load and not best.holds_load:
            return None
        certain = best.meets(options) and not candidate.meets(options)
        certain = certain or best.tokens_per_second is not None
        return best if certain or _is_cheaper(cheapest, candidate) else None

    def reason(self, compared: SpeedsByK, unknown: Candidate | None = None) -> Reason:
        """What speculation changes: the cost per output token, else the speed.

        ``unknown`` is what was not planned since its speed is unknown.
        """
        candidate = self.candidate
        if unknown is not None:
            because = self._not_known(unknown)
        else:
            because = self._costs() or self._speeds(compared) or self._default()
        value = f"{candidate.drafter.name}, K={candidate.k}" if candidate.drafter else "none"
        return Reason(what="speculation", value=value, because=because)

    def _not_known(self, unknown: Candidate) -> str:
        options, name = self.evaluator.options, _name(unknown)
        cheapest = self.candidate
        if options.instance_type is None:
            cheapest = cheapest_of(options, self.alone) or cheapest
        because = f"the speed with {name} is unknown here"
        if not _is_cheaper(cheapest, unknown):
            required = options.slo or options.min_tokens_per_second or options.within
            doubt = "so it may not reach what is required" if required else "that without is known"
            return f"{because}, {doubt}; --drafter {name} plans it"
        costs = "has no known price"
        if unknown.usd_per_hour is not None:
            costs = f"costs {format_usd(unknown.usd_per_hour)} per hour"
        usd = format_usd(cheapest.usd_per_hour or 0)
        which = "it" if options.instance_type is not None else "the cheapest plan with it"
        return f"{because}, and {which} {costs} ({unknown.text}), {usd} without ({cheapest.text})"

    def _costs(self) -> str:
        """Costs per token of the candidate and of the best of the others; empty where unknown."""
        candidate = self.candidate
        others = self.alone if candidate.drafter is not None else self.speculating
        ours = candidate.usd_per_million_tokens
        if ours is None or not others or not others[0].holds_load:
            return ""
        best, theirs = others[0], others[0].usd_per_million_tokens
        if theirs is None:
            return ""
        here = "with it" if candidate.drafter is not None else "without"
        there = "without" if candidate.drafter is not None else f"with {_name(best)}"
        if best.text != candidate.text:
            there += f" on {best.text}"
        text = f"{format_usd(ours)} per million output tokens {here}, {format_usd(theirs)} {there}"
        options = self.evaluator.options
        misses = candidate.meets(options) and not best.meets(options)
        return f"{text}, which is not known to meet what is required" if misses else text

    def _speeds(self, compared: SpeedsByK) -> str:
        """Speeds of all instances with and without speculation; empty where one is unknown."""
        candidate = self.candidate
        others = {
            name: speed.tokens_per_second
            for (name, _), speed in sorted(
                compared.speeds.items(), key=lambda item: item[1].tokens_per_second or 0.0
            )
            if (name is None) is (candidate.drafter is not None)
            and speed.tokens_per_second is not None
        }
        if candidate.tokens_per_second is None or not others:
            return ""
        name, fastest = list(others.items())[-1]
        here = "with it" if candidate.drafter is not None else "without"
        there = "without" if name is None else f"with {name}"
        ours, theirs = candidate.tokens_per_second, candidate.total(fastest) or 0
        return f"{ours:,.0f} tokens/s {here}, {theirs:,.0f} {there}, on the same GPUs"

    def _default(self) -> str:
        options = self.evaluator.options
        is_named = options.drafter is not None or "+" in options.pair
        usual = "the drafter that you name" if is_named else "the catalogue's default"
        if self.candidate.drafter is None and not self.speculating:
            return f"{usual} does not fit in addition to the target"
        origin = options.chosen_by or usual
        return f"{origin}; its speed here is unknown"

    def costs_more(self) -> Iterator[Finding]:
        """A warning when the target alone does the same for less, and the user named the
        drafter."""
        options, candidate = self.evaluator.options, self.candidate
        if candidate.drafter is None or not is_drafter_named(options) or not self.alone:
            return
        best = self.alone[0]
        ours, theirs = candidate.usd_per_million_tokens, best.usd_per_million_tokens
        if ours is None or theirs is None or theirs >= ours or not best.holds_load:
            return
        if best.meets(options) or not candidate.meets(options):
            message = (
                f"without speculation, {best.text}{best.at_cost} costs {format_usd(theirs)} per "
                f"million output tokens ({best.speed_text}); with {candidate.drafter.title}, "
                f"{candidate.text}{candidate.at_cost} costs {format_usd(ours)} "
                f"({candidate.speed_text})"
            )
            yield warning("speculation-costs-more", "drafter", message, "use --no-speculation")


def _is_cheaper(candidate: Candidate, other: Candidate) -> bool:
    """Whether it has the lower price per hour; any is lower than an unknown one."""
    if candidate.usd_per_hour is None:
        return False
    return other.usd_per_hour is None or candidate.usd_per_hour < other.usd_per_hour


def _name(candidate: Candidate) -> str:
    return candidate.drafter.name if candidate.drafter else "none"
