"""Options of ``peagle check`` that say how the engine would be started."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from toolkit.catalog.models import Value
from toolkit.errors import UserError

_SAID_BY = {
    "num_speculative_tokens": "--k",
    "method": "PAIR, such as tiny+eagle3",
    "parallel_drafting": "PAIR, such as tiny+eagle3",
    "model": "--drafter",
}
"""Keys of ``--speculative-config`` that other options decide."""


@dataclass(frozen=True)
class Given:
    """vLLM's arguments without the dashes, keys of ``--speculative-config``, the environment."""

    settings: dict[str, Value]
    speculative: dict[str, object]
    environment: dict[str, str]
    on_cpu: bool


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--engine``, ``--speculative``, ``--env`` and ``--cpu``; the command receives ``given``."""

    @wraps(command)
    def with_settings(
        *args: Any,
        engine: tuple[str, ...],
        speculative: tuple[str, ...],
        env: tuple[str, ...],
        cpu: bool,
        **rest: Any,
    ) -> Any:
        given = Given(
            settings={name: _scalar(value) for name, value in map(_argument, engine)},
            speculative=dict(_entry(word, "--speculative") for word in speculative),
            environment=dict(_pair(word, "--env") for word in env),
            on_cpu=cpu,
        )
        return command(*args, given=given, **rest)

    decorated: Callable[..., Any] = with_settings
    for option in (
        click.option("--cpu", is_flag=True, help="On vLLM for the CPU, as the sandbox runs it."),
        click.option(
            "--env",
            metavar="NAME=VALUE",
            multiple=True,
            help="Environment variable; SM_VLLM_* are vLLM's arguments, as in the container.",
        ),
        click.option(
            "--speculative",
            metavar="KEY=VALUE",
            multiple=True,
            help="A key of vLLM's --speculative-config that the pair does not set; repeatable.",
        ),
        click.option(
            "--engine",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="An argument of vLLM, such as enable-lora or gpu-memory-utilization=0.9; "
            "repeatable.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def _argument(word: str) -> tuple[str, object]:
    """``--enable-lora``, ``enable-lora`` or ``pipeline-parallel-size=2``."""
    name, equals, value = word.removeprefix("--").partition("=")
    if not name:
        raise UserError(f"--engine {word!r} names no argument", "write NAME or NAME=VALUE")
    return name.replace("_", "-"), _value(value) if equals else True


def _entry(word: str, flag: str) -> tuple[str, object]:
    name, value = _pair(word, flag)
    if name in _SAID_BY:
        raise UserError(f"{flag} {name} is set already", f"say it with {_SAID_BY[name]}")
    return name, _value(value)


def _pair(word: str, flag: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise UserError(f"{flag} {word!r} is no pair", "write NAME=VALUE")
    return name, value


def _value(text: str) -> object:
    """A value as JSON, else as text: ``2`` is a number, ``fp8`` is a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _scalar(value: object) -> Value:
    return value if isinstance(value, Value) else json.dumps(value)
