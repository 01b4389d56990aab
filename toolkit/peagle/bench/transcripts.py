"""Greedy answers of a server as tokens, with the log probabilities of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.bench.openai_server import OpenAiServer, PromptRefused, RefusedPrompt
from peagle.bench.prompts import PromptSet
from peagle.errors import EngineError, Unsupported, count_of, parsing
from peagle.protocol import parse_piece

_BEST = 5
"""How many log probabilities the target returns for each token."""

_AS_ID = "token_id:"

TranscriptProgress = Callable[[str, int, int], object]
"""Called with the server, and how many prompts of how many are answered."""


@dataclass(frozen=True)
class Transcript:
    """One answer: its tokens and text. ``best`` are the best log probabilities at each token, by
    token; empty if they were not asked for. ``prompt`` are the tokens of the prompt, empty if the
    server does not tell."""

    line: int
    tokens: tuple[int, ...]
    text: str
    prompt: tuple[int, ...] = ()
    best: tuple[Mapping[int, float], ...] = ()


def transcripts(
    prompts: PromptSet,
    server: OpenAiServer,
    name: str,
    max_tokens: int,
    is_target: bool,
    progress: TranscriptProgress = lambda server, done, count: None,
) -> Iterator[Transcript | RefusedPrompt]:
    """The greedy answer to each prompt, or that it was refused; with log probabilities if
    ``is_target``. Raises as ``check_lossless`` does.
    """
    for done, prompt in enumerate(prompts.prompts):
        progress(name, done, len(prompts.prompts))
        body = prompt.body(chat=server.chat, max_tokens=max_tokens)
        body |= {"return_token_ids": True}
        if is_target:
            logprobs = {"logprobs": True, "top_logprobs": _BEST}
            body |= logprobs if "messages" in body else {"logprobs": _BEST}
            body |= {"return_tokens_as_token_ids": True}
        try:
            answer = server.ask(body)
        except PromptRefused as error:
            yield RefusedPrompt(prompt.line, error.message)
        else:
            yield read_transcript(answer, prompt.line, is_target)
    progress(name, len(prompts.prompts), len(prompts.prompts))


def read_transcript(answer: dict[str, Any], line: int, is_target: bool) -> Transcript:
    """The tokens in a chat or completion response of vLLM.

    Raises Unsupported where it has none, and EngineError for another format.
    """
    text = parse_piece(answer).written
    with parsing("the engine's response", EngineError):
        choice = answer["choices"][0]
        prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or ()
        if choice.get("token_ids") is None:
            raise _no_tokens("tokens")
        tokens = tuple(count_of(token) for token in choice["token_ids"])
        best: tuple[dict[int, float], ...] = ()
        if is_target:
            if not choice.get("logprobs"):
                raise _no_tokens("log probabilities")
            best = tuple(_best(choice["logprobs"]))
            if len(best) != len(tokens):
                raise ValueError(f"{len(best)} log probabilities of {len(tokens)} tokens")
        return Transcript(line, tokens, text, tuple(map(count_of, prompt)), best)


def _no_tokens(what: str) -> Unsupported:
    return Unsupported(
        f"the server does not return {what}",
        "compare vLLM servers of version 0.11 or later",
        "no-tokens",
    )


def _best(logprobs: Mapping[str, Any]) -> Iterator[dict[int, float]]:
    """Token -> log probability at each position, of a chat (``content``) or a completion."""
    if "content" in logprobs:
        for entry in logprobs["content"] or ():
            yield {_token(one["token"]): _finite(one["logprob"]) for one in entry["top_logprobs"]}
    else:
        for by_token in logprobs["top_logprobs"] or ():
            yield {_token(name): _finite(value) for name, value in by_token.items()}


def _token(name: str) -> int:
    digits = name.removeprefix(_AS_ID)
    if not name.startswith(_AS_ID) or not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{name[:40]!r} is not a token")
    return count_of(int(digits[:20]))


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value < 0.001:
        raise ValueError(f"{value!r} is not a log probability")
    return float(value)
