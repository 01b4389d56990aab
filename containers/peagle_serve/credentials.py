"""Secrets are passed to vLLM in its environment, because other processes can read arguments."""

from __future__ import annotations

from collections.abc import Mapping

from peagle_serve.contract import PREFIX, InvalidEnvironment
from peagle_serve.environment import flag_of, tokens_of

ENGINE_VARIABLES = {f"{PREFIX}API_KEY": "VLLM_API_KEY", f"{PREFIX}HF_TOKEN": "HF_TOKEN"}
"""The container's variable -> the variable that vLLM or huggingface_hub reads."""
_NO_SECRET = ("", "true", "false")


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets among vLLM's arguments, by the container's variable.

    Raises InvalidEnvironment for several API keys, which vLLM accepts as arguments only.
    """
    found = {}
    for name in ENGINE_VARIABLES:
        value = environment.get(name, "")
        if value.strip().lower() in _NO_SECRET:
            continue
        tokens = tokens_of(flag_of(name), value)
        if len(tokens) != 1:
            raise InvalidEnvironment(
                f"{name} has {len(tokens)} values, which vLLM accepts as arguments only, and other "
                "processes can read those",
                f"set {name} to one value",
            )
        found[name] = tokens[0]
    return found
