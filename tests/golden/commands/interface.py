"""The commands with their options and arguments, as data that can be kept and compared."""

from collections.abc import Iterator
from typing import Any

import click

from peagle.cli.main import cli

Description = dict[str, Any]
"""One command: ``options`` and ``arguments``, each a list of descriptions."""
ANY = -1
"""The ``values`` of an argument that may be repeated or left out; such an argument also accepts one
value."""
_SCALARS = (str, int, float, bool)


def interface() -> dict[str, Description]:
    """Every command of the build at hand, by the words that call it: ``peagle image build``."""
    return dict(_commands(cli, "peagle"))


def losses(before: Description, now: Description) -> list[str]:
    """What worked with a command before and does not now; additions are no losses."""
    lost = []
    for option in before["options"]:
        for spelling in option["spellings"]:
            same = next(
                (described for described in now["options"] if spelling in described["spellings"]),
                None,
            )
            lost += [f"{spelling}: {loss}" for loss in _parameter_losses(option, same)]
    for at, argument in enumerate(before["arguments"]):
        same = now["arguments"][at] if at < len(now["arguments"]) else None
        if same is not None and same["values"] == ANY and argument["values"] == 1:
            same = {**same, "values": 1, "metavar": same["metavar"].removesuffix("...")}
        if same is not None and same["metavar"] != argument["metavar"]:
            lost.append(f"{argument['metavar']}: is called {same['metavar']}")
        lost += [f"{argument['metavar']}: {loss}" for loss in _parameter_losses(argument, same)]
    new_options = [
        described for described in now["options"]
        if not any(set(described["spellings"]) & set(old["spellings"]) for old in before["options"])
    ]  # fmt: skip
    for described in (*new_options, *now["arguments"][len(before["arguments"]) :]):
        if described["required"]:
            lost.append(
                f"{described.get('metavar') or described['spellings']}: is new, and required"
            )
    return lost


def _commands(command: click.Command, words: str) -> Iterator[tuple[str, Description]]:
    context = click.Context(command, info_name=words, help_option_names=["-h", "--help"])
    described = [
        _described(parameter, context)
        for parameter in command.get_params(context)
        if not getattr(parameter, "hidden", False)
    ]
    yield (
        words,
        {
            "options": [entry for entry in described if "spellings" in entry],
            "arguments": [entry for entry in described if "spellings" not in entry],
        },
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, f"{words} {name} is listed, and is not there"
            yield from _commands(below, f"{words} {name}")


def _described(parameter: click.Parameter, context: click.Context) -> Description:
    default = parameter.get_default(context)
    description: Description = {
        "type": parameter.type.name,
        "required": parameter.required,
        "values": parameter.nargs,
        "default": default if isinstance(default, _SCALARS) else None,
    }
    if isinstance(parameter.type, click.Choice):
        description["choices"] = [str(choice) for choice in parameter.type.choices]
    if isinstance(parameter.type, click.IntRange | click.FloatRange):
        description["range"] = [parameter.type.min, parameter.type.max]
    if isinstance(parameter, click.Option):
        variables = parameter.envvar or []
        return {
            "spellings": [*parameter.opts, *parameter.secondary_opts],
            "flag": parameter.is_flag,
            "multiple": parameter.multiple,
            "variables": [variables] if isinstance(variables, str) else list(variables),
            **description,
        }
    return {"metavar": parameter.make_metavar(context), **description}


def _parameter_losses(before: Description, now: Description | None) -> Iterator[str]:
    if now is None:
        yield "is gone"
        return
    for key in ("type", "values", "default", "flag", "multiple"):
        if before.get(key) != now.get(key):
            yield f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
    if now["required"] and not before["required"]:
        yield "is required now"
    for key in ("choices", "variables"):
        for value in before.get(key, ()):
            if value not in now.get(key, ()):
                yield f"{key} no longer have {value}"
    if "range" in before:
        (least, most), (least_now, most_now) = before["range"], now.get("range", (None, None))
        if least_now is not None and (least is None or least_now > least):
            yield f"least was {least}, is {least_now}"
        if most_now is not None and (most is None or most_now < most):
            yield f"most was {most}, is {most_now}"
