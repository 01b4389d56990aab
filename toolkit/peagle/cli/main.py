"""The ``peagle`` command: commands loaded on use, and how errors end the program."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click
from click.exceptions import NoSuchCommand

from peagle import __version__
from peagle.cli.context import gate_key, keys_of_file
from peagle.cli.view.console import STARTED_AT
from peagle.errors import Fix, PeagleError, UserError, nearest

COMMANDS: dict[str, dict[str, str]] = {
    "Choose": {
        "catalog": "List, show and check pairs.",
        "check": "Check a pair for errors before you pay for a GPU.",
        "fit": "Estimate GPU memory and concurrent capacity.",
        "plan": "Choose instance, drafter and K; show price and reasons.",
        "verdict": "Compare drafters and K by load, measured and estimated.",
    },
    "Run": {
        "deploy": "Deploy a pair and prove that drafts are accepted.",
        "list": "List deployments.",
        "status": "Show the state of a deployment.",
        "top": "Show requests, times, KV cache and cost, live.",
        "logs": "Show the log of a deployment.",
        "invoke": "Send a prompt to an endpoint or a local engine.",
        "prove": "Prove that an endpoint's drafts are accepted.",
        "bench": "Measure speed, acceptance and cost under load.",
        "token": "Print an API key for OpenAI clients.",
        "compare": "Serve a second plan next to the first, and compare them.",
        "promote": "Let the compared plan serve alone.",
        "drop": "Remove the compared plan.",
        "rollback": "Return to the previous revision.",
        "scale": "Change the number of instances, or its bounds.",
        "destroy": "Delete everything that deploy created.",
        "reap": "Delete deployments whose end time has passed.",
    },
    "Build": {
        "render": "Write a plan as CloudFormation, Terraform, ...",
        "ci": "Write pipelines for the endpoints of peagle.yaml.",
        "drift": "Compare a plan with the account, field by field.",
        "image": "Build, show and push container images.",
        "weights": "Copy weights to S3; list and remove them.",
        "warm": "Store compiled artifacts for faster starts.",
    },
    "This machine": {
        "local": "Run a plan on this machine, without AWS.",
        "sandbox": "Run an AWS sandbox with working endpoints.",
        "engine": "Install vLLM for this machine's CPU.",
        "doctor": "Check what this machine has and lacks.",
        "explain": "Show the cause and the fix of a code.",
        "demo": "Run a demo: deploy, invoke and clean up in the sandbox.",
    },
}
"""Group of ``--help`` -> command -> its summary."""

_MODULES = {
    "call": ("invoke", "prove", "token"),
    "change": ("scale", "rollback", "compare", "promote", "drop"),
    "choose": ("check", "fit", "verdict"),
    "local": ("local", "engine"),
    "machine": ("doctor", "demo"),
    "remove": ("destroy", "reap"),
    "render": ("render", "ci"),
    "watch": ("list", "status", "drift", "logs", "top"),
}
"""Module -> its commands; any other command is in the module of its name."""

_MODULE_OF = {command: module for module, commands in _MODULES.items() for command in commands}

_NAMES = [name for commands in COMMANDS.values() for name in commands]

UNWRITABLE = (
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR,
    errno.EPERM, errno.EROFS,
)  # fmt: skip
"""Errors of a disk or a folder that the user can fix, so they print no traceback."""

COMMAND_HINTS: dict[str, str] = {
    "delete": "use destroy",
    "remove": "use destroy",
    "rm": "use destroy",
    "undeploy": "use destroy",
    "update": "deploy the changed plan again; it updates the endpoint",
    "create": "use deploy",
    "describe": "use status",
    "models": "use catalog list",
    "help": "use --help",
    "version": "use --version",
}
"""Commands that other tools have -> what to use instead."""

_TENSOR_PARALLEL = "the plan chooses the number of GPUs; choose an --instance-type"
_INSTANCE = "use --instance-type, such as ml.g6e.2xlarge; --gpu is an option of verdict"
_CONTEXT = "use --max-model-len (context length in tokens)"
OPTION_HINTS: dict[str, str] = {
    "--tp": _TENSOR_PARALLEL,
    "--tensor-parallel-size": _TENSOR_PARALLEL,
    "--context": _CONTEXT,
    "--context-length": _CONTEXT,
    "--ctx": _CONTEXT,
    "fit --gpu": "use --instance-type, or --gpu-memory-gib for a GPU of your own",
    "plan --gpu": _INSTANCE,
    "deploy --gpu": _INSTANCE,
    "--max-num-seqs": "use --concurrency",
    "--allow-unpinned-warm": "it is an option of deploy",
    "--users": "use --concurrency",
    "--num-speculative-tokens": "use --k",
    "--target": "specify the target first; --catalog DIR before the command adds your own targets",
    "--gpu-memory-utilization": "set engine arguments in the catalogue entry; `fit` takes it",
}
"""Options of vLLM and of other commands -> what to use instead."""

BROKEN_PIPE = 141
"""Exit code of a command whose reader closed the pipe (128 + SIGPIPE)."""

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return _NAMES

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Record when the command was typed, before its modules load."""
        ctx = super().make_context(*args, **kwargs)
        ctx.meta[STARTED_AT] = time.time()
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; on a closed pipe, discard the buffered output."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            sys.exit(BROKEN_PIPE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _NAMES:
            return None
        module = import_module(f"peagle.cli.{_MODULE_OF.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(
            module, "list_deployments" if cmd_name == "list" else cmd_name
        )
        # click keeps the help option of a command's first context, which may have no parent.
        command.get_help_option(click.Context(command, **_SETTINGS))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _NAMES and not args[0].startswith("-"):
            raise NoSuchCommand(args[0], ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))


@click.group(
    cls=LazyGroup,
    context_settings=_SETTINGS,
    epilog="Example: peagle deploy tiny --sandbox --yes",
)
@click.version_option(__version__, prog_name="peagle")
@click.option(
    "--catalog",
    "catalog_folder",
    metavar="DIR",
    envvar="PEAGLE_CATALOG",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of additional targets (searched with the bundled ones).  [env: PEAGLE_CATALOG]",
)
def cli(catalog_folder: str | None) -> None:
    """Deploy large language models with P-EAGLE speculative decoding on Amazon SageMaker.

    PAIR is a target, or a target and a drafter:

    \b
      gpt-oss-20b
      gpt-oss-20b+eagle3
      openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE

    Exit codes: 0 success, 2 usage error, 3 rejected by a check or not proved, 4 error from AWS, a
    registry, the Hub or the engine, 130 interrupted.
    """


def main() -> NoReturn:
    """Run the command line. An error ends it with its exit code and one line on stderr: text, or
    with ``--json`` a JSON document, to which a command adds keys with ``add_to_error_document``."""
    error_fields: dict[str, Any] = {}
    if isinstance(sys.stdout, io.TextIOWrapper):  # like stderr, for bytes that are not UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    # pydantic would look for plugins in the metadata of all installed packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        result = cli.main(prog_name="peagle", standalone_mode=False, obj=error_fields)
        sys.exit(result if isinstance(result, int) else 0)
    except PeagleError as error:
        _end(error, error_fields)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except NoSuchCommand as error:
        _end(_unknown_command(error), error_fields)
    except click.NoSuchOption as error:
        _end(_unknown_option(error), error_fields)
    except click.UsageError as error:
        _end(_usage(error), error_fields)
    except click.ClickException as error:
        _end(UserError(error.format_message()), error_fields)
    except (KeyboardInterrupt, click.Abort):
        _end(_Interrupted("interrupted"), error_fields)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        if error.filename is None:
            _discard_output()  # else Python fails again at the end, with another exit code
        message = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        _end(UserError(message, code="not-writable"), error_fields)
    except RuntimeError as error:  # pathlib's, for a user without HOME and entry in passwd
        if "home directory" not in str(error):
            raise
        _end(UserError(f"{error}".rstrip("."), "set HOME", code="no-home"), error_fields)


def _discard_output() -> None:
    """Let what stdout still buffers disappear when the process ends."""
    with suppress(OSError):  # a stream in memory has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Interrupted(PeagleError, code="interrupted", exit_code=130):
    """The user pressed Ctrl-C.

    Fix: repeat the command: it continues, and what it created is listed.
    """


def _usage(error: click.UsageError) -> UserError:
    return UserError(error.format_message().rstrip("."), _help_of(error))


def _unknown_command(error: NoSuchCommand) -> UserError:
    ctx = error.ctx
    group = ctx.command if ctx else cli
    names = group.list_commands(ctx) if ctx and isinstance(group, click.Group) else _NAMES
    others = COMMAND_HINTS.get(error.command_name) if group is cli else None
    hint = others or nearest(error.command_name, names)
    message = f"{ctx.command_path if ctx else 'peagle'} has no command {error.command_name!r}"
    return UserError(f"{message}: {hint}" if hint else message, _help_of(error))


def _unknown_option(error: click.NoSuchOption) -> UserError:
    command = error.ctx.command_path.split() if error.ctx else ["peagle"]
    if error.option_name == "--catalog":
        fix = Fix("write", ("peagle", "--catalog", "DIR", *command[1:]))
        return UserError("--catalog goes before the command", fix)
    params = error.ctx.command.params if error.ctx else ()
    options = [option for param in params for option in param.opts]
    longer = [option for option in options if option.startswith(f"{error.option_name}-")]
    similar = longer or sorted(name for name in error.possibilities or () if name != "--help")
    guess = f"did you mean {', '.join(similar)}?" if similar else ""
    names = [*(error.possibilities or ()), *OPTION_HINTS]
    near = get_close_matches(error.option_name, names, n=1, cutoff=0.8)
    key = error.option_name.removeprefix("--").replace("-", "_")
    if key in keys_of_file(error.ctx):
        guess = f"it is the key {gate_key(key)} of peagle.yaml"
    of_command = OPTION_HINTS.get(f"{command[-1]} {error.option_name}")
    hint = of_command or (OPTION_HINTS.get(near[0]) if near else None) or guess
    message = f"{' '.join(command)} has no option {error.option_name}{f': {hint}' if hint else ''}"
    return UserError(message, _help_of(error))


def _help_of(error: click.UsageError) -> Fix:
    command = error.ctx.command_path.split() if error.ctx else ["peagle"]
    return Fix("show the help", (*command, "--help"))


def _end(error: PeagleError, error_fields: Mapping[str, Any]) -> NoReturn:
    """End with the error, in JSON with ``error_fields``. A line that click could not parse has
    no context, so ``--json`` is searched on the line itself."""
    words = sys.argv[1:]
    if "--json" in words[: words.index("--") if "--" in words else len(words)]:
        document = {"error": error.document(), **error_fields}
        click.echo(json.dumps(document, ensure_ascii=False), err=True)
    else:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
    sys.exit(error.exit_code)
