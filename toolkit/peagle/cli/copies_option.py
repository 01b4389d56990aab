"""``--copies``: engines on each instance."""

from __future__ import annotations

import click

from peagle.planning.options import AUTO
from peagle.text import sanitize


def parse_copies(text: str) -> int | str:
    """A number of engines, or ``auto``. Raises ValueError."""
    if text == AUTO:
        return AUTO
    if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) > 0:
        return int(text)
    raise ValueError(f"{sanitize(text, 40)!r} is neither auto nor a number of engines")


class _Copies(click.ParamType[int | str]):
    """``auto``, or a number of engines."""

    name = "copies"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """The number, or ``auto``. Raises BadParameter for anything else."""
        try:
            return parse_copies(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


copies_option = click.option(
    "--copies",
    type=_Copies(),
    metavar="N|auto",
    help="Engines on each instance, as an inference component; auto: as many as cost least per "
    "token, or one on all GPUs; 1: one, without a component.  [default: auto]",
)
