"""The types of options' values, options that several commands share, and refusal by a check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import HERE
from peagle.cli import view
from peagle.cli.context import WORDS, PeagleCommand, is_plan_file
from peagle.errors import Fix, OptionsConflict, PeagleError, UserError
from peagle.findings import Finding, refuse_errors
from peagle.options import AUTO, LONGEST_CAPTURE_DAYS
from peagle.planning import Options
from peagle.planning.runtime import DEFAULT_REGION, REGION_VARIABLES
from peagle.text import parse_batch, parse_duration, parse_requests, parse_tokens, sanitize
from peagle.vllm.defaults import KV_CACHE_DTYPES
from peagle.workload import parse_slo

if TYPE_CHECKING:
    from peagle.engine.gpus import Gpus

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

PLAN_FIELDS = {*Options.model_fields, "no_speculation", "verdict"}
"""The parameters that planning options have in click."""


class Parsed(click.ParamType[T]):
    """The type of options whose value is what ``parse`` makes of the text; ``name`` is click's."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """The value. Raises BadParameter where ``parse`` raises ValueError."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            return self.fail(str(error), param, ctx)


def _parse_loads(text: str) -> tuple[int, ...]:
    """Numbers such as ``1,8,32``: ascending, each once. Raises ValueError."""
    if not re.fullmatch("[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*", text):
        raise ValueError(f"{sanitize(text, 40)!r} is no list of numbers such as 1,8,32")
    return tuple(sorted({*map(int, text.split(","))}))


def parse_copies(text: str) -> int | str:
    """A number of engines, or ``auto``. Raises ValueError."""
    if text == AUTO or re.fullmatch("[1-9][0-9]{0,2}", text):
        return text if text == AUTO else int(text)
    raise ValueError(f"{sanitize(text, 40)!r} is neither auto nor a number of engines")


class _Tag(click.types.StringParamType):
    """``KEY=VALUE``. A variable holds several with commas, which no tag has."""

    envvar_list_splitter = ","


_POSITIVE = click.FloatRange(min=0, min_open=True)
FILE = click.Path(dir_okay=False, path_type=Path)

KINDS: dict[str, tuple[Any, str | None]] = {
    "text": (None, None),
    "switch": (None, None),
    "choice": (None, None),
    "count": (click.IntRange(min=1), None),
    "number": (click.IntRange(min=0), "N"),
    "k": (click.INT, None),
    "copies": (Parsed("copies", parse_copies), "N|auto"),
    "tokens": (Parsed("integer range", parse_tokens), "TOKENS"),
    "requests": (Parsed("integer range", parse_requests), "REQUESTS"),
    "batch": (Parsed("integer range", parse_batch), "N"),
    "percent": (click.IntRange(1, 100), "PERCENT"),
    "days": (click.IntRange(0, LONGEST_CAPTURE_DAYS), "DAYS"),
    "usd": (_POSITIVE, "USD"),
    "speed": (_POSITIVE, "N"),
    "load": (_POSITIVE, "REQUESTS"),
    "duration": (Parsed("text", parse_duration), "DURATION"),
    "hours": (Parsed("text", parse_duration), "DURATION"),
    "slo": (Parsed("text", parse_slo), "TIMES"),
    "ids": (Parsed("text", lambda text: tuple(re.findall(r"[^\s,]+", text))), "ID,..."),
    "texts": (None, "SHA256"),
    "settings": (None, "ARGUMENT[=VALUE]"),
    "variables": (None, "NAME=VALUE"),
    "tags": (_Tag(), "KEY=VALUE"),
    "share": (click.FloatRange(min=0, max=1, min_open=True), None),
    "gib": (click.FloatRange(min=1, max=2048), None),
    "dtype": (click.Choice(KV_CACHE_DTYPES), None),
    "loads": (Parsed("text", _parse_loads), "N[,N...]"),
    "speculative": (None, "KEY=VALUE"),
    "positive": (_POSITIVE, "N"),
    "file": (FILE, None),
    "path": (click.Path(path_type=Path), None),
}
"""Kind of value, of a planning option or another -> its type of click, and its metavar."""


def add_options(options: Sequence[click.Option]) -> Callable[[Command], Command]:
    """A decorator: add the options to a command, in this order."""

    def add(command: Command) -> Command:
        vars(command).setdefault("__click_params__", []).extend(reversed(options))
        return command

    return add


class Option(click.Option):
    """An option that can be a decorator, too. ``group`` is its heading in ``--help``. It ``needs``
    another one, such as ``--url``. One that is ``in_file`` is a key of ``peagle.yaml``, perhaps
    with a variable, which the command line does not have."""

    group, needs, in_file = "Options", "", False

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option; the parser does not accept one that is ``in_file``."""
        if not self.in_file:
            super().add_to_parser(parser, ctx)

    def __call__(self, command: Command) -> Command:
        """Add the option to the command."""
        return add_options([self])(command)


def option(
    names: str, help: str, type: Any = None, needs: str = "", in_file: bool = False, **settings: Any
) -> Option:
    """An option that shows its default. ``names``, separated by blanks, are its flags, the name of
    the parameter if that is another, and the metavar. A ``type`` may be one of ``KINDS``, whose
    metavar is the usual one; ``bool`` is a flag, and a tuple a choice.
    It ``needs`` another option, which is written as in ``--acceptance FILE``."""
    words = names.split()
    flags = [word for word in words if word.startswith("-")]
    parameter = [word for word in words if word.isidentifier() and word.islower()]
    metavar = next((word for word in words if word not in (*flags, *parameter)), None)
    settings.setdefault("show_default", settings.get("default") is not None)
    if isinstance(type, str):
        settings["type"], usual = KINDS[type]
        metavar = metavar or usual
    elif type is bool:
        settings = {"is_flag": True}
    elif type is not None:
        settings["type"] = click.Choice(type) if isinstance(type, tuple) else type
    made = Option([*flags, *parameter], metavar=metavar, help=help, hidden=in_file, **settings)
    made.needs, made.in_file = needs, in_file
    return made


def command(
    *examples: str,
    name: str | None = None,
    of: click.Group | None = None,
    cls: type[PeagleCommand] = PeagleCommand,
    json: bool = True,
    **settings: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """A decorator: a command with these examples, ``of`` a group, and with ``--json`` as its last
    option."""

    def make(function: Callable[..., Any]) -> click.Command:
        lines = "\n".join(f"  {example}" for example in examples)
        epilog = f"\b\nExamples:\n{lines}\n" if examples[1:] else f"Example: {examples[0]}"
        made = click.command(name, cls=cls, epilog=epilog, **settings)(function)
        made.params += [_json_flag] if json else []
        if of is not None:
            of.add_command(made)
        return made

    return make


class DefaultGroup(click.Group):
    """A group whose command ``run`` needs no name, as in ``peagle bench NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command unless one, or ``--help``, comes first."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            follows = args[1:] and args[1] in self.commands and not args[0].startswith("-")
            if follows and not ctx.resilient_parsing:
                words = (*ctx.command_path.split(), args[1], args[0], *args[2:])
                raise UserError(f"{args[1]} goes before {args[0]}", Fix("write", words))
            args = [self.choose_default(args), *args]
        return super().parse_args(ctx, args)

    def choose_default(self, args: Sequence[str]) -> str:
        """The command that these arguments are for."""
        return "run"


def output_option(help: str) -> Callable[..., Any]:
    """``-o/--output FILE``: ``output``."""
    return option("-o --output --out output FILE", help, FILE)


def region_option(what: str) -> Callable[..., Any]:
    """``--region``, us-east-1 by default: the region of ``what``."""
    help_text = f"Region of {what}.  [env: AWS_REGION; default: {DEFAULT_REGION}]"
    variables = REGION_VARIABLES
    return click.option("--region", envvar=variables, default=DEFAULT_REGION, help=help_text)


_json_flag = option("--json as_json", "Print one JSON document.", bool)
yes_option = option("--yes -y", "Do not ask for confirmation.", bool)

deploy_options = add_options([
    option("--role", "Execution role: ARN or name.  [default: found automatically]",
           envvar="PEAGLE_ROLE"),
    yes_option,
    option("--accept-unknown-price", "Deploy even if the price is unknown.", bool),
])  # fmt: skip
"""The options of commands that create an endpoint."""


def here_option(command: Command, hidden: bool = True) -> Command:
    """``--here``: plan for the GPUs of this machine, as ``--instance-type here`` does, whose help
    names it."""
    text = "Plan for the GPUs of this machine.  [default: if it has some]"
    return click.option(
        "--here", "instance_type", flag_value=HERE, hidden=hidden, help=text, callback=_one_machine
    )(command)


def _one_machine(ctx: click.Context, _: click.Parameter, instance_type: str | None) -> str | None:
    words = ctx.meta[WORDS]
    if "--here" in words and any(word.startswith("--instance-type") for word in words):
        raise OptionsConflict("--here and --instance-type are mutually exclusive", "omit one")
    return instance_type


def is_here(ctx: click.Context) -> bool:
    """Whether the command plans for this machine. A local one does so where there are GPUs, unless
    an instance type, a container or a plan file is named."""
    names = ctx.params
    if names.get("instance_type"):
        return bool(names["instance_type"] == HERE)
    is_local = ctx.command.name in ("sweep", "up") and names["engine_kind"] == "process"
    return is_local and not is_plan_file(names["pair"]) and machine_gpus(ctx) is not None


_GPUS = "peagle.gpus"
"""Key in click's ``Context.meta`` of what NVML has reported to the command."""


def machine_gpus(ctx: click.Context | None = None) -> Gpus | None:
    """The GPUs of this machine, or ``None``; read once in a command, since a driver that nothing
    keeps loaded takes seconds for it."""
    ctx = ctx or click.get_current_context()
    if _GPUS not in ctx.meta:
        from peagle.engine.gpus import find_gpus

        ctx.meta[_GPUS] = find_gpus()
    gpus: Gpus | None = ctx.meta[_GPUS]
    return gpus


CATALOG = "peagle.catalog"
"""Key in click's ``Context.meta`` of the catalogue of the command, perhaps with a target of the
user's own."""


def catalog_of(ctx: click.Context) -> Path | None:
    """The folder of ``peagle --catalog``."""
    folder = ctx.find_root().params.get("catalog_folder")
    return None if folder is None else Path(folder)


def command_catalog(ctx: click.Context | None = None) -> Catalog:
    """The catalogue of the running command: the bundled one with that of ``peagle --catalog``."""
    ctx = ctx or click.get_current_context()
    if CATALOG not in ctx.meta:
        catalog = load_catalog(catalog_of(ctx))
        if is_here(ctx):
            from peagle.engine.gpus import this_machine_in

            catalog = this_machine_in(catalog, machine_gpus(ctx))
        ctx.meta[CATALOG] = catalog
    kept: Catalog = ctx.meta[CATALOG]
    return kept


def complete_pair(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """Targets, after a ``+`` the drafters of that target, and plan files, that begin as typed; none
    after an error, which is not shown."""
    try:
        catalog = load_catalog(catalog_of(ctx))
    except PeagleError:
        return []
    target = typed.split("+")[0]
    targets = {entry.short_name: entry for entry in catalog.targets.values()}
    names = [*targets, *map(str, sorted(Path().glob("*.json")))]
    if target != typed and target in targets:
        names = [f"{target}+{drafter.name}" for drafter in targets[target].drafters]
    return [each for each in names if each.startswith(typed)]


def print_and_refuse(findings: Sequence[Finding], err: bool = True, title: str = "") -> None:
    """Show the findings; raise Refused with the first error, which is not shown twice."""
    view.print_findings(view.without_first_error(findings), err, title)
    refuse_errors(findings)
