"""Streaming clients, and what became of their streams."""

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["update", "drain", "kill"]
Stream = Callable[[str, bytes], Iterator[bytes]]
"""Sends a request over a route; gives the server-sent events as they arrive, in any pieces.

Raises Refused, Broken, or TimeoutError after silence.
"""
PAUSE_SECONDS = 0.3
"""After an error, before the client's next request."""
_LEAVING = 0.02
"""The share of streams whose client disconnects early."""


class Refused(Exception):
    """The request got an error, or no connection, before a stream began."""


class Broken(Exception):
    """The stream reported an error, or its connection broke."""


class Silent(Exception):
    """The stream ended without a reason, an end mark or an error."""


@dataclass
class Event:
    """Something that is done to a target. ``ended`` is infinite until it is over."""

    kind: Kind
    began: float
    ended: float = float("inf")


@dataclass
class Events:
    """What is and was done to a target. ``killed`` has the engines' process IDs."""

    done: list[Event] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    @contextmanager
    def during(self, kind: Kind) -> Iterator[Event]:
        event = Event(kind, time.monotonic())
        self.done.append(event)
        try:
            yield event
        finally:
            event.ended = time.monotonic()

    def cause(self, began: float, engine: int | None) -> Kind | Literal["alone"]:
        """Why a stream that ``engine`` answered, if it is known, broke just now."""
        there = [event.kind for event in self.done[-20:] if event.ended >= began]
        if engine in self.killed or (engine is None and "kill" in there):
            return "kill"
        others = [kind for kind in there if kind != "kill"]
        return others[-1] if others else "alone"

    def counts(self) -> dict[str, int]:
        return dict(Counter(event.kind for event in self.done))


@dataclass
class Tally:
    """Counts of streams, by what became of them; and the first errors of those that should not."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, example: str = "") -> None:
        with self._lock:
            self.counts[name] += 1
            if example and len(self.examples) < 20:
                self.examples.append(f"{name}: {example}")


class Answer:
    """The server-sent events of one answer. ``numbered``: its words must be 0, 1, 2, ..."""

    def __init__(self, numbered: bool) -> None:
        self.engine: int | None = None
        self._numbered = numbered
        self._rest = b""
        self._text: list[str] = []
        self._reason: str | None = None
        self._done = False

    def add(self, data: bytes) -> None:
        """Raises Broken for an error in the stream."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            content = event.removeprefix(b"data: ")
            if content == b"[DONE]":
                self._done = True
            elif content:
                self._read(json.loads(content))

    def _read(self, document: dict[str, Any]) -> None:
        if "error" in document:
            raise Broken(str(document["error"]))
        name = document.get("id", "").partition("-")[2]
        self.engine = int(name) if self._numbered else None
        for choice in document["choices"]:
            self._text.append(choice["delta"].get("content") or "")
            self._reason = choice["finish_reason"] or self._reason

    def check(self, tokens: int) -> None:
        """Raises Silent where the stream has ended too early, without an error."""
        if not self._done or self._reason is None:
            raise Silent(f"ended with finish_reason {self._reason}, [DONE]: {self._done}")
        if self._numbered and "".join(self._text).split() != [str(n) for n in range(tokens)]:
            raise Silent(f"{tokens} words expected: {''.join(self._text)}")


@dataclass
class Client:
    """Sends one request after the other until ``stop``."""

    stream: Stream
    routes: tuple[str, ...]
    events: Events
    tally: Tally
    stop: threading.Event
    seed: str
    numbered: bool
    refuses_in_drain: bool
    """Whether the target may refuse requests while it drains."""

    def run(self) -> None:
        chance = random.Random(self.seed)
        while not self.stop.is_set():
            if not self._one(chance):
                self.stop.wait(PAUSE_SECONDS * (0.5 + chance.random()))

    def _one(self, chance: random.Random) -> bool:
        """One request. Whether it was answered."""
        route, tokens = chance.choice(self.routes), chance.randrange(4, 60)
        leave_after = chance.randrange(tokens) if chance.random() < _LEAVING else None
        answer, began = Answer(self.numbered), time.monotonic()
        body = {
            "messages": [{"role": "user", "content": "What does textwrap.wrap do?"}],
            "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        try:
            for number, data in enumerate(self.stream(route, json.dumps(body).encode())):
                answer.add(data)
                if number == leave_after:
                    self.tally.add("left by the client")
                    return True
            answer.check(tokens)
        except (Refused, Broken, Silent, TimeoutError) as error:
            self._count(error, began, answer.engine, route)
            return False
        self.tally.add("complete")
        return True

    def _count(self, error: Exception, began: float, engine: int | None, route: str) -> None:
        cause = self.events.cause(began, engine)
        what = f"{route}: {type(error).__name__}: {error}"
        if isinstance(error, Silent | TimeoutError):
            self.tally.add(f"silent ({cause})", what)
        elif cause == "kill":
            name = "refused" if isinstance(error, Refused) else "broken with an error"
            self.tally.add(f"killed: {name}")
        elif isinstance(error, Refused) and cause == "drain" and self.refuses_in_drain:
            self.tally.add("refused at drain")
        else:
            self.tally.add(f"broken at {cause}" if cause != "alone" else "broken alone", what)


def post(
    port: int, path: str, headers: dict[str, str], body: bytes, seconds: float
) -> Iterator[bytes]:
    """The body of a streamed response, piece by piece; see ``Stream``. ``seconds`` limits every
    wait."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{type(error).__name__} {error}") from error
        if response.status != http.HTTPStatus.OK:
            raise Refused(f"{response.status} {response.read(300).decode(errors='replace')}")
        try:
            while data := response.read1(65536):
                yield data
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"{type(error).__name__} {error}") from error
    finally:
        connection.close()
