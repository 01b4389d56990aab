"""How every command prints: one JSON document, or facts, tables, findings and the next command; and
progress.

A terminal gets lines of its width; a pipe gets each text in one line, without colour, and all of
it. With ``COLUMNS`` both have that width. Commands and addresses are never broken.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from peagle.cli.context import command_text, in_context, is_set
from peagle.errors import Fix, UserError
from peagle.text import format_duration, format_size, format_usd, plain, shortened

if TYPE_CHECKING:
    from peagle.aws.runtime import LogEvent
    from peagle.deploy.context import Progress
    from peagle.findings import Finding

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code of Ctrl-C."""

UNLIMITED = 10_000
"""The width of a pipe, which another program may read."""

LABEL = 12
"""The least width of the labels of facts and findings."""

Fact = tuple[str, str | tuple[str, str]]
"""A label and a text, or a text with a command, as of ``with_command``."""

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def wants_json() -> bool:
    """Whether stdout is for one JSON document."""
    return is_set("as_json")


def print_result(result: T, show: Callable[[T], object] | None = None) -> None:
    """Print the result of a command: as JSON, else by ``show``, by default its keys and values;
    several as a table."""
    print_json(result)
    if wants_json():
        return
    if show is not None:
        show(result)
    elif isinstance(document := plain(result), dict):
        print_document(document)
    elif document:
        print_documents(document, [*document[0]])
    else:
        print_line("none")


def print_json(document: Any) -> None:
    """With --json, print a document, a model or a dataclass, escaped if stdout cannot encode it.
    The commands of a status and of findings get the context of the user's command line."""
    if not wants_json():
        return
    document = plain(document)
    if isinstance(document, dict):
        commands = [(finding, "command") for finding in document.get("findings") or ()]
        for entry, key in (*commands, (document, "failure_command")):
            if entry.get(key):
                entry[key] = in_context(entry[key]) or None
    click.echo(json.dumps(document, indent=2, ensure_ascii=sys.stdout.encoding != "utf-8"))


def print_log(name: str, events: Iterable[LogEvent], follow: bool) -> bool:
    """Print the lines of a log as they come, and whether there are any; Ctrl-C is the usual end of
    one that is followed."""
    if wants_json():
        lines = [
            {
                "time": datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds"),
                "stream": event.stream,
                "message": event.message,
            }
            for event in events
        ]
        print_json({"name": name, "events": lines})
        return True
    shown = False
    try:
        for event in events:
            click.echo(event.message)
            shown = True
    except KeyboardInterrupt:
        if not follow:
            raise
        click.get_current_context().exit(INTERRUPTED)
    return shown


def line_width(err: bool = False) -> int:
    """The width of stdout's lines, or of stderr's: from ``COLUMNS``, else of the terminal."""
    has_width = os.environ.get("COLUMNS") or (sys.stderr if err else sys.stdout).isatty()
    return shutil.get_terminal_size().columns if has_width else UNLIMITED


def folded(text: str, width: int, indent: str = "  ") -> list[str]:
    """Each line of ``text`` in lines of ``width``; words longer than a line are not broken."""
    lines: list[str] = []
    for line in text.split("\n"):
        start = line[: len(line) - len(line.lstrip(" "))]
        lines += wrap(
            line, max(width, 1), subsequent_indent=start + indent,
            break_long_words=False, break_on_hyphens=False,
        ) or [""]  # fmt: skip
    return lines


def with_command(text: str, command: str, width: int) -> list[str]:
    """``TEXT: COMMAND`` in lines of ``width``. A command that does not fit has a line of its own,
    however long: a break within its quotes would change what is pasted."""
    whole = f"{text}{' ' if text.endswith('?') else ': '}{command}" if text else command
    if not command or len(whole) <= width:
        return folded(whole if command else text, width)
    return [*folded(f"{text}:", width), f"  {command}"] if text else [command]


def print_text(text: str, nl: bool = True) -> None:
    """Print a text on stdout unchanged; nothing with --json."""
    if not wants_json():
        click.echo(text, nl=nl)


def print_line(text: str, command: str = "", bold: bool = False, err: bool = False) -> None:
    """Print a text on stdout, and behind it a command."""
    if wants_json() and not err:
        return
    shown = "\n".join(with_command(text, command, line_width(err)))
    click.echo(click.style(shown, bold=True) if bold else shown, err=err)


def print_status(message: str, command: str = "", bold: bool = False) -> None:
    """Print a message, and behind it a command, on stderr, which keeps stdout for results."""
    print_line(message, command, bold, err=True)


def print_written(path: Path) -> None:
    """Say on stderr that the file was written."""
    print_status(f"wrote {path}")


def fact_lines(
    facts: Iterable[Fact], width: int, label: int = LABEL, indent: int = 2
) -> Iterator[str]:
    """Labels and texts in two columns, without empty texts."""
    start = " " * indent
    for name, text in facts:
        room = width - label - indent
        lines = folded(text, room, "") if isinstance(text, str) else with_command(*text, room)
        for number, line in enumerate(lines if text and any(text) else ()):
            yield f"{start}{'' if number else f'{name} ':<{label}}{line}".rstrip()


def print_facts(facts: Iterable[Fact], indent: int = 2, err: bool = True, title: str = "") -> None:
    """Print labels and texts in two columns, on stderr or on stdout, below a title, if there are
    any."""
    facts = tuple(facts)
    if wants_json() and not err:
        return
    if title and facts:
        print_line(title if err else f"\n{title}", bold=True, err=err)
    label = max([LABEL, *(len(name) + 1 for name, text in facts if text)])
    for line in fact_lines(facts, line_width(err), label, indent):
        name = click.style(line[: label + indent], bold=True)
        click.echo(f"{name}{line[label + indent :]}", err=err)


def without_first_error(findings: Sequence[Finding]) -> list[Finding]:
    """All but the first error, which is the command's last line."""
    first = next((finding for finding in findings if finding.level == "error"), None)
    return [finding for finding in findings if finding != first]


def print_findings(findings: Iterable[Finding], err: bool = False, title: str = "") -> None:
    """Print each finding: level, where, message and code; below it the fix, with its command."""
    findings = tuple(findings)
    if wants_json() and not err:
        return
    if title and findings:
        print_line(f"\n{title}", bold=True, err=err)
    for finding in findings:
        text = f"{finding.where}: {finding.message} [{finding.code}]"
        fix = f"fix: {finding.fix}" if finding.fix else "fix" if finding.command else ""
        facts = ((finding.level, text), ("", (fix, command_text(finding.command or ()))))
        lines = "\n".join(fact_lines(facts, line_width(err), indent=0))
        level = click.style(lines[:LABEL], fg=_COLORS[finding.level], bold=True)
        click.echo(f"{level}{lines[LABEL:]}", err=err)


def count_text(findings: Iterable[Finding]) -> str:
    """``2 warnings (instance-scarce, gpus-idle), 5 notes``; empty without any."""
    codes: dict[str, list[str]] = {"error": [], "warning": [], "note": []}
    for finding in findings:
        codes[finding.level].append(finding.code)
    return ", ".join(
        f"{len(names)} {level}{'' if len(names) == 1 else 's'}"
        + ("" if level == "note" else f" ({', '.join(dict.fromkeys(names))})")
        for level, names in codes.items()
        if names
    )


def plain_text(value: Any) -> str:
    """A value of a document as text; ``-`` is unknown or none."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        texts = (f"{key} {plain_text(part)}" for key, part in value.items() if part is not None)
        return ", ".join(texts).replace("_", " ")
    if isinstance(value, list | tuple):
        if value and all(isinstance(part, float) for part in value):
            return " ".join(f"{part:.2f}" for part in value)
        return ("; " if value and isinstance(value[0], dict) else ", ").join(map(plain_text, value))
    return str(value)


_COLUMNS = {
    "instance_count": "count", "instance_type": "instance", "tensor_parallel_size": "GPUs",
    "max_concurrency": "requests", "price_per_hour_usd": "$/hour",
    "tokens_per_second": "tokens/s", "usd_per_million_tokens": "$/1M",
}  # fmt: skip
"""Headings of columns where the words of the key are much wider than its values."""

_LABELS = {"low": "tokens per second, low", "high": "tokens per second, high"}


def key_label(key: str) -> str:
    """A key of a document as a label: its unit stands in the value."""
    words = key.removesuffix("_seconds").replace("usd_per", "price_per").split("_")
    return " ".join(word for word in words if word != "usd")


def key_text(key: str, value: Any) -> str:
    """The value of a key as text, with the unit that the key names."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key in ("pid", "port"):
            return str(value)
        if key.endswith("_seconds"):
            return seconds_text(value)
        if "usd" in key.split("_"):
            return format_usd(value)
    return plain_text(value)


def document_facts(document: Any) -> Iterator[tuple[str, str]]:
    """The keys and values of a result as labels and texts."""
    for key, value in plain(document).items():
        yield _LABELS.get(key, key_label(key)), key_text(key, value)


def seconds_text(seconds: float) -> str:
    """``576 ms``, ``1.2 s``."""
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def print_documents(results: Sequence[Any], keys: Sequence[str], title: str = "") -> None:
    """Print these keys of results of one kind as a table, without columns that are empty."""
    documents = [plain(result) for result in results]
    kept = [key for key in keys if any(item.get(key) not in (None, "", []) for item in documents)]
    headings = {key: _COLUMNS.get(key, key_label(key)) for key in kept}
    numbers = [
        heading
        for key, heading in headings.items()
        if all(isinstance(item.get(key), int | float) for item in documents)
    ]
    rows = [[key_text(key, item.get(key)) for key in kept] for item in documents]
    pasted = [headings[key] for key in ("name", "instance_type") if key in headings]
    print_table([*headings.values()], rows, numbers, title, pasted)


def print_document(result: Any, title: str = "") -> None:
    """Print values as facts, objects as sections, lists of objects as tables, nothing for empty."""
    facts: dict[str, Any] = {}
    sections: list[tuple[str, Any]] = []
    for key, value in plain(result).items():
        is_table = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
        if is_table or isinstance(value, dict):
            sections.append((key, value))
        elif value not in (None, "", []):
            facts[key] = value
    print_facts(document_facts(facts), indent=0, err=False, title=title)
    for key, value in sections:
        if isinstance(value, dict):
            print_document(value, key.replace("_", " "))
        else:
            print_documents(value, list(value[0]), key.replace("_", " "))


_BLANKS = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
"""At the end of a line, before the end of its style."""


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[str] = (),
    title: str = "",
    whole: Collection[str] = (),
) -> None:
    """Print a table on stdout, below its title, if there are rows. Columns in ``right`` are aligned
    to the right; these, URLs and those in ``whole`` are never folded. Columns come closer and long
    words are broken if the table fits the terminal then; else lines are longer."""
    from rich.console import Console
    from rich.table import Table

    columns = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    if wants_json() or not columns:
        return
    width, wholes, longest = line_width(), list[bool](), list[int]()
    for heading, cells in zip(headings, columns, strict=True):
        wholes.append(heading in right or heading in whole or cells[0].startswith("http"))
        words = cells if wholes[-1] else [word for cell in cells for word in cell.split()]
        longest.append(max(map(len, [*words, *heading.split()]), default=0))
    share = max(24, width // len(columns) - 2)
    for gap, most in [(2, max(longest)), (2, share), *((1, less) for less in range(share, 9, -1))]:
        broken = [
            least if is_whole else min(least, most)
            for least, is_whole in zip(longest, wholes, strict=True)
        ]
        if (free := width - gap * (len(columns) - 1) - sum(broken)) >= 0:
            longest = broken
            break
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    table.show_header = any(headings)
    texts = zip(headings, columns, strict=True)
    needed = [max(map(len, [heading, *cells])) for heading, cells in texts]
    fits, widths = free >= 0, [*longest]
    # The columns that need the least more get it first: rich itself exceeds the width.
    for at in sorted(range(len(columns)), key=lambda at: needed[at] - longest[at]):
        more = max(0, min(needed[at] - longest[at], free))
        widths[at] += more
        free -= more
    for heading, least, fixed in zip(headings, longest, widths, strict=True):
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            width=fixed if fits else None,
            min_width=least,
            overflow="fold",
        )
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    if title:
        print_line(f"\n{title}", bold=True)
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(table, crop=False)
    for line in capture.get().splitlines():
        click.echo(_BLANKS.sub(r"\1", line))


def confirmed(question: str) -> bool:
    """Ask on stderr. Raises UserError, with the fix, if stdin is not a terminal."""
    if not sys.stdin.isatty():
        fix = Fix("review what is shown above, then pass --yes", options=("--yes",))
        message = "confirmation needed, but stdin is not a terminal"
        raise UserError(message, fix, code="confirmation-needed")
    return click.confirm(question, err=True)


def confirm(question: str, declined: str) -> None:
    """Raise UserError, with the message ``declined``, unless the user agrees, by ``--yes`` or
    now."""
    if not is_set("yes") and not confirmed(question):
        message = f"{declined}; nothing was changed"
        raise UserError(message, "answer y, or pass --yes", code="declined")


_ERASE = "\r\x1b[2K"


@contextmanager
def show_hashing() -> Iterator[None]:
    """In the block, show how far large files of weights are read for their hash."""
    from peagle.checkpoints.contents import watch_hashing  # many commands read none

    with StatusLine() as status:

        def read(name: str, done: int, size: int) -> None:
            status.show(f"hashing {name}", f"{format_size(done)} of {format_size(size)}")

        with watch_hashing(read):
            yield


class StatusLine:
    """Shows the current step, on a terminal in one line that is cleared at the end; without one, as
    in a pipeline, in a line every ``repeat_seconds``."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, repeat_seconds: float = 15.0
    ) -> None:
        self._clock = clock
        self._repeat_seconds = repeat_seconds
        self._started_at = clock()
        self._printed_at = float("-inf")
        self._is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._line = ""  # on the terminal
        self._lock = threading.RLock()  # calls in threads show their steps
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True  # a thread that still runs writes nothing below an error
            self.clear()

    def clear(self) -> None:
        """Remove the line from a terminal, before other output."""
        with self._lock:
            if self._line:
                print(_ERASE, end="", file=sys.stderr, flush=True)
                self._line = ""

    def show(self, step: str, detail: str = "") -> None:
        """Show the step, its elapsed seconds, and as much of ``detail`` as fits."""
        seconds = self._clock() - self._started_at
        self.show_line(f"{step}, {seconds:.0f} s{': ' if detail else ''}{detail}")

    def show_line(self, line: str, at_once: bool = False) -> None:
        """Show a line. Without a terminal one that follows too soon is omitted, but ``at_once``."""
        with self._lock:
            if self._is_closed:
                return
            now = self._clock()
            if self._is_terminal:
                self._line = shortened(_printable(line), line_width(err=True) - 1)
                print(f"{_ERASE}{self._line}", end="", file=sys.stderr, flush=True)
            elif at_once or now - self._printed_at >= self._repeat_seconds:
                self._printed_at = now
                self.show_notice(line)

    def show_notice(self, text: str) -> None:
        """Show a text that stays: on a terminal, above the line."""
        with self._lock:
            start = _ERASE if self._line else ""
            print(f"{start}{_printable(text)}\n{self._line}", end="", file=sys.stderr, flush=True)


class DeploymentProgress(StatusLine):
    """The progress of a deployment with its cost (``sandbox``: on AWS). Without a terminal: a line
    for each new state, for the first line of the log, and every minute."""

    def __init__(self, sandbox: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock, 60.0)
        self._sandbox = sandbox
        self._shown = ("", False)

    def observe(self, progress: Progress) -> None:
        """Show state, elapsed time, cost so far and the last log line, where known."""
        if progress.is_notice:
            self.show_notice(f"{progress.state}: {progress.line}")
            return
        parts = [progress.state]
        if progress.seconds:
            parts.append(format_duration(progress.seconds))
        if progress.cost_usd is not None:
            so_far = "on AWS" if self._sandbox else "so far"
            parts.append(f"{format_usd(progress.cost_usd)} {so_far}")
        if progress.line:
            parts.append(progress.line)
        shown = (progress.state, progress.is_logging)
        is_new = shown != self._shown or not progress.lasting
        self._shown = shown
        self.show_line(" | ".join(parts), at_once=is_new)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
