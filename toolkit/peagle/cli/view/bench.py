"""The output of ``peagle bench``: loads, sweeps, acceptance on a text, the lossless check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from peagle.bench.acceptance import AcceptanceResult
from peagle.bench.lossless import LosslessResult
from peagle.bench.result import BenchResult, BenchRow, BenchSetting, Times, highest
from peagle.bench.sweep import EndpointSweep, SweepProgress
from peagle.cli.view.console import (
    print_documents,
    print_facts,
    print_line,
    print_status,
    print_table,
)
from peagle.text import format_duration, format_price, format_usd, sanitize

_HEADINGS = (
    "REQUESTS", "TOKENS/S", "95 % INTERVAL", "TTFT P50", "P90", "P99", "ITL P50", "P90 ", "P99 ",
    "TPOT", "ACCEPTANCE", "$/1M",
)  # fmt: skip
BUSY_SHARE = 0.8
"""A sender that uses so much of one CPU has no headroom."""

_NONE = "-"


def print_measured(result: BenchResult) -> None:
    """The server, the rows of each workload as a table, and what to know about them."""
    server = result.server
    parts = [server.pair or server.model]
    if server.instance_type:
        parts.append(f"{server.instance_count or 1} x {server.instance_type}".removeprefix("1 x "))
    if server.gpu:
        parts.append(f"{server.gpu_count or 1} x {server.gpu}")
    if server.vllm:
        parts.append(f"vLLM {server.vllm}")
    if server.where == "sandbox":
        parts.append("in the sandbox: speeds are of this machine's CPU")
    if server.stand_in:
        parts.append(f"{server.stand_in} answers")
    print_line(f"{sanitize(server.name)}: {sanitize(', '.join(parts))}")
    for workload, rows in result.by_workload().items():
        prompt = sum(row.prompt_tokens for row in rows) / len(rows)
        answer = sum(row.output_tokens for row in rows) / len(rows)
        source = "prompts of the file" if workload.digest else "random words"
        if workload.turns > 1:
            think = f", {workload.think_seconds:g} s apart" if workload.think_seconds else ""
            source = f"turns 2 to {workload.turns} of conversations{think}, {source}"
        settings = ", ".join(dict.fromkeys(row.setting.text for row in rows))
        times = max(row.load.repetitions for row in rows)
        print_line(
            f"{sanitize(workload.name)}, {settings}: prompts of {prompt:.0f} tokens ({source}), "
            f"answers of {answer:.0f}{'' if workload.fixed_length else ', of their natural length'}"
            f"; measured, {times} repetition{'' if times == 1 else 's'}"
        )
        print_table(_HEADINGS, map(_cells, rows), right=_HEADINGS)
        for row in rows:
            for note in _notes(row):
                print_line(f"  {row.load.concurrency} at a time: {note}")
    sender = highest(row.sender_cpu_share for row in result.rows)
    print_status(
        "Times in ms. TTFT: to the first output; ITL: between outputs; TPOT: per token after the "
        f"first. Sent by {' '.join(result.sender)}."
    )
    if (sender or 0.0) > BUSY_SHARE:
        print_status("The sender has no headroom: it, not the server, may limit these numbers.")
    if result.usd_per_hour is not None:
        print_status(f"Price: {format_usd(result.usd_per_hour)} per hour, {result.price_source}.")


def _cells(row: BenchRow) -> tuple[str, ...]:
    speed, cost = row.tokens_per_second, row.usd_per_million_tokens
    return (
        str(row.load.concurrency),
        f"{speed.value:,.1f}",
        f"{speed.low:,.1f} to {speed.high:,.1f}" if speed.spread else _NONE,
        *_milliseconds(row.ttft),
        *_milliseconds(row.itl),
        _milliseconds(row.tpot)[0],
        f"{row.acceptance.length:.2f}" if row.acceptance else _NONE,
        format_usd(cost) if cost is not None else _NONE,
    )


def _milliseconds(times: Times | None) -> tuple[str, ...]:
    """Median, 90th and 99th percentile."""
    if times is None:
        return _NONE, _NONE, _NONE
    return tuple(f"{1e3 * value:,.1f}" for value in (times.p50, times.p90, times.p99))


def _notes(row: BenchRow) -> Iterator[str]:
    if row.acceptance:
        rates = ", ".join(f"{rate:.0%}" for rate in row.acceptance.per_position)
        basis = "" if row.acceptance.basis == "measured" else f" ({row.acceptance.basis})"
        text = "the file's prompts" if row.load.workload.digest else "random words"
        yield f"accepted by position {rates}; {row.acceptance.drafts:,} drafts on {text}{basis}"
    if row.load.workload.size.cached_prompt_tokens:
        yield cache_text(row)
    if row.saturated:
        yield f"saturated: {row.saturated}"
    if row.incomplete:
        yield f"incomplete: {row.incomplete}"


def cache_text(row: BenchRow) -> str:
    """``prefix cache 96% of a prompt (6,640 tokens), TTFT of first turns 310.2 ms``."""
    text, cached = "hits of the prefix cache unknown", row.cached_prompt_tokens
    if cached is not None:
        text = f"prefix cache {row.cached_share or 0:.0%} of a prompt ({cached:,.0f} tokens)"
    if row.lacks_cache:
        expected = row.load.workload.size.cached_share
        text += f" instead of {expected:.0%}: it is off in this engine, or too small"
    if first := row.first_turn_ttft:
        text += f", TTFT of first turns {1e3 * first.p50:,.1f} ms"
    return text


def print_sweep(result: BenchResult, summaries: Sequence[str]) -> None:
    """Print tokens per second by load and setting, then the summaries, one for each workload."""
    for workload, rows in result.by_workload().items():
        print_line(f"{workload.name}: output tokens per second, with 95 % confidence interval")
        settings = list(dict.fromkeys(row.setting for row in rows))
        cells: dict[tuple[int, BenchSetting], str] = {}
        for row in rows:
            speed = row.tokens_per_second
            text = f"{speed.value:,.{0 if speed.value >= 100 else 1}f}"
            text += f" ±{speed.spread:.0%}" if speed.spread else ""
            cells[row.load.concurrency, row.setting] = text + ("*" if row.saturated else "")
        headings = ("requests", *(setting.text for setting in settings))
        table = [
            (f"{load:,}", *(cells.get((load, setting), _NONE) for setting in settings))
            for load in sorted({load for load, _ in cells})
        ]
        print_table(headings, table, right=headings)
        for row in rows if workload.size.cached_prompt_tokens else ():
            times = f"TTFT P50 {_milliseconds(row.ttft)[0]} ms, {cache_text(row)}"
            print_line(f"  {row.setting.text}, {row.load.concurrency} at a time: {times}")
    for summary in summaries:
        print_line(summary)
    if any(row.saturated for row in result.rows):
        print_line("* saturated: more requests only wait longer; the report has the reasons.")


def progress_text(progress: SweepProgress) -> str:
    """``row 3 of 12: p-eagle K=3, short-prompt x 8, 40%, about 5m left``."""
    row = min(progress.done + 1, progress.total)
    text = f"row {row} of {progress.total}: {progress.setting.text}, {progress.load.text}"
    text += f", {progress.share:.0%}" if progress.share else ""
    if progress.seconds_left is not None:
        text += f", about {format_duration(progress.seconds_left)} left"
    return text


def print_sweep_price(prepared: EndpointSweep, sandbox: bool, max_cost: float | None) -> None:
    """What a sweep of a deployment takes and costs: on stderr, before asking."""
    settings, total = len(prepared.sweep.settings), prepared.sweep.total
    text = f"{prepared.record.name}: settings {settings}, rows {total}"
    usd = format_usd(prepared.usd) if prepared.usd is not None else "unknown"
    free = " on AWS (free in the sandbox)" if sandbox else ""
    limit = prepared.default_limit if max_cost is None else max_cost
    spent = f", of which {format_usd(prepared.spent)} is spent" if prepared.spent else ""
    print_facts(
        (
            ("sweep", f"{text}, about {format_duration(prepared.seconds)}"),
            ("price", f"the endpoint: {format_price(prepared.usd_per_hour, sandbox)}"),
            (
                "cost",
                f"about {usd}{free}; during each update the instances of both revisions are paid",
            ),
            ("limit", "" if limit is None else f"{format_usd(limit)} in all{spent}"),
        )
    )


def print_acceptance(result: AcceptanceResult) -> None:
    """A table by domain, and what is uncertain."""
    where = "the engine's counters" if result.source == "counters" else "the endpoint's log"
    kind = "imposed" if result.total.acceptance.basis == "imposed" else "measured"
    prompts = f"{result.total.prompts:,} prompt{'' if result.total.prompts == 1 else 's'}"
    print_line(
        f"Acceptance of {result.server.name} with K={result.k}: {kind} on {prompts}, from {where}",
        bold=True,
    )
    positions = tuple(str(position) for position in range(1, result.k + 1))
    headings = ("DOMAIN", "LENGTH", "95 % INTERVAL", "DRAFTS", "PROMPTS", "TOKENS", *positions)
    table = []
    for part in (*result.domains, *([result.total] if len(result.domains) > 1 else [])):
        low, high = part.interval.low, part.interval.high
        rates = [f"{rate:.2f}" for rate in part.acceptance.per_position]
        length, drafts = part.acceptance.length, part.acceptance.drafts
        interval = f"{low:.2f} to {high:.2f}" if part.groups > 1 else "unknown"
        counts = (f"{count:,}" for count in (drafts, part.prompts, part.output_tokens))
        none = [_NONE] * (result.k - len(rates))
        table.append((part.domain, f"{length:.2f}", interval, *counts, *rates, *none))
    print_table(headings, table, right=headings[1:])
    if few := [part.domain for part in result.domains if not part.is_reliable]:
        print_status(f"Few drafts, so the length is not reliable: {', '.join(few)}.")
    if result.undrafted:
        print_status(f"Nothing was drafted, as answers are short: {', '.join(result.undrafted)}.")
    if result.others_sent:
        print_status("Other clients sent requests meanwhile, which are counted, too.")
    if result.server.stand_in:
        print_status(f"{result.server.stand_in} answers: on AWS the acceptance is another.")
    if result.incomplete:
        print_status(f"Ended early ({result.incomplete}): this is of the prompts until then.")


def print_lossless(result: LosslessResult) -> None:
    """How many answers are the same, and the differences."""
    same = result.prompts - len(result.differences)
    verdict = "the same" if result.passed else "not the same"
    print_line(
        f"Greedy answers of {result.server} and {result.against} are {verdict}: {same} of "
        f"{result.prompts} equal, {result.tokens:,} tokens compared",
        bold=True,
    )
    if explained := len(result.differences) - len(result.unexplained):
        print_line(
            f"Different where the target itself is undecided: {explained}. Its two best log "
            f"probabilities are less than {result.largest_gap:g} apart."
        )
    differences = result.unexplained
    print_documents(differences[:5], ("line", "position", "gap", "other_text", "target_text"))
    if differences[5:]:
        print_status(f"In --json: {len(differences) - 5} more.")
    if result.refused:
        lines = ", ".join(str(prompt.line) for prompt in result.refused[:10])
        print_status(f"Refused by the engine, and left out: line {lines}.")
