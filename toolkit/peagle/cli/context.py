"""Options of the user's own command line that every printed command keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from peagle import api
from peagle.errors import NotAFolder, PeagleError, command_line, fix_text

if TYPE_CHECKING:
    from peagle.findings import Finding

_KEPT = ("--catalog", "--profile", "--sandbox", "--region", "--role", "--bucket")
"""Options that decide what a command sees and which account it changes."""

_LIST_PROFILES = ("aws", "configure", "list-profiles")

TYPED = "peagle.typed"
"""Key in click's ``Context.meta``: the command's own parameters as typed, by name."""


_PARSER = "peagle.parser"
"""Key in click's ``Context.meta``: the parser of the command's arguments."""


class PeagleCommand(click.Command):
    """A command whose errors know the options that the user typed."""

    def make_parser(self, ctx: click.Context) -> Any:
        """Made once, since the arguments are parsed twice."""
        made = ctx.meta.get(_PARSER)
        if made is None or made.ctx is not ctx:
            made = ctx.meta[_PARSER] = super().make_parser(ctx)
        return made

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the values as typed, before click converts them."""
        try:
            typed = self.make_parser(ctx).parse_args(args=list(args))[0]
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # so that the fix shows the help of this command
            raise
        ctx.meta[TYPED] = typed
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; complete the command in the fix of an error that ends it."""
        try:
            return super().invoke(ctx)
        except NotAFolder as error:
            error.command = _with_folder(ctx, error.file) if error.is_in_checkpoint else ()
            raise
        except PeagleError as error:
            error.command = in_context(error.command or changed_command(ctx, error.options), ctx)
            raise


def in_context(
    command: Sequence[str],
    ctx: click.Context | None = None,
    options: Collection[str] | None = None,
) -> tuple[str, ...]:
    """``command`` with the kept options of the user's command line that it accepts.

    ``--profile`` also reaches commands of the AWS CLI. With ``--sandbox`` these get the sandbox's
    address. Empty if the sandbox does not run, as the command would change the user's account, and
    for responses of the sandbox that would go into the bundled catalogue. ``python`` becomes the
    Python of an installed engine, which has torch and safetensors. ``options`` are those of the
    command where they are known; otherwise its module is loaded.
    """
    words = tuple(command)
    if words[:1] == ("python",):
        pythons = (str(engine.python) for engine in api.installed_engines())
        return (next(pythons, "python"), *words[1:])
    ctx = ctx or click.get_current_context(silent=True)
    if ctx is None or words[:1] not in (("peagle",), ("aws",)):
        return words
    typed = {
        flag: value
        for flag, value in _kept(ctx, words).items()
        if not any(word == flag or word.startswith(f"{flag}=") for word in words)
    }
    # The AWS CLI looks for a --profile before it lists the profiles.
    accepted = set() if words == _LIST_PROFILES else {"--profile"}
    if words[0] == "peagle" and set(typed) - {"--catalog"}:  # loads the command's module
        accepted = set(options or _options_of(ctx.find_root(), words[1:]))
    if words[:2] == ("peagle", "plan") and "--online" not in words:
        accepted -= {"--profile", "--sandbox"}  # which this command takes with --online only
    is_bundled = ctx.find_root().params.get("catalog_folder") is None
    if words[1:3] == ("catalog", "refresh") and "--sandbox" in typed and is_bundled:
        return ()
    head: list[str] = []
    tail: list[str] = []
    for flag, value in typed.items():
        if flag == "--catalog" and words[0] == "peagle":
            head += [flag, value]
        elif flag in accepted:
            tail += [flag, value] if value else [flag]
    if words[0] == "aws" and "--sandbox" in typed:
        address = api.running_sandbox()
        if address is None:
            return ()
        tail += ["--endpoint-url", address.url]
    end = words.index("--") if "--" in words else len(words)
    return (words[0], *head, *words[1:end], *tail, *words[end:])


def command_text(command: Sequence[str], ctx: click.Context | None = None) -> str:
    """``command`` in the context of the user's command line, quoted for a shell."""
    return command_line(in_context(command, ctx))


def fix_in_context(fix: str, command: Sequence[str] | None) -> str:
    """A fix as text, with its command in the context of the user's command line."""
    return fix_text(fix, in_context(command) if command else None)


def findings_in_context(
    findings: Iterable[Finding], change_own: bool = True
) -> tuple[Finding, ...]:
    """Findings with their commands in the context of the user's command line, for a document.

    ``change_own``: where options have to change, the command is the user's own with them.
    """
    ctx = click.get_current_context(silent=True)

    def command(one: Finding) -> tuple[str, ...] | None:
        own = changed_command(ctx, one.options) if ctx and change_own else ()
        return in_context(one.command or own) or None

    return tuple(one.model_copy(update={"command": command(one)}) for one in findings)


def deployment_in_context(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a deployment with its ``failure_command`` in the context of the user's
    command line."""
    return document | {"failure_command": in_context(document["failure_command"] or ()) or None}


def is_plan_file(pair: str) -> bool:
    """Whether PAIR|PLAN is a plan file: pairs do not end in ``.json``."""
    return pair.endswith(".json")


def typed_command(
    ctx: click.Context,
    *name: str,
    without: Collection[str] = (),
    options: Collection[str] | None = None,
) -> tuple[str, ...]:
    """The arguments and options as the user typed them, for ``peagle NAME``.

    ``name`` replaces the user's own command; options in ``without`` and those that ``name`` does
    not accept are left out. ``options`` as in ``in_context``.
    """
    words = _typed_words(ctx, options or _options_of(ctx.find_root(), name), without)
    return in_context(("peagle", *name, *_joined(*words)), ctx, options)


def _typed_words(
    ctx: click.Context, accepted: Collection[str], without: Collection[str]
) -> tuple[list[str], list[str]]:
    """The arguments, and the accepted options with their values, as the user typed them."""
    typed = ctx.meta.get(TYPED, {})
    arguments: list[str] = []
    given: list[str] = []
    for parameter in ctx.command.params:
        field = parameter.name or ""
        if ctx.get_parameter_source(field) is not ParameterSource.COMMANDLINE:
            continue
        value = typed.get(field, ctx.params.get(field))
        if isinstance(parameter, click.Argument):
            arguments += [str(each) for each in (value if parameter.nargs != 1 else (value,))]
        elif isinstance(parameter, click.Option):
            flag = max(parameter.opts, key=len)
            if flag in without or flag not in accepted:
                continue
            if parameter.is_flag:
                given.append(flag if value else max(parameter.secondary_opts, key=len))
            else:
                for each in value if parameter.multiple else (value,):
                    given += [flag, str(each)]
    return arguments, given


def _joined(arguments: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    if any(len(word) > 1 and word.startswith("-") for word in arguments):
        return (*options, "--", *arguments)
    return (*arguments, *options)


def changed_command(ctx: click.Context, options: Sequence[str]) -> tuple[str, ...]:
    """The user's own command with these options in place of its own; empty where the command does
    not take them, as with a plan file. Options that can be repeated are added. ``--drafter`` also
    replaces the drafter in PAIR."""
    flags = {word for word in options if word.startswith("--")}
    by_flag = {opt: parameter for parameter in ctx.command.params for opt in parameter.opts}
    pair = str(ctx.meta.get(TYPED, {}).get("pair") or "")
    is_fixed = is_plan_file(pair) and flags != {"--yes"}
    if not options or not flags <= by_flag.keys() or is_fixed:
        return ()
    replaced = {flag for flag in flags if not by_flag[flag].multiple}
    for flag in flags & _REPLACES.keys():
        replaced |= _REPLACES[flag] & by_flag.keys()
    removed = {opt for flag in replaced for opt in by_flag[flag].opts}
    arguments, given = _typed_words(ctx, by_flag.keys(), removed)
    if "--drafter" in flags:
        target = pair.partition("+")[0]
        arguments = [target if word == pair else word for word in arguments]
    name = ctx.command_path.split()[1:]
    return in_context(("peagle", *name, *_joined(arguments, [*given, *options])), ctx, by_flag)


@contextmanager
def not_about_own_options() -> Iterator[None]:
    """What the block raises about another plan is not fixed by options of the user's command."""
    try:
        yield
    except PeagleError as error:
        error.options = ()
        raise


_REPLACES: Mapping[str, set[str]] = {
    "--instance-type": {"--gpu-memory-gib"},
    "--no-speculation": {"--k", "--drafter", "--drafter-embeddings"},
}
"""Options -> others of the user's command that contradict them."""


def _with_folder(ctx: click.Context, file: Path) -> tuple[str, ...]:
    """The user's command with the folder of ``file`` instead of the file."""
    words = typed_command(ctx, *ctx.command_path.split()[1:])
    names_file = (file.resolve() == Path(word).expanduser().resolve() for word in words)
    return tuple(
        _parent(word) if is_file else word for word, is_file in zip(words, names_file, strict=True)
    )


def add_to_error_document(key: str, document: Any) -> None:
    """Put ``document`` next to ``error`` into what ``--json`` prints if the command fails."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and isinstance(ctx.obj, dict):
        ctx.obj[key] = document


def _parent(path: str) -> str:
    """The folder of a path, written as a folder."""
    folder = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    is_relative = folder not in (".", "..") and not folder.startswith(("/", "./", "../", "~"))
    return f"./{folder}" if is_relative else folder


def _kept(ctx: click.Context, words: Sequence[str]) -> dict[str, str]:
    """The kept options of the command line and, unless ``words`` name its environment, of the
    project file, with their values ("" for flags)."""
    sources = {ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP}
    if {"-e", "--environment"} & {*words}:
        sources.remove(ParameterSource.DEFAULT_MAP)
    found: dict[str, str] = {}
    at: click.Context | None = ctx
    while at is not None:
        for parameter in at.command.params:
            flag = next((opt for opt in parameter.opts if opt in _KEPT), None)
            source = at.get_parameter_source(parameter.name or "")
            if flag is None or source not in sources:
                continue
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            if is_flag and not at.params[parameter.name or ""]:
                continue
            found[flag] = "" if is_flag else str(at.params[parameter.name or ""])
        at = at.parent
    return {flag: found[flag] for flag in _KEPT if flag in found}


def _options_of(root: click.Context, words: Sequence[str]) -> set[str]:
    command: click.Command | None = root.command
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(root, word)
    if command is None:
        return set()
    return {opt for parameter in command.params for opt in parameter.opts}
