"""``peagle bench NAME --acceptance FILE`` and ``--lossless``: what a server does with a text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.bench.acceptance import (
    GROUPS,
    GROUPS_OF_LOG,
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
    require_none_refused,
)
from peagle.bench.local import target_alone
from peagle.bench.lossless import LosslessResult, check_lossless, prompts_of_pair, require_lossless
from peagle.bench.measure import BenchTarget
from peagle.bench.result import DEFAULT_MAX_TOKENS
from peagle.bench.workloads import PromptSet, read_prompts
from peagle.cli.options import command_catalog
from peagle.cli.output.bench import print_acceptance, print_lossless
from peagle.cli.output.console import print_json, print_status, print_written
from peagle.cli.output.progress import StatusLine
from peagle.cli.parameter_types import Decimal, OutputPath
from peagle.errors import OptionMissing, OptionsConflict, UserError
from peagle.store import write_output

TEXT_OPTIONS = (
    click.option("--acceptance", metavar="FILE", type=click.Path(path_type=Path),
                 help="Measure the acceptance on these prompts instead: JSON lines with prompt or "
                 "messages, and optionally domain and max_tokens."),
    click.option("--save-acceptance", metavar="FILE", type=OutputPath(),
                 help="With --acceptance: write the result, for `peagle verdict --acceptance`."),
    click.option("--temperature", default=0.0, show_default=True,
                 type=Decimal("a temperature from 0 to 10, such as 0.7", min=0.0, max=10.0),
                 help="With --acceptance: sampling temperature; 0 is greedy decoding."),
    click.option("--lossless", is_flag=True,
                 help="Check that speculation does not change greedy answers to the prompts of "
                 "--acceptance.  [default: the catalogue's prompts]"),
    click.option("--against", metavar="NAME|URL",
                 help="With --lossless: a server of the target alone.  [default: started on this "
                 "machine]"),
)  # fmt: skip


def measures_text(given: dict[str, Any]) -> bool:
    """Whether the command measures a text instead of a load. Raises UserError for an option that
    needs another one."""
    if given["against"] and not given["lossless"]:
        raise OptionsConflict("--against is for the lossless check", "add --lossless")
    if given["save_acceptance"] and not given["acceptance"]:
        raise OptionMissing("--save-acceptance needs acceptance", "add --acceptance FILE")
    return given["acceptance"] is not None or given["lossless"]


def measure_text(
    target: BenchTarget, find: Callable[[str], BenchTarget], given: dict[str, Any]
) -> None:
    """Measure acceptance, check that nothing is lost, or both; print the results.

    ``find`` finds the server that a NAME or URL means. Raises NotProved if speculation changes an
    answer, UserError if the engine refuses prompts, and what the server raises, after printing what
    was measured until then.
    """
    prompts = _prompts(target, given["acceptance"])
    max_tokens = given["output_tokens"] or DEFAULT_MAX_TOKENS
    groups = GROUPS if target.counted_by == "counters" else GROUPS_OF_LOG
    concurrency = max(given["concurrency"])
    request = AcceptanceRequest(max_tokens, given["temperature"], concurrency, groups)
    acceptance: list[AcceptanceResult] = []
    lossless: list[LosslessResult] = []
    with StatusLine() as status:

        def show(what: str, done: int, count: int) -> None:
            status.show(what, f"{done} of {count} prompts")

        alone = _alone(target, find, given["against"], status) if given["lossless"] else None
        try:
            if given["acceptance"]:
                measured = measure_acceptance(
                    target,
                    prompts,
                    request,
                    keep=acceptance.append,
                    progress=lambda domain, *done: show(f"acceptance, {domain}", *done),
                )
                acceptance.append(measured)
            if alone:
                compared = check_lossless(
                    target,
                    alone,
                    prompts,
                    max_tokens,
                    keep=lossless.append,
                    progress=lambda server, *done: show(f"greedy answers of {server}", *done),
                )
                lossless.append(compared)
        finally:
            _print(acceptance, lossless, given["save_acceptance"], given["as_json"])
    for compared in lossless:
        require_lossless(compared)
    for measured in acceptance:
        require_none_refused(measured)


def _print(
    acceptance: list[AcceptanceResult],
    lossless: list[LosslessResult],
    file: Path | None,
    as_json: bool,
) -> None:
    """Save and print what was measured, also after an error."""
    if acceptance and file:
        write_output(file, acceptance_bytes(acceptance[0]))
        print_written(file)
    if not as_json:
        for measured in acceptance:
            print_acceptance(measured)
        for compared in lossless:
            print_lossless(compared)
    elif acceptance or lossless:
        print_json(
            {
                "acceptance": acceptance[0].document() if acceptance else None,
                "lossless": lossless[0].document() if lossless else None,
            }
        )


def _prompts(target: BenchTarget, file: Path | None) -> PromptSet:
    """The user's prompts, else the catalogue's for the pair."""
    if file is None:
        return prompts_of_pair(command_catalog(), target.facts.pair)
    prompts = read_prompts(file)
    if prompts.ignored:
        print_status(f"Ignored keys of {prompts.file}: {', '.join(prompts.ignored[:10])}.")
    return prompts


def _alone(
    target: BenchTarget,
    find: Callable[[str], BenchTarget],
    against: str | None,
    status: StatusLine,
) -> AbstractContextManager[BenchTarget]:
    """The target without speculation: the server ``against``, or started on this machine.

    Raises UserError where it cannot be started here.
    """
    if against:
        return nullcontext(find(against))
    engine = api.ready_engine(target.facts.name) if target.facts.where == "local" else None
    if engine is None:
        raise UserError(
            f"the target of {target.facts.name} cannot be started here without speculation",
            "serve it without speculation, and name that server with --against",
            "needs-against",
        )
    return target_alone(engine, command_catalog(), status.show)
