"""``peagle bench NAME --acceptance FILE`` and ``--lossless``: what a server does with a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.bench.acceptance import (
    GROUPS,
    GROUPS_OF_LOG,
    AcceptanceRequest,
    AcceptanceResult,
    LosslessResult,
)
from peagle.bench.measure import BenchTarget
from peagle.bench.models import DEFAULT_MAX_TOKENS
from peagle.bench.workloads import PromptSet
from peagle.cli.options import Decimal, OutputPath, command_catalog
from peagle.cli.output.bench_text import print_acceptance, print_lossless
from peagle.cli.output.console import print_json, print_status, print_written
from peagle.cli.output.progress import StatusLine
from peagle.engine.state import LocalEngine
from peagle.errors import OptionMissing, OptionsConflict, UserError
from peagle.store import write_output

FindTarget = Callable[[str], BenchTarget]
"""Finds the server that a NAME or URL means."""


@dataclass(frozen=True)
class TextOptions:
    """The options of ``text_options``. Both kinds of measurement may be chosen."""

    acceptance: Path | None
    lossless: bool
    against: str | None
    temperature: float
    save_acceptance: Path | None

    @property
    def chosen(self) -> bool:
        """Whether the command measures a text instead of a load. Raises UserError for an option
        that needs another one."""
        if self.against and not self.lossless:
            raise OptionsConflict("--against is for the lossless check", "add --lossless")
        if self.save_acceptance and not self.acceptance:
            raise OptionMissing("--save-acceptance needs acceptance", "add --acceptance FILE")
        return self.acceptance is not None or self.lossless


def text_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about texts to a command, which receives them as ``text``."""

    def with_text(*args: Any, **given: Any) -> Any:
        names = TextOptions.__dataclass_fields__
        text = TextOptions(**{name: given.pop(name) for name in names})
        return command(*args, text=text, **given)

    with_text.__doc__ = command.__doc__
    with_text.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Callable[..., Any] = with_text
    for option in reversed(_TEXT_OPTIONS):
        decorated = option(decorated)
    return decorated


_FILE = click.Path(path_type=Path)

_TEXT_OPTIONS = (
    click.option(
        "--acceptance",
        metavar="FILE",
        type=_FILE,
        help="Measure the acceptance on these prompts instead: JSON lines with prompt or messages, "
        "and optionally domain and max_tokens.",
    ),
    click.option(
        "--save-acceptance",
        metavar="FILE",
        type=OutputPath(),
        help="With --acceptance: write the result, for `peagle verdict --acceptance`.",
    ),
    click.option(
        "--temperature",
        type=Decimal("a temperature from 0 to 10, such as 0.7", min=0.0, max=10.0),
        default=0.0,
        show_default=True,
        help="With --acceptance: sampling temperature; 0 is greedy decoding.",
    ),
    click.option(
        "--lossless",
        is_flag=True,
        help="Check that speculation does not change greedy answers to the prompts of "
        "--acceptance.  [default: the catalogue's prompts]",
    ),
    click.option(
        "--against",
        metavar="NAME|URL",
        help="With --lossless: a server of the target alone.  [default: started on this machine]",
    ),
)


def measure_text(
    target: BenchTarget,
    find: FindTarget,
    text: TextOptions,
    max_tokens: int | None,
    concurrency: int,
    as_json: bool,
) -> None:
    """Measure acceptance, check that nothing is lost, or both; print the results.

    Raises NotProved if speculation changes an answer, UserError if the engine refuses prompts, and
    what the server raises, after printing what was measured until then.
    """
    prompts = _prompts(target, text)
    tokens = max_tokens or DEFAULT_MAX_TOKENS
    results = _Results(text, as_json)
    with StatusLine() as status:
        alone = _alone(target, find, text.against, status) if text.lossless else None
        with results.printed():
            if text.acceptance:
                results.acceptance = api.measure_acceptance(
                    target,
                    prompts,
                    AcceptanceRequest(tokens, text.temperature, concurrency, _groups(target)),
                    keep=results.keep_acceptance,
                    progress=lambda domain, done, count: status.show(
                        f"acceptance, {domain}", f"{done} of {count} prompts"
                    ),
                )
            if alone:
                results.lossless = api.check_lossless(
                    target,
                    alone,
                    prompts,
                    tokens,
                    keep=results.keep_lossless,
                    progress=lambda server, done, count: status.show(
                        f"greedy answers of {server}", f"{done} of {count} prompts"
                    ),
                )
    if results.lossless:
        api.require_lossless(results.lossless)
    if results.acceptance:
        api.require_none_refused(results.acceptance)


def _groups(target: BenchTarget) -> int:
    return GROUPS if target.counted_by == "counters" else GROUPS_OF_LOG


class _Results:
    """What was measured until now; printed at the end, also after an error."""

    def __init__(self, text: TextOptions, as_json: bool) -> None:
        self.acceptance: AcceptanceResult | None = None
        self.lossless: LosslessResult | None = None
        self._text, self._as_json = text, as_json

    def keep_acceptance(self, result: AcceptanceResult) -> None:
        self.acceptance = result

    def keep_lossless(self, result: LosslessResult) -> None:
        self.lossless = result

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print the results when the block ends, also with an error."""
        try:
            yield
        finally:
            self._save()
            if self._as_json and (self.acceptance or self.lossless):
                print_json(
                    {
                        "acceptance": self.acceptance.document() if self.acceptance else None,
                        "lossless": self.lossless.document() if self.lossless else None,
                    }
                )
            elif not self._as_json:
                if self.acceptance:
                    print_acceptance(self.acceptance)
                if self.lossless:
                    print_lossless(self.lossless)

    def _save(self) -> None:
        file = self._text.save_acceptance
        if self.acceptance and file:
            write_output(file, api.acceptance_bytes(self.acceptance))
            print_written(file)


def _prompts(target: BenchTarget, text: TextOptions) -> PromptSet:
    """The user's prompts, else the catalogue's for the pair."""
    if text.acceptance:
        prompts = api.read_prompts(text.acceptance)
        if prompts.ignored:
            print_status(f"Ignored keys of {prompts.file}: {', '.join(prompts.ignored[:10])}.")
        return prompts
    return api.prompts_of_pair(command_catalog(), target.facts.pair)


def _alone(
    target: BenchTarget, find: FindTarget, against: str | None, status: StatusLine
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
    return _started(api.target_alone(engine, command_catalog(), status.show))


@contextmanager
def _started(engine: AbstractContextManager[LocalEngine]) -> Iterator[BenchTarget]:
    with engine as running:
        yield api.target_of_engine(running)
