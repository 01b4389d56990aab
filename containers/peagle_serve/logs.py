"""What a log must not hold: tokens, keys, and what users asked the model.

The container's log: one JSON document a line, each with time, level, stage and message.

    {"time": "2026-11-20T11:34:26.131Z", "level": "INFO", "stage": "starting", "message": "..."}

``stage`` is where the container stands: ``checking``, ``starting``, ``serving``, ``draining``,
``ended``. A line of the engine's own also has ``"from": "engine"``. Everything passes the
redactor. All of it goes to one stream, standard error, so that the order is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence

from peagle_serve.engine import EngineLines, last_on_screen

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


CHECKING = "checking"
STARTING = "starting"
SERVING = "serving"
DRAINING = "draining"
ENDED = "ended"

LONGEST = 12_000
"""Bytes of a message. Docker cuts a line at 16 KiB, and half a document cannot be read."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_KEPT_END = 900
_LINE_ENDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What JSON may hold as it is, and what some readers take for the end of a line."""

_STANDARD_ERROR = 2


class Log:
    """Writes the log. ``stage`` is set by whoever moves the container on."""

    def __init__(self, redactor: Redactor, descriptor: int = _STANDARD_ERROR) -> None:
        self.stage = CHECKING
        self._redactor = redactor
        self._descriptor = descriptor
        self._engine_lines = EngineLines()

    def info(self, message: str, argv: Sequence[str] = (), **more: object) -> None:
        """What goes on; ``argv`` is shown as a list, without secrets. ``more`` holds none."""
        if argv:
            more["argv"] = self._redactor.argv(argv)
        self._write({"level": "INFO", "message": self._plain(message), **more})

    def warning(self, message: str) -> None:
        """What the user should know, and can live with."""
        self._write({"level": "WARNING", "message": self._plain(message)})

    def error(self, message: str, fix: str, **more: object) -> None:
        """What ended the container, and how to mend it."""
        document = {"message": self._plain(message), "fix": self._plain(fix), **more}
        self._write({"level": "ERROR", **document})

    def engine(self, line: str) -> str:
        """A line of the engine's. Gives back what was kept of it, without secrets."""
        shown = self._plain(last_on_screen(_COLOUR.sub("", line)))
        fields = self._engine_lines.fields(shown)
        if fields["message"]:
            level, message = fields.pop("level"), fields.pop("message")
            self._write({"level": level, "message": message, "from": "engine", **fields})
        return shown

    def _plain(self, text: str) -> str:
        text = _shortened(_LINE_ENDS.sub(" ", text))
        return self._redactor.text(text, serving=self.stage not in (CHECKING, STARTING))

    def _write(self, fields: dict[str, object]) -> None:
        moment = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
        head = {"time": f"{stamp}.{int(moment * 1000) % 1000:03}Z", "level": fields.pop("level")}
        line = json.dumps({**head, "stage": self.stage, **fields}, ensure_ascii=False) + "\n"
        rest = line.encode("utf-8", errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            pass  # nobody reads the log any more; serving goes on


def _shortened(text: str) -> str:
    """Without its middle, where it is too long."""
    if len(text) * 6 <= LONGEST:
        return text
    size = len(json.dumps(text, ensure_ascii=False).encode("utf-8", errors="backslashreplace"))
    if size <= LONGEST:
        return text
    kept = LONGEST * len(text) // size - _KEPT_END
    return f"{text[: max(kept, 0) // 2]} ... {text[-_KEPT_END:]}"
