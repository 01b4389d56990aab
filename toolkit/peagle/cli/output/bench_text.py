"""Print the acceptance on the user's prompts, and the comparison with the target alone."""

from __future__ import annotations

from collections.abc import Iterator

from peagle.bench.acceptance import AcceptanceResult, DomainAcceptance, LosslessResult
from peagle.cli.output.console import print_line, print_status, print_table

_LONGEST_TEXT = 40
_MOST_DIFFERENCES = 5


def print_acceptance(result: AcceptanceResult) -> None:
    """A table by domain, and what is uncertain."""
    where = "the engine's counters" if result.source == "counters" else "the endpoint's log"
    kind = "imposed" if result.total.acceptance.basis == "imposed" else "measured"
    print_line(
        f"Acceptance of {result.server.name} with K={result.k}: {kind} on "
        f"{result.total.prompts:,} prompts, from {where}",
        bold=True,
    )
    several = len(result.domains) > 1
    rows = [_HEADINGS, *(_row(one) for one in result.domains)]
    rows += [_row(result.total)] if several else []
    positions = tuple(str(position) for position in range(1, result.k + 1))
    table = [
        (*row, *rates)
        for row, rates in zip(rows, [positions, *_rates(result, several)], strict=True)
    ]
    print_table(table[0], table[1:], right=(*_HEADINGS[1:], *positions))
    for line in _notes(result):
        print_status(line)


_HEADINGS: tuple[str, ...] = ("DOMAIN", "LENGTH", "95 % INTERVAL", "DRAFTS", "PROMPTS", "TOKENS")


def _row(one: DomainAcceptance) -> tuple[str, ...]:
    interval = f"{one.interval.low:.2f} to {one.interval.high:.2f}" if one.groups > 1 else "unknown"
    return (
        one.domain,
        f"{one.acceptance.length:.2f}",
        interval,
        f"{one.acceptance.drafts:,}",
        f"{one.prompts:,}",
        f"{one.output_tokens:,}",
    )


def _rates(result: AcceptanceResult, several: bool) -> Iterator[tuple[str, ...]]:
    """The share accepted at each position, in the order of the rows."""
    for one in (*result.domains, *((result.total,) if several else ())):
        rates = [f"{rate:.2f}" for rate in one.acceptance.per_position]
        yield (*rates, *("-" for _ in range(result.k - len(rates))))


def _notes(result: AcceptanceResult) -> Iterator[str]:
    few = [one.domain for one in result.domains if not one.is_reliable]
    if few:
        yield f"Few drafts, so the length is not reliable: {', '.join(few)}."
    if result.undrafted:
        yield f"Nothing was drafted, since the answers are short: {', '.join(result.undrafted)}."
    if result.others_sent:
        yield "Other clients sent requests meanwhile, which are counted, too."
    if result.server.stand_in:
        yield f"{result.server.stand_in} answers in the sandbox: on AWS the acceptance is another."
    if result.incomplete:
        yield f"Ended early ({result.incomplete}): this is of the prompts until then."


def print_lossless(result: LosslessResult) -> None:
    """How many answers are the same, and the differences."""
    same = result.prompts - len(result.differences)
    verdict = "the same" if result.passed else "not the same"
    print_line(
        f"Greedy answers of {result.server} and {result.against} are {verdict}: {same} of "
        f"{result.prompts} equal, {result.tokens:,} tokens compared",
        bold=True,
    )
    explained = [one for one in result.differences if one.explained]
    if explained:
        print_line(
            f"{len(explained)} differ where the target itself is undecided: its two best log "
            f"probabilities are less than {result.largest_gap:g} apart."
        )
    for one in result.unexplained[:_MOST_DIFFERENCES]:
        gap = "ended" if one.gap is None else f"{one.gap:.4f}"
        print_line(f"Line {one.line}, token {one.position}, gap {gap}:")
        print_line(f"  with speculation  {_shown(one.other_text)}")
        print_line(f"  without           {_shown(one.target_text)}")
    more = len(result.unexplained) - _MOST_DIFFERENCES
    if more > 0:
        print_status(f"{more} more differences are in --json.")
    if result.refused:
        lines = ", ".join(str(one.line) for one in result.refused[:10])
        print_status(f"Refused by the engine, and left out: line {lines}.")
    if result.incomplete:
        print_status(f"Ended early ({result.incomplete}): this is of the prompts until then.")


def _shown(text: str) -> str:
    return repr(text[:_LONGEST_TEXT]) if text else "(the end)"
