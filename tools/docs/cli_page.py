"""docs/cli.md: every command with its arguments, options, defaults and examples."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import click

from peagle.cli.main import COMMANDS, cli
from peagle.cli.options import Option
from tools.docs.markdown import NOTE, escaped, table

_SHARED_BY = ("plan", "deploy", "render")
"""The commands whose common options are described once, as those of a plan."""

_COMMON = {
    "--json": "Print one JSON document on stdout; an error is JSON on the last line of stderr.",
    "--yes": "Do not ask for confirmation.",
    "--profile": "AWS profile; by default boto3's chain of credentials.",
    "--sandbox": "Use the AWS sandbox of this machine; needs no account.",
}
"""Options that mean the same wherever a command has them."""

_OF_SEVERAL = "options of several commands"

_FEW = 4
"""So few options of a plan are described where they are."""

_INTRODUCTION = f"""\
# The commands

{NOTE}

`peagle --help` lists the commands, and `peagle COMMAND --help` prints the text that is below.
`--catalog DIR` before the command, or `PEAGLE_CATALOG`, adds targets of your own to the catalogue.

## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 2 | usage error, including a folder that does not exist and a prompt that the engine rejects |
| 3 | rejected by a check (a damaged checkpoint too), or not proved |
| 4 | AWS, a registry, the Hub or the engine failed or rejected the request |
| 130 | interrupted |

[errors.md](errors.md) has the codes that `--json` prints.

## Options that several commands have

"""

_OF_PLANS = """\
## Options of a plan

`plan`, `deploy`, `render` and other commands that make a plan of PAIR have these. PAIR is a target,
or a target and a drafter: `gpt-oss-20b`, `gpt-oss-20b+eagle3`; a plan file already has them.

"""


_KEYS = """\
## Keys of peagle.yaml

Keys of the [project file](pipelines.md) and keywords of the [library](library.md), but no options.
An option of `deploy` is a key too, with `_` for `-`.

"""


def cli_page() -> str:
    """The chapter."""
    top = click.Context(cli, info_name="peagle", **cli.context_settings)
    shared = _shared(top)
    common = table(
        ("option", "meaning"), [(f"`{option}`", text) for option, text in _COMMON.items()]
    )
    first = _command(top, _SHARED_BY[0])
    plans = _options(first, [option for option in first.command.params if _key(option) in shared])
    parts = [f"{_INTRODUCTION}{common}\n", f"{_OF_PLANS}{plans}\n", f"{_KEYS}{_keys(top)}\n"]
    for group, names in COMMANDS.items():
        parts.append(f"## {group}\n")
        for name in names:
            parts += _described(_command(top, name), shared)
    return "\n".join(parts)


def _keys(top: click.Context) -> str:
    """The keys of the project file that are no options."""
    rows = [
        (f"`{option.name}`", escaped(f"{option.help}{_variable(option)}"))
        for option in _command(top, "deploy").command.params
        if isinstance(option, Option) and option.in_file
    ]
    return table(("key", "meaning"), rows)


def _variable(option: click.Option) -> str:
    return f" [env: {option.envvar}]" if option.envvar else ""


def _command(parent: click.Context, name: str) -> click.Context:
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _key(parameter: click.Parameter) -> tuple[str | None, str | None]:
    """The name and the help of an option: of a training, ``--set`` is another one."""
    return parameter.name, getattr(parameter, "help", None)


def _shared(top: click.Context) -> set[tuple[str | None, str | None]]:
    """The keys of the options of a plan."""
    keys = [
        {
            _key(parameter)
            for parameter in _command(top, name).command.params
            if _is_option(parameter)
        }
        for name in _SHARED_BY
    ]
    others = ("as_json", "profile", "sandbox")
    return {key for key in set.intersection(*keys) if key[0] not in others}


def _described(
    ctx: click.Context, shared: Collection[tuple[str | None, str | None]]
) -> Iterator[str]:
    """A command, or the commands of a group."""
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            yield from _described(_command(ctx, name), shared)
        if not ctx.command.invoke_without_command:
            return
    command = ctx.command
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"### {ctx.command_path}\n"
    yield f"`{usage}`\n"
    yield f"{_help(command.help or '')}\n"
    options = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and _is_option(parameter)
    ]
    common = [
        f"`{parameter}`"
        for parameter in _COMMON
        if any(parameter in option.opts for option in options)
    ]
    of_plan = [parameter for parameter in options if _key(parameter) in shared]
    remaining = [
        parameter for parameter in options if not _is_common(parameter) and parameter not in of_plan
    ]
    if 0 < len(of_plan) < _FEW:
        remaining, of_plan = [parameter for parameter in options if not _is_common(parameter)], []
    if described := _options(ctx, remaining):
        yield f"{described}\n"
    also = [f"[{_OF_SEVERAL}](#options-that-several-commands-have): {', '.join(common)}"]
    also = also if common else []
    if of_plan:
        names = [f"`{max(parameter.opts, key=len)}`" for parameter in of_plan]
        which = "all" if len(of_plan) == len(shared) else ", ".join(names)
        also.append(f"[options of a plan](#options-of-a-plan): {which}")
    if also:
        yield f"Also {'; '.join(also)}.\n"
    if examples := _examples(command.epilog or ""):
        yield f"```bash\n{examples}\n```\n"


def _is_option(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.hidden


def _is_common(option: click.Option) -> bool:
    return any(spelling in _COMMON for spelling in option.opts)


def _options(ctx: click.Context, parameters: Collection[click.Parameter]) -> str:
    rows = []
    for parameter in parameters:
        record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
        if record is None or parameter.name == "help":
            continue
        names, meaning = record
        shown = names.replace("|", "\\|")
        rows.append((f"`{shown}`", escaped(re.sub(r"\s+\[", " [", meaning))))
    return table(("option", "meaning"), rows) if rows else ""


def _help(text: str) -> str:
    """The help of a command as paragraphs; what must not be wrapped as a list."""
    parts = []
    for paragraph in text.split("\n\n"):
        if "\b" in paragraph:
            lines = [line.strip() for line in paragraph.replace("\b", "").splitlines()]
            parts.append("\n".join(f"- {escaped(line)}" for line in lines if line))
        else:
            parts.append(escaped(paragraph))
    return "\n\n".join(part for part in parts if part)


def _examples(epilog: str) -> str:
    lines = [line.strip() for line in epilog.replace("\b", "").splitlines()]
    examples = [re.sub("^Examples?: ?", "", line) for line in lines]
    return "\n".join(line for line in examples if line.startswith(("peagle ", "eval ")))
