"""Weights that vLLM is to stream from S3 itself: whether it is told how, and has what it takes.

vLLM finds both out late: the one after its imports, the other when it has loaded the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from serve.errors import WrongEnvironment
from serve.model import LOAD_FORMAT, MODEL, drafter_of
from serve.names import SPECULATION

STREAMERS = ("runai_streamer", "runai_streamer_sharded", "modelexpress")
"""What vLLM's ``--load-format`` may be for ``s3://`` addresses; with such a target it takes the
first of them by itself."""

_S3 = "s3://"
_PACKAGES = ("runai_model_streamer", "runai_model_streamer_s3")


def check_streamer(environment: Mapping[str, str]) -> None:
    """Raise WrongEnvironment for an ``s3://`` address that this vLLM would not load."""
    target, drafter = environment[MODEL], drafter_of(environment) or ""
    named = {MODEL: target, f'"model" of {SPECULATION}': drafter}
    streamed = {where: path for where, path in named.items() if path.lower().startswith(_S3)}
    if not streamed:
        return
    where, path = next(iter(streamed.items()))
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise WrongEnvironment(
            f"{where} is {path}, and this image has no {missing[0]} to stream it with",
            "take an image with runai-model-streamer[s3], or have the weights mounted",
        )
    given = environment.get(LOAD_FORMAT, "auto").strip()
    if given not in STREAMERS and (given != "auto" or MODEL not in streamed):
        raise WrongEnvironment(
            f"{where} is {path}, which {LOAD_FORMAT} {given} cannot load",
            f"set {LOAD_FORMAT}={STREAMERS[0]}",
        )
