"""Names of endpoints."""

from __future__ import annotations

import re

from toolkit.errors import UserError
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.drafters import Chosen
from toolkit.planning.models import Options

MAX_NAME_LENGTH = 63
"""Of an endpoint, its config and its model, from SageMaker's service model."""

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


def check_name(name: str) -> str:
    """``name``, when SageMaker takes it for an endpoint; else UserError."""
    if len(name) > MAX_NAME_LENGTH:
        raise UserError(
            f"the name {name[:30]}... has {len(name)} characters and SageMaker takes "
            f"{MAX_NAME_LENGTH}",
            "shorten --name",
        )
    if not _NAME.fullmatch(name):
        raise UserError(
            f"SageMaker refuses the name {name!r}",
            "use letters, digits and hyphens, a letter or digit first and last",
        )
    return name


def choose_name(options: Options, pair: Chosen) -> Choice[str]:
    """The endpoint's name: the user's, or ``peagle-`` and the target's short name.

    A drafter other than the usual one is part of the name, so that both can run side by side.
    """
    if options.name is not None:
        return Choice(check_name(options.name))
    parts = ["peagle", pair.target.short_name]
    if not pair.usual:
        parts.append(pair.drafter.name if pair.drafter else "plain")
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(parts))[:MAX_NAME_LENGTH].strip("-")
    return chosen(name, "name", "from the pair; --name gives another")
