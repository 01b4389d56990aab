"""The container's log: one JSON document per line, on standard error, without secrets.

    {"time": "2026-11-20T11:34:26.131Z", "level": "INFO", "stage": "starting", "message": "..."}

``stage`` is the container's: ``checking``, ``starting``, ``serving``, ``draining`` or ``ended``. A
line of the engine has ``"from": "engine"``; vLLM's statistics of speculation also
``accepted_tokens`` and ``drafted_tokens``, of which metric filters make metrics. Every other line
has an ``event`` with its fields:

    refused      cause, fix, exit_code          the environment is invalid
    start        argv                           vLLM is started
    warm-start   restored, key, files, unpacked_bytes, seconds, seconds_cold
                 or restored, reason, differences
    collect      key                            compile caches are collected
    healthy      seconds                        since the start of the engine
    restart      restarts, limit, reason, cause, exit_code
    crash        restarts, reason, cause, fix, exit_code, and perhaps command (of the fix)
    drain        seconds;  then idle or cut-off
    ended        exit_code
    warning

Programs read these fields, never the message. Tokens, keys and prompts are replaced in both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from peagle_serve.environment import decode

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(TOKEN|SECRETS?|PASSWORDS?|PASSWDS?|PASSPHRASES?|(?<!ALLOW_)CREDENTIALS?|CREDS|API_?KEYS?)"
    r"(_?\d+)?$"
    r"|^(?!(.*_)?(MAX|MIN|NUM|SPEC|PROMPT|INPUT|OUTPUT|CACHED|CONTEXT|TOTAL)_)(.*_)?TOKENS$"
    # Not MAX_TOKENS and other counts.
    r"|(?<!BY)(?<!COM)PASS$|[^D]PWD$"  # not BYPASS, COMPASS, PWD and OLDPWD
    r"|(^|_)(ACCESS_KEY(S|_IDS?)?|(PRIVATE|SECRET|ENCRYPTION|SIGNING|SSH)_KEYS?|CREDENTIALS_(RELATIVE|FULL)_URI)$"
)
"""The last word of a name, also where it is written together: MYPASSWORD, DBPASS."""
_SECRET_FLAG = re.compile(r"^--[\w.-]*(token|(api-key|secret|password)s?)$")
_SHORTEST = 6
"""Shorter values occur in ordinary words."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        (r"hf_[A-Za-z0-9]{8,}", HIDDEN),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}", HIDDEN),
        (r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bsk-[\w-]{16,}|sagemaker-api-key-[\w=+/-]+", HIDDEN),
        (r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", HIDDEN),
        (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", rf"\1 {HIDDEN}"),
        (r"://[^\s/@:]+:[^\s/@]+@", f"://{HIDDEN}@"),
        (
            r"(?i)((?:secret_?access_?key|session_?token|security-token|x-amz-signature"
            r"|x-amz-credential|api[_-]?keys?|passw(?:or)?ds?|passphrases?|db_?pass)[\"']?\s*[:=]\s*[\"']?)(?!None\b|True\b|False\b)[^\s\"'&,}\]\[*]{4,}",
            rf"\1{HIDDEN}",
        ),
        # vLLM's logs of requests and responses.
        (r"(?s)(\bRequest \S+ details: |\bReceived request \S+ )prompt: .*", rf"\1{HIDDEN}"),
        (r"(?s)(\bGenerated (?:\w+ )?response \S+.*?outputs?: ).*", rf"\1{HIDDEN}"),
        (r"(?s)(\bprompt_token_ids[=:] ?)\[[^\]]*\]?", rf"\1{HIDDEN}"),
    )
)
_INPUT = re.compile(r"(?s)input_value=.*?(?=, input_type=|$)")
"""pydantic shows invalid values: settings while the engine starts, prompts once it serves."""


ACCEPTED_FIELD, DRAFTED_FIELD = "accepted_tokens", "drafted_tokens"
_COUNTS = re.compile(r"SpecDecoding metrics: .* Accepted: (\d{1,15}) tokens, Drafted: (\d{1,15}) ")


class Redactor:
    """Replaces secrets in texts: known patterns, and the secrets of this environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        secrets: set[str] = set()
        for name in filter(is_secret, environment):
            secrets.add(environment[name].strip())
            if environment[name].strip().startswith("["):  # or each string of a JSON array
                with contextlib.suppress(ValueError):
                    secrets.update(part for part in decode(environment[name].strip())
                                   if isinstance(part, str))  # fmt: skip
        secrets = {secret for secret in secrets if len(secret) >= _SHORTEST}
        self.secrets = tuple(sorted(secrets, key=lambda text: (-len(text), text)))
        """The secrets of the environment, longest first."""

    def text(self, text: str, serving: bool = False) -> str:
        """``text`` without secrets and, once the engine is ``serving``, without users' input."""
        text = self._known(text)
        for pattern, shown in _PATTERNS:
            text = pattern.sub(shown, text)
        return _INPUT.sub(f"input_value={HIDDEN}", text) if serving else text

    def short(self, text: str, serving: bool = False) -> str:
        """The same of ``text``, shortened to ``LONGEST`` first: some patterns take quadratic time.
        The secrets of the environment are replaced before, so that none is cut in two."""
        return self.text(_shortened(self._known(text)), serving)

    def _known(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def argv(self, argv: Sequence[str]) -> list[str]:
        """``argv`` without secrets and without the values of secret flags."""
        shown: list[str] = []
        hide = False
        for token in argv:
            flag, equals, _ = token.partition("=")
            if hide and not token.startswith("--"):
                shown.append(HIDDEN)
                continue
            hide = bool(_SECRET_FLAG.match(flag))
            shown.append(f"{flag}={HIDDEN}" if hide and equals else self.short(token))
        return shown


def restored_text(fields: Mapping[str, Any]) -> str:
    """What was restored and how fast, from the fields of a ``warm-start`` line."""
    size = f"{fields['files']} files, {fields['unpacked_bytes'] / 1e6:.1f} MB"
    seconds, cold = fields.get("seconds"), fields.get("seconds_cold")
    if seconds is None:
        did = f"{size} were restored before"
    else:
        did = f"restored {size} in {seconds:.2f} s"
    instead = f"; a cold start takes {cold:.0f} s" if cold else ""
    return f"{did} (key {fields['key']}{instead})"


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


CHECKING = "checking"
STARTING = "starting"
SERVING = "serving"
DRAINING = "draining"
ENDED = "ended"

LONGEST = 12_000
"""Bytes of a message. Docker cuts lines at 16 KiB, which would break the JSON."""
_COLOR = re.compile(r"(?:\x1b|#033|\^\[|\\x1b|\\u001b|\\033|\ufffd)\[[0-9;?]*[A-Za-z]")
"""A terminal's code: raw, as syslog and ``cat -v`` write it, and escaped as in JSON."""
_KEPT_END = 900
_LINE_ENDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that JSON allows and some readers treat as the end of a line."""

_STANDARD_ERROR = 2


_LEVELS = r"DEBUG|INFO|WARNING|ERROR|CRITICAL"
_LINE = re.compile(
    r"^(?:\((?P<process>[A-Z]\w*(?: pid=\d+)?)\) ?)*"
    rf"(?:(?P<level>{_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d (?:\[(?P<place>[^\]]*)\] ?)?)?"
    r"(?P<message>.*)$",
    re.DOTALL,
)
"""(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading"""
_UVICORN = re.compile(rf"^(?P<level>{_LEVELS}):\s+(?P<message>.*)$", re.DOTALL)
"""INFO:     127.0.0.1:5000 - "GET /ping HTTP/1.1" 200 OK"""
_WARNING = re.compile(r"\b\w*Warning: ")
_ERROR = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)(?::|$)|[\w.]+: error: |Fatal Python error"
    r"|Traceback \(most recent|  File \"| {4}\S)"
)


def engine_fields(line: str) -> dict[str, str]:
    """``level`` and ``message`` of a line of the engine, and ``process`` and ``place`` where the
    line has them. A line of a traceback, and its last one, is an error."""
    match = _LINE.match(line)
    assert match is not None, "the pattern matches every line"
    level, message = match["level"], match["message"].rstrip()
    if not level and (server := _UVICORN.match(message)):
        level, message = server["level"], server["message"]
    elif not level:
        warning = "WARNING" if _WARNING.search(message) else "INFO"
        level = "ERROR" if _ERROR.match(message) else warning
    more = {"process": match["process"], "place": match["place"]}
    return {"level": level, "message": message, **{name: v for name, v in more.items() if v}}


class Log:
    """Writes the log without secrets. Callers set ``stage``."""

    def __init__(self, redactor: Redactor, descriptor: int = _STANDARD_ERROR) -> None:
        self.stage = CHECKING
        self._redactor = redactor
        self._descriptor = descriptor

    def info(self, message: str, *, event: str, **fields: object) -> None:
        """Write what happens."""
        self._event("INFO", message, event, fields)

    def warning(self, message: str, *, event: str = "warning", **fields: object) -> None:
        """Write what the user should know; the container goes on."""
        self._event("WARNING", message, event, fields)

    def error(self, message: str, fix: str, *, event: str, **fields: object) -> None:
        """Write what ended the container, and the fix."""
        self._event("ERROR", message, event, {"fix": fix, **fields})

    def engine(self, line: str) -> str:
        """Write a line of the engine. Returns the line without secrets."""
        # Of a line in which a progress bar was redrawn, what a terminal shows.
        shown = self._redacted(without_colors(line).rstrip("\r").rpartition("\r")[2])
        fields = engine_fields(shown)
        if fields["message"]:
            level, message = fields.pop("level"), fields.pop("message")
            counts = _COUNTS.match(message)
            numbers = map(int, counts.groups()) if counts else ()
            counted = dict(zip((ACCEPTED_FIELD, DRAFTED_FIELD), numbers, strict=False))
            self._write(level, message, **{"from": "engine"}, **fields, **counted)
        return shown

    def _event(self, level: str, message: str, event: str, fields: Mapping[str, object]) -> None:
        shown = {name: self._shown(value) for name, value in fields.items()}
        self._write(level, self._redacted(message), event=event, **shown)

    def _shown(self, value: object) -> object:
        """A text or an argv without secrets; other values as they are."""
        if isinstance(value, list):
            return self._redactor.argv(value)
        return self._redacted(value) if isinstance(value, str) else value

    def _redacted(self, text: str) -> str:
        serving = self.stage not in (CHECKING, STARTING)
        return self._redactor.short(_LINE_ENDS.sub(" ", text), serving)

    def _write(self, level: str, message: str, **fields: object) -> None:
        moment = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
        document = {
            "time": f"{stamp}.{int(moment * 1000) % 1000:03}Z",
            "level": level,
            "stage": self.stage,
            "message": message,
            **fields,
        }
        line = json.dumps(document, ensure_ascii=False) + "\n"
        rest = line.encode("utf-8", errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            pass  # the reader has gone; serving goes on


def without_colors(line: str) -> str:
    """A line of a log without the codes that colour it on a terminal."""
    return _COLOR.sub("", line)


def _shortened(text: str) -> str:
    if len(text) * 6 <= LONGEST:
        return text
    size = len(json.dumps(text, ensure_ascii=False).encode("utf-8", errors="backslashreplace"))
    if size <= LONGEST:
        return text
    kept = LONGEST * len(text) // size - _KEPT_END
    return f"{text[: max(kept, 0) // 2]} ... {text[-_KEPT_END:]}"
