"""Proof that a server speculates: fixed prompts, and what its engines count meanwhile.

``/ping`` succeeds even if every draft is rejected, so it proves nothing. Where prefix caching is
on, prompts are sent as conversations of two turns, since a hit changes what the drafter reads. The
second turn must reach the floor too; without a hit it does not test the cache, which is a warning.
Callers pass the transport: AWS, the sandbox and local engines are proved in the same way. The
counts come from the engine's counters, or from the lines of statistics in each instance's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from peagle.catalog.schema import Drafter, Target
from peagle.checkpoints.entries import OWN
from peagle.engine_log import counters_in_log, generated_in_log, hit_rate_in_log
from peagle.errors import Fix, NotProved, PeagleError
from peagle.findings import Finding, warning
from peagle.parallel import ask_parallel
from peagle.planning.plan import DrafterChoice, FloorSource, TargetChoice
from peagle.protocol import (
    Counters,
    acceptance_length,
    follow_up_body,
    parse_piece,
    request_body,
)

Source = Literal["counters", "log"]

MIN_DRAFTS = 100
"""Fewer drafts of an instance give no reliable mean."""

SECOND_TURN_DRAFTS = MIN_DRAFTS // 2
"""Fewer drafts of second turns decide nothing; they are half of what the prompts give."""

_REJECTED = frozenset({"proof-prompt-rejected", "engine-rejected"})
"""Codes of an engine's refusal of a prompt."""

TURN_SECONDS = 900.0
"""Limit of a turn of 10 requests. One to AWS may wait for twice as long, in its thread."""

Turns = Sequence[Sequence[Callable[[], object]]]
"""For each turn, its requests; a second turn continues the conversation of the first."""

_SILENT_REPORTS = 2
"""An engine that reports so often that it generates, and nothing drafted, does not speculate."""


@dataclass(frozen=True)
class SecondTurn:
    """What was counted while the second turns ran: prompts that repeat a first turn.
    ``cached_share`` (of the prompts' tokens, from the prefix cache) is ``None`` when it is unknown;
    with ``source`` "log" it is the engine's own rate, of its last thousand requests. Fewer than
    ``SECOND_TURN_DRAFTS`` drafts pass."""

    drafts: int
    acceptance_length: float | None
    cached_share: float | None
    passed: bool
    source: Source = "counters"


@dataclass(frozen=True)
class InstanceProof:
    """What one instance drafted. ``stream`` is its log stream, ``<variant>/<instance>``; ``None``
    for the only instance, whose counters were read."""

    stream: str | None
    drafts: int
    acceptance_length: float | None
    acceptance_per_position: tuple[float, ...]
    passed: bool
    second_turn: SecondTurn | None = None


@dataclass(frozen=True)
class Proof:
    """The result of a proof, of all instances together and of each. ``acceptance_length`` is the
    mean number of tokens per verification step, ``None`` when nothing was drafted. ``floor`` is the
    least length that passes; ``None`` when the server does not speculate: then a response is the
    proof. ``floor_source`` ``None``: any accepted draft passes. ``min_drafts`` is the least number
    of drafts of each instance. ``second_turn`` is ``None`` where the prompts were sent alone."""

    acceptance_length: float | None
    drafts: int
    acceptance_per_position: tuple[float, ...]
    floor: float | None
    passed: bool
    source: Source = "counters"
    min_drafts: int = 1
    instance_count: int = 1
    instances: tuple[InstanceProof, ...] = ()
    floor_source: FloorSource | None = None
    second_turn: SecondTurn | None = None
    findings: tuple[Finding, ...] = ()


def build_turns(
    prompts: Sequence[str],
    ask: Callable[[dict[str, Any]], Any],
    chat: bool,
    max_tokens: int,
    two_turns: bool,
) -> Turns:
    """The requests of a proof to one engine, with temperature 0: the prompts alone, or as
    conversations of ``two_turns``, whose answers have half the tokens. The second repeats the first
    and its answer, and asks the next prompt. ``ask`` returns the response to a body once it is
    complete."""
    tokens = max(1, max_tokens // 2) if two_turns else max_tokens
    bodies = [request_body(prompt, chat=chat, max_tokens=tokens) for prompt in prompts]
    answers: dict[int, dict[str, Any]] = {}

    def send_first(number: int) -> None:
        answers[number] = ask(bodies[number])

    def send_second(number: int) -> None:
        answer = parse_piece(answers[number]).written
        try:
            ask(follow_up_body(bodies[number], answer, prompts[(number + 1) % len(prompts)]))
        except PeagleError as error:
            if error.code not in _REJECTED:  # the context has no room for a second turn
                raise

    turns = (send_first, send_second) if two_turns else (send_first,)
    return [[partial(turn, number) for number in range(len(bodies))] for turn in turns]


def send_turn(calls: Sequence[Callable[[], object]]) -> None:
    """Send the requests of a turn, up to 10 at a time, and return when all are answered:
    their engine counts them together. Raises the first error, and EngineError (no-answer)."""
    ask_parallel(calls, TURN_SECONDS)


class Counted(NamedTuple):
    """What an engine counted in all turns, and in the ``second`` ones, if there were any."""

    total: Counters
    second: Counters | None = None

    def is_enough(self, min_drafts: int, rounds: int) -> bool:
        """Whether further prompts are not needed; a second turn is worth one more round."""
        short = self.second is not None and 0 < self.second.drafts < SECOND_TURN_DRAFTS
        return self.total.drafts >= min_drafts and (not short or rounds > 1)


def prove(
    ask: Callable[[dict[str, Any]], object],
    read_counters: Callable[[], Counters],
    *,
    prompts: Sequence[str],
    chat: bool,
    max_tokens: int,
    floor: float | None,
    two_turns: bool = False,
) -> Proof:
    """Send every prompt once, as ``build_turns``, and evaluate what is drafted and accepted.
    Without a ``floor`` anything above 1.0 passes: at least one draft was accepted."""
    turns = build_turns(prompts, ask, chat, max_tokens, two_turns)
    counted = count_drafts(read_counters(), turns, read_counters, 1, lambda: False)
    return evaluate({None: counted}, floor)


def count_drafts(
    before: Counters,
    turns: Turns,
    read_counters: Callable[[], Counters],
    min_drafts: int,
    in_time: Callable[[], bool],
    say: Callable[[str], object] = lambda line: None,
) -> Counted:
    """What one engine counts after ``before`` while rounds of ``turns`` are sent: until it has
    enough drafts, a round adds none, or ``in_time`` says no."""
    counted, rounds = Counted(Counters()), 0
    while True:
        drafts, rounds = counted.total.drafts, rounds + 1
        for number, calls in enumerate(turns):
            send_turn(calls)
            now = read_counters()
            more, before = now.since(before), now
            second = (counted.second or Counters()) + more if number else counted.second
            counted = Counted(counted.total + more, second)
        say(f"{min(counted.total.drafts, min_drafts)} of {min_drafts} drafts")
        is_idle = counted.total.drafts == drafts
        if is_idle or counted.is_enough(min_drafts, rounds) or not in_time():
            return counted


def evaluate(
    counted: Mapping[Any, Counted],
    floor: float | None,
    min_drafts: int = 1,
    instance_count: int = 1,
    source: Source = "counters",
) -> Proof:
    """The proof from what each instance counted while the prompts ran, by its log stream; ``None``
    is the only one. It passes if as many as there are instances have enough drafts, and each of
    these reaches the floor. A further stream with fewer drafts is of an instance that has ended."""

    def rates(counters: Counters) -> tuple[float, ...]:
        accepted = counters.accepted_per_position if counters.drafts else ()
        return tuple(count / counters.drafts for count in accepted)

    def turn(counters: Counters | None) -> SecondTurn | None:
        if counters is None:
            return None
        length = acceptance_length(counters)
        passed = counters.drafts < SECOND_TURN_DRAFTS or _is_accepted(length, floor)
        return SecondTurn(counters.drafts, length, counters.cached_share, passed, source)

    enough = {key: counts for key, counts in counted.items() if counts.total.drafts >= min_drafts}
    complete = len(enough) >= instance_count
    shown = enough if complete else counted
    instances = []
    for stream in sorted(shown, key=str):
        counters, second_turn = shown[stream].total, turn(shown[stream].second)
        length = acceptance_length(counters)
        passed = counters.drafts >= min_drafts and _is_accepted(length, floor)
        passed = passed and (second_turn is None or second_turn.passed)
        instances.append(
            InstanceProof(stream, counters.drafts, length, rates(counters), passed, second_turn)
        )
    together = sum((counts.total for counts in shown.values()), Counters())
    turns = [counts.second for counts in shown.values() if counts.second is not None]
    second_turn = turn(sum(turns, Counters())) if turns else None
    return Proof(
        acceptance_length(together),
        together.drafts,
        rates(together),
        floor or 1.0,
        complete and all(instance.passed for instance in instances),
        source=source,
        min_drafts=min_drafts,
        instance_count=instance_count,
        instances=tuple(instances),
        second_turn=second_turn,
        findings=proof_findings(second_turn),
    )


def _is_accepted(length: float | None, floor: float | None) -> bool:
    return length is not None and length > 1.0 and length >= (floor or 1.0)


@dataclass
class StreamCounts:
    """Sums vLLM's lines of statistics by log stream, ``<variant>/<instance>``; a restarted engine
    adds to its stream. With ``conversations``, what is added while ``in_second_turn`` is that of
    the second turns."""

    counted: dict[str, Counters] = field(default_factory=dict)
    conversations: bool = False
    in_second_turn: bool = False
    _reported: dict[str, float] = field(default_factory=dict)
    _generated: Counter[str] = field(default_factory=Counter)
    _second: dict[str, Counters] = field(default_factory=dict)
    _hit_rates: dict[str, float] = field(default_factory=dict)

    def add(self, stream: str, line: str, time: float = 0.0) -> None:
        """Count a line, if it is one of statistics. A longer name of a stream, such as
        ``<variant>/<instance>/data-log``, is the same instance's. ``time``: epoch seconds."""
        stream = "/".join(stream.split("/")[:2])
        generated, rate = generated_in_log(line), hit_rate_in_log(line)
        if generated is not None:
            self._reported[stream] = time
        if generated:
            self.counted.setdefault(stream, Counters())
            self._generated[stream] += 1
        if self.in_second_turn and rate is not None:
            self._hit_rates[stream] = rate
        if counters := counters_in_log(line):
            for counts in (self.counted, self._second) if self.in_second_turn else (self.counted,):
                counts[stream] = counts.get(stream, Counters()) + counters

    @property
    def instances(self) -> dict[str, Counted]:
        """What each instance counted. The log has no counts of hits in the prefix cache but their
        rate: 0.64 becomes 640 of 1,000 tokens."""
        instances = {}
        for stream, total in self.counted.items():
            second = self._second.get(stream, Counters()) if self.conversations else None
            if second is not None and (rate := self._hit_rates.get(stream)) is not None:
                second = replace(second, cache_queries=1000, cache_hits=round(rate * 1000))
            instances[stream] = Counted(total, second)
        return instances

    @property
    def silent(self) -> tuple[str, ...]:
        """The instances that generate and draft nothing."""
        return tuple(
            stream
            for stream, reports in sorted(self._generated.items())
            if reports >= _SILENT_REPORTS and not self.counted[stream].drafts
        )

    def has_reported(self, after: float, instance_count: int) -> bool:
        """Whether all instances have reported later than ``after``, so that their statistics are
        complete up to then."""
        return sum(time > after for time in self._reported.values()) >= instance_count

    def progress(self, min_drafts: int, instance_count: int) -> str:
        """The drafts so far, for people."""
        drafts = sum(min(counters.drafts, min_drafts) for counters in self.counted.values())
        return f"{drafts} of {min_drafts * instance_count} drafts"


def require_passed(
    proof: Proof, pair: str = "", name: str = "NAME", again: tuple[str, ...] | None = None
) -> None:
    """Raise NotProved, with the cause and a fix, unless ``proof`` passed. ``pair``, ``name`` of the
    endpoint and ``again``, the command that repeats the proof, complete the fix."""
    if proof.passed:
        return
    again = again or ("peagle", "prove", name)
    silent = [instance.stream for instance in proof.instances if not instance.drafts]
    if proof.acceptance_length is None or silent:
        if proof.source == "log" and not silent and not proof.drafts:
            raise NotProved(
                f"the log of {name} has no line of vLLM's statistics since the first proof prompt",
                Fix(
                    "the engine must not have --disable-log-stats, and must log at level INFO",
                    ("peagle", "logs", name),
                ),
                code="no-statistics",
            )
        raise NotProved(
            f"{', '.join(filter(None, silent)) or 'the engine'} responds but drafts nothing: "
            "speculation is off",
            "check --speculative-config in the first lines of the log",
            code="drafts-nothing",
        )
    for instance in proof.instances:
        if instance.drafts >= proof.min_drafts and not instance.passed:
            raise _below_floor(instance, proof, pair)
    ready = sum(instance.drafts >= proof.min_drafts for instance in proof.instances)
    raise NotProved(
        f"{ready} of {proof.instance_count} engines of {name} made the {proof.min_drafts} drafts "
        "that a proof needs",
        Fix("send traffic and repeat the proof, or lower --min-drafts", again),
        code="too-few-drafts",
    )


def _below_floor(instance: InstanceProof, proof: Proof, pair: str) -> NotProved:
    """An instance that makes enough drafts, of which too few are accepted: in all turns, or after
    a hit in the prefix cache, where the first turns reach the floor."""
    second, drafts, length = instance.second_turn, instance.drafts, instance.acceptance_length or 1
    where = f" of {instance.stream}" if instance.stream and proof.instance_count > 1 else ""
    if second is not None and not second.passed and drafts > second.drafts:
        later = second.acceptance_length or 1.0
        accepted = (length - 1) * drafts - (later - 1) * second.drafts
        if _is_accepted(1 + accepted / (drafts - second.drafts), proof.floor):
            return NotProved(
                f"in the second turn of a conversation the acceptance length{where} is "
                f"{later:.2f} over {second.drafts} drafts, below {proof.floor or 1:.2f}",
                "the head loses acceptance after a hit in the prefix cache; switch the cache off "
                "with --set enable-prefix-caching=false (a server that this toolkit did not start: "
                "vLLM's --no-enable-prefix-caching)",
                code="second-turn-below-floor",
            )
    least = "1.00: no draft was accepted"
    fix = Fix(
        "the head may not fit this target: check its revision and its known problems",
        ("peagle", "catalog", *(("show", pair) if pair else ("list",))),
    )
    if proof.floor is not None and proof.floor > 1.0:
        least = f"the floor of {proof.floor:.2f}"
        if proof.floor_source == "break-even":
            least = f"{proof.floor:.2f}, above which speculation is faster than the target alone"
            command = ("peagle", "plan", pair, "--no-speculation") if pair else ()
            fix = Fix("plan without it, unless your own prompts are more predictable", command)
    message = f"acceptance length {length:.2f}{where} over {drafts} drafts is below {least}"
    return NotProved(message, fix)


def proof_findings(second: SecondTurn | None) -> tuple[Finding, ...]:
    """A warning where the second turn passes without a hit: it does not test the cache."""
    if second is None or second.cached_share != 0 or not second.passed:
        return ()
    return (
        warning(
            "cache-not-tested",
            "proof",
            "prefix caching is on, and the second turn had no hits, so the proof does not show "
            "the acceptance after a hit. vLLM caches whole blocks, which can be longer than these "
            "prompts",
            "measure it on long conversations of your own with `peagle bench run --acceptance "
            "FILE`, or switch the cache off with --set enable-prefix-caching=false",
        ),
    )


def pair_in_catalogue(
    target: Target | TargetChoice | None, drafter: Drafter | DrafterChoice | None
) -> str:
    """The pair as commands name it: with a head of the user's own the target alone, and nothing
    without a target or with one of the user's own."""
    if target is None or target.id.startswith(f"{OWN}/"):
        return ""
    return target.id if drafter is None or drafter.name == OWN else f"{target.id}+{drafter.name}"


def prompt_rejected(message: str) -> NotProved:
    """The error for an engine that refuses a prompt of the proof."""
    return NotProved(
        f"the engine rejected a proof prompt: {message}",
        "if the prompt exceeds the context, deploy with a larger --max-model-len",
        code="proof-prompt-rejected",
    )
