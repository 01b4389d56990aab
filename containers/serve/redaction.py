"""What a log must not hold: tokens, keys, and what users asked the model."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY(_ID)?|PRIVATE_KEY"
    r"|CREDENTIALS_(RELATIVE|FULL)_URI)$"
)
_SECRET_FLAG = re.compile(r"^--[\w.-]*(api-key|token|secret|password)$")
_SHORTEST = 6
"""A shorter value would be found in half of the words of a log."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        (r"hf_[A-Za-z0-9]{8,}", HIDDEN),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}", HIDDEN),
        (r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bsk-[\w-]{16,}|sagemaker-api-key-[\w=+/-]+", HIDDEN),
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", HIDDEN),
        (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", rf"\1 {HIDDEN}"),
        (r"://[^\s/@:]+:[^\s/@]+@", f"://{HIDDEN}@"),
        (
            r"(?i)((?:secret_?access_?key|session_?token|security-token|x-amz-signature"
            r"|x-amz-credential|api[_-]key|password)[\"']?\s*[:=]\s*[\"']?)(?!None\b|True\b|False\b)[^\s\"'&,}\]\[*]{4,}",
            rf"\1{HIDDEN}",
        ),
        # Of vLLM, where it was told to log requests and answers.
        (r"(?s)(\bRequest \S+ details: |\bReceived request \S+ )prompt: .*", rf"\1{HIDDEN}"),
        (r"(?s)(\bGenerated (?:\w+ )?response \S+.*?outputs?: ).*", rf"\1{HIDDEN}"),
        (r"(?s)(\bprompt_token_ids[=:] ?)\[[^\]]*\]?", rf"\1{HIDDEN}"),
    )
)
_INPUT = re.compile(r"(?s)input_value=.*?(?=, input_type=|$)")
"""pydantic shows what it refused: a setting while the engine starts, a prompt once it serves."""


class Redactor:
    """Hides what is secret in texts: by its shape, and by being a secret of this environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {text for name in environment for text in _secrets(name, environment[name])}
        self.secrets = tuple(sorted(found, key=lambda text: (-len(text), text)))
        """Of this environment, the longest first."""

    def text(self, text: str, serving: bool = False) -> str:
        """``text`` without secrets; and, once the engine is ``serving``, without users' input."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        for pattern, shown in _PATTERNS:
            text = pattern.sub(shown, text)
        return _INPUT.sub(f"input_value={HIDDEN}", text) if serving else text

    def argv(self, argv: Sequence[str]) -> list[str]:
        """``argv`` without secrets, and without any value of a flag that is for secrets."""
        shown: list[str] = []
        hide = False
        for token in argv:
            flag, equals, _ = token.partition("=")
            if hide and not token.startswith("--"):
                shown.append(HIDDEN)
                continue
            hide = bool(_SECRET_FLAG.match(flag))
            shown.append(f"{flag}={HIDDEN}" if hide and equals else self.text(token))
        return shown


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def _secrets(name: str, value: str) -> list[str]:
    """The secrets that a variable holds: its value, or each text of a JSON array."""
    if not is_secret(name):
        return []
    texts = [value.strip()]
    if texts[0].startswith("["):
        with contextlib.suppress(ValueError):
            texts += [part for part in json.loads(value) if isinstance(part, str)]
    return [text for text in texts if len(text) >= _SHORTEST]
