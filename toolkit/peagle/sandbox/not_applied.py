"""Which of a plan's engine arguments the sandbox's engine did not get.

A CPU has no GPU memory, CUDA graphs or ranks, and a stand-in replaces the target. What was left out
was not tested either: a value that vLLM rejects on a GPU passes here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from peagle.engine.cpu import valid_speculation
from peagle_serve.contract import HUB_MODEL, MODEL, PREFIX, SERVED_NAME, SPECULATION
from peagle_serve.environment import flag_of

_OF_THE_ENGINE = (PREFIX, "VLLM_", "CUDA_", "NCCL_")
_REPLACED_KNOWINGLY = (MODEL, HUB_MODEL, SERVED_NAME)
_OF_THE_DRAFTER = ("model", "revision", "code_revision")
"""What a stand-in replaces; the stand-in itself is reported elsewhere."""


def not_applied(planned: Mapping[str, str], run: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments of the environment ``planned`` that ``run`` has not, or with another value.

    Each as on vLLM's command line, followed by the value that is used instead.
    """
    return tuple(_differences(planned, run))


def _differences(planned: Mapping[str, str], run: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(planned.items()):
        if not name.startswith(_OF_THE_ENGINE) or name in _REPLACED_KNOWINGLY:
            continue
        if name == SPECULATION:
            yield from _of_speculation(planned, run)
        elif run.get(name) != value:
            flag = flag_of(name) if name.startswith(PREFIX) else name
            yield _text(flag, "" if value == "true" else value, run.get(name))


def _of_speculation(planned: Mapping[str, str], run: Mapping[str, str]) -> Iterator[str]:
    now = valid_speculation(run)
    for key, value in valid_speculation(planned).items():
        if key not in _OF_THE_DRAFTER and now.get(key) != value:
            instead = json.dumps(now[key]) if key in now else None
            yield _text(f"{flag_of(SPECULATION)}.{key}", json.dumps(value), instead)


def _text(flag: str, value: str, instead: str | None) -> str:
    return f"{flag} {value}".rstrip() + (f" ({instead} instead)" if instead else "")
