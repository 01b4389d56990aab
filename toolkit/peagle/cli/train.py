"""``peagle train``: a P-EAGLE head for a target: what it would cost and bring, and its training."""

from __future__ import annotations

import click

from peagle.cli.options import DefaultGroup


@click.group(cls=DefaultGroup, epilog="Example: peagle train --help")
def train() -> None:
    """Train a P-EAGLE head for a target; plan it first.

    `peagle train PAIR` is short for `peagle train run PAIR`.
    """
