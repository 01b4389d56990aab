"""Secrets reach vLLM in its environment: every program of a machine can read arguments."""

from __future__ import annotations

from collections.abc import Mapping

from peagle_serve.contract import PREFIX, InvalidEnvironment
from peagle_serve.environment import flag_of, tokens_of

INSTEAD = {f"{PREFIX}API_KEY": "VLLM_API_KEY", f"{PREFIX}HF_TOKEN": "HF_TOKEN"}
"""The variable of an argument -> the one that vLLM, or the Hub's library, reads instead."""
_SWITCHES = ("", "true", "false")


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets among vLLM's arguments, by the names of ``INSTEAD``.

    Raises InvalidEnvironment for several keys, which vLLM takes as arguments only.
    """
    found = {}
    for name in INSTEAD:
        value = environment.get(name, "")
        if value.strip().lower() in _SWITCHES:
            continue
        tokens = tokens_of(flag_of(name), value)
        if len(tokens) != 1:
            raise InvalidEnvironment(
                f"{name} has {len(tokens)} values, which vLLM takes as arguments only, where every "
                "program of the machine can read them",
                f"set {name} to one value",
            )
        found[name] = tokens[0]
    return found
