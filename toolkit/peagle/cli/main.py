"""The ``peagle`` command: commands loaded on use, and how errors end the program."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from peagle import __version__
from peagle.cli.context import is_set, range_text
from peagle.errors import Fix, PeagleError, UserError

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Choose": {
        "catalog": ("choose", "List, show and check pairs."),
        "check": ("choose", "Check a pair for errors before you pay for a GPU."),
        "fit": ("choose", "Estimate GPU memory and concurrent capacity."),
        "plan": ("plan", "Choose instance, drafter and K; show price and reasons."),
        "bench": ("bench", "Measure speed, acceptance and cost under load."),
        "verdict": ("choose", "Compare drafters and K by load, measured and estimated."),
        "train": ("train", "Train a P-EAGLE head for a target of your own; plan it first."),
    },
    "Run": {
        "deploy": ("deploy", "Deploy a pair and prove that drafts are accepted."),
        "list": ("watch", "List deployments."),
        "status": ("watch", "Show the state of a deployment."),
        "top": ("watch", "Show requests, times, KV cache and cost, live."),
        "logs": ("watch", "Show the log of a deployment."),
        "invoke": ("call", "Send a prompt to an endpoint or a local engine."),
        "prove": ("call", "Prove that an endpoint's drafts are accepted."),
        "token": ("call", "Print an API key for OpenAI clients."),
        "compare": ("change", "Serve a second plan next to the first, and compare them."),
        "promote": ("change", "Let the compared plan serve alone."),
        "drop": ("change", "Remove the compared plan."),
        "rollback": ("change", "Return to the previous revision."),
        "scale": ("change", "Change the number of instances, or its bounds."),
        "destroy": ("change", "Delete everything that deploy created."),
        "reap": ("change", "Delete deployments whose end time has passed."),
    },
    "Build": {
        "render": ("render", "Write a plan as CloudFormation, Terraform, ..."),
        "ci": ("render", "Write pipelines for the endpoints of peagle.yaml."),
        "drift": ("watch", "Compare a plan with the account, field by field."),
        "image": ("image", "Build and push container images."),
        "weights": ("weights", "Copy weights to S3; list and remove them."),
        "warm": ("weights", "Store compiled artifacts for faster starts."),
    },
    "This machine": {
        "local": ("local", "Run a plan on this machine, without AWS."),
        "sandbox": ("local", "Run an AWS sandbox with working endpoints."),
        "engine": ("local", "Install vLLM for this machine."),
        "doctor": ("machine", "Check what this machine has and lacks."),
        "explain": ("machine", "Show the cause and the fix of a code."),
        "demo": ("machine", "Run a demo: deploy, invoke and clean up in the sandbox."),
    },
}
"""Group of ``--help`` -> command -> its module and summary."""

_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}

UNWRITABLE = (
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENOSPC,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
)  # fmt: skip
"""Errors of a disk or a folder that the user can fix, so they print no traceback."""

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class Output(io.FileIO):
    """Stdout or stderr. A reader that has enough, such as ``head``, is no error: the command goes
    on, with its own exit code, unless it follows a log."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            if is_set("follow"):
                raise click.exceptions.Exit(0) from None
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = import_module(f"peagle.cli.{_MODULES[cmd_name]}")
        command: click.Command = getattr(
            module, "list_deployments" if cmd_name == "list" else cmd_name
        )
        # click keeps the help option of a command's first context, which may have no parent.
        command.get_help_option(click.Context(command, **_SETTINGS))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, which would suggest only commands that are loaded."""
        if args[0] not in _MODULES and not ctx.resilient_parsing:  # tab completion
            raise click.NoSuchCommand(args[0], possibilities=_MODULES, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])


@click.group(
    cls=LazyGroup, context_settings=_SETTINGS, epilog="Example: peagle deploy tiny --sandbox --yes"
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
    """Run the command line. An error ends it with its exit code and one line on stderr, with
    ``--json`` a document."""
    error_fields: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream and stream is getattr(sys, f"__{name}__"):
            output = io.BufferedWriter(Output(stream.fileno(), "w", closefd=False))
            text = (stream.encoding, "backslashreplace", None, stream.line_buffering)
            setattr(sys, name, io.TextIOWrapper(output, *text))
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
    except click.UsageError as error:
        _end(_usage(error), error_fields)
    except click.ClickException as error:
        _end(UserError(error.format_message()), error_fields)
    except (KeyboardInterrupt, click.Abort):
        _end(_Interrupted("interrupted"), error_fields)
    except ValueError as error:  # in pydantic's an interrupt of a serializer hides
        if "KeyboardInterrupt" not in str(error):
            raise
        _end(_Interrupted("interrupted"), error_fields)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        if error.filename is None:
            # What stdout still buffers disappears, else Python fails again, with another exit code.
            with suppress(OSError):  # a stream in memory has no descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = f"cannot write {error.filename or 'the output'}: {error.strerror}"
        _end(UserError(message, code="not-writable"), error_fields)


class _Interrupted(PeagleError, code="interrupted", exit_code=130):
    """The user pressed Ctrl-C.
    Fix: repeat the command: it continues, and what it created is listed."""


def _usage(error: click.UsageError) -> UserError:
    """click's error with the command that shows the help."""
    ctx = error.ctx or click.Context(cli, info_name="peagle")
    words = ctx.command_path.split()
    unknown = error.option_name if isinstance(error, click.NoSuchOption) else ""
    if unknown == "--catalog":
        fix = Fix("write", ("peagle", "--catalog", "DIR", *words[1:]))
        return UserError("--catalog goes before the command", fix)
    if unknown == "--gpu" and "local" not in words:
        return UserError(f"{' '.join(words)} has no --gpu", "name an --instance-type with that GPU")
    message = error.format_message().replace(" range.", ".").rstrip(".")
    param = getattr(error, "param", None)
    if param and (needed := range_text(error)):
        message = f"{param.get_error_hint(ctx)} {needed}"
    if isinstance(param, click.Argument) and isinstance(param.type, click.Choice):
        order = " ".join((*words, *ctx.command.collect_usage_pieces(ctx)))
        return UserError(message, f"write {order}")
    return UserError(message, Fix("show the help", (*words, "--help")))


def _end(error: PeagleError, error_fields: Mapping[str, Any]) -> NoReturn:
    """End with the error. A line that click could not parse has no context: ``--json`` is searched
    on the line itself."""
    words = sys.argv[1:]
    if "--json" in words[: words.index("--") if "--" in words else len(words)]:
        from peagle.text import plain

        document = {"error": error, **error_fields}
        click.echo(json.dumps(plain(document), ensure_ascii=False), err=True)
    else:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
    sys.exit(error.exit_code)
