"""The class of all commands, and which of the user's options a printed command repeats."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import click
from click.core import ParameterSource

from peagle.errors import OptionMissing, PeagleError, command_line

_KEPT = ("--catalog", "--profile", "--sandbox", "--region")
"""Options that decide what a command sees and which account it changes."""

WORDS = "peagle.words"
"""Key in click's ``Context.meta``: the words that the user typed after the command's name."""

_FLAGS = ("as_json", "yes")
"""Parameters that a command's function does not get: what they change asks ``is_set``."""


def range_text(error: click.UsageError) -> str:
    """``needs a number above 0`` for a number out of its option's range, else an empty text."""
    kind = getattr(getattr(error, "param", None), "type", None)
    if kind is None or "is not in the range" not in error.message:
        return ""
    least = "above" if kind.min_open else "of at least"
    most = "" if kind.max is None else f" and at most {kind.max}"
    return f"needs a number {least} {kind.min}{most}"


class PeagleCommand(click.Command):
    """A command; the fix of its errors repeats the options that decide where it applies."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as typed: the first call within a context is the user's."""
        ctx.meta.setdefault(WORDS, tuple(args))
        try:
            rest = super().parse_args(ctx, args)
            for option in () if ctx.resilient_parsing else self.params:  # tab completion
                if needs := getattr(option, "needs", ""):
                    _require(ctx, option, *needs.split())
            return rest
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # so that the fix shows the help of this command
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options in their groups, those of the command itself after those of its plan."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        last = ("Options", "SageMaker")
        for group in sorted(groups, key=lambda name: last.index(name) if name in last else -1):
            with formatter.section(group):
                formatter.write_dl(groups[group])
        if keys := [str(part.name) for part in self.params if getattr(part, "in_file", False)]:
            formatter.write_paragraph()
            formatter.write_text(f"Further keys of peagle.yaml: {', '.join(keys)}.")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the fix of an error that ends it gets the kept options."""
        assert self.callback is not None
        parameters = {name: ctx.params[name] for name in ctx.params if name not in _FLAGS}
        try:
            return ctx.invoke(self.callback, **parameters)
        except PeagleError as error:
            error.command = in_context(error.command, ctx)
            raise


def _require(ctx: click.Context, option: click.Parameter, flag: str, argument: str = "") -> None:
    """Raise OptionMissing for a typed option without the one that it needs: with that argument, or
    with any for a placeholder such as ``FILE``."""
    needed = next(part for part in ctx.command.params if flag in part.opts)
    value = ctx.params[str(needed.name)]
    is_there = value == argument if argument.islower() else value
    if not is_there and (typed := typed_flag(ctx, (option.name,))):
        raise OptionMissing(f"{typed} needs {flag} {argument}", f"add it, or omit {typed}")


def is_set(name: str) -> bool:
    """Whether the running command has that flag, and the user set it."""
    ctx = click.get_current_context(silent=True)
    return bool(ctx and ctx.params.get(name))


def root_group(ctx: click.Context) -> click.Group:
    """``peagle`` itself, with all commands."""
    return cast("click.Group", ctx.find_root().command)


def is_typed(ctx: click.Context, parameter: str) -> bool:
    """Whether the user typed the parameter, which else has a default or comes from a variable."""
    return ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def typed_flag(ctx: click.Context, names: Collection[str | None]) -> str:
    """The flag of the first of these parameters that the user typed; empty without one."""
    for part in ctx.command.params:
        if part.name in names and is_typed(ctx, part.name):
            return "/".join((max(part.opts, key=len), *part.secondary_opts))
    return ""


def in_context(command: Sequence[str], ctx: click.Context | None = None) -> tuple[str, ...]:
    """``command`` with ``--catalog``, ``--profile``, ``--sandbox`` and ``--region`` of the user's
    command line or project file, as far as it takes them. A command of the AWS CLI gets
    ``--profile``; for the sandbox it is left out, since it would change the user's account."""
    words = tuple(command)
    ctx = ctx or click.get_current_context(silent=True)
    if ctx is None or words[:1] not in (("peagle",), ("aws",)):
        return words
    kept = {flag: argument for flag, argument in _kept(ctx).items() if flag not in words}
    if words[0] == "aws":
        if "--sandbox" in kept:
            return ()
        return words if words[1] == "configure" else (*words, *kept.get("--profile", ()))
    # Without an option to add, the command's module need not load.
    called: click.Command | None = root_group(ctx) if kept.keys() - {"--catalog"} else None
    for word in words[1:]:
        if isinstance(called, click.Group):
            called = called.get_command(ctx.find_root(), word)
    accepted = {flag for parameter in called.params for flag in parameter.opts} if called else set()
    if words[1] == "plan" and "--online" not in words:
        accepted -= {"--profile", "--sandbox"}
    if words[1] == "catalog":  # the sandbox's prices are the catalogue's
        accepted -= {"--sandbox"}
    tail = [word for flag in _KEPT[1:] if flag in accepted for word in kept.get(flag, ())]
    end = words.index("--") if "--" in words else len(words)
    return (words[0], *kept.get("--catalog", ()), *words[1:end], *tail, *words[end:])


def _kept(ctx: click.Context) -> dict[str, tuple[str, ...]]:
    """The kept options of the command line and of the project file, with their words."""
    kept: dict[str, tuple[str, ...]] = {}
    for level in (ctx.find_root(), ctx):
        for parameter in level.command.params:
            name = parameter.name or ""
            value, source = level.params.get(name), level.get_parameter_source(name)
            if source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP) and value:
                for flag in {*parameter.opts} & {*_KEPT}:
                    kept[flag] = (flag,) if value is True else (flag, str(value))
    return kept


def typed_command(without: Collection[str] = (), verb: Sequence[str] = ()) -> tuple[str, ...]:
    """The command line as the user typed it, to repeat it, or to follow it by the command ``verb``
    with the same options; flags ``without`` are left out."""
    ctx = click.get_current_context()
    words = [word for word in ctx.meta[WORDS] if word not in without]
    catalog = _kept(ctx).get("--catalog", ())
    return ("peagle", *catalog, *(verb or ctx.command_path.split()[1:]), *words)


def command_text(command: Sequence[str]) -> str:
    """``command`` in the context of the user's command line, quoted for a shell."""
    return command_line(in_context(command))


def is_plan_file(pair: str) -> bool:
    """Whether PAIR|PLAN is a plan file: pairs do not end in ``.json``."""
    return pair.endswith(".json")


def add_to_error_document(key: str, document: Any) -> None:
    """Put ``document`` next to ``error`` into what ``--json`` prints if the command fails."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and isinstance(ctx.obj, dict):
        ctx.obj[key] = document
