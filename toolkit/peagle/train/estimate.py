"""What a head of the user's own would cost and bring: the plan of a training, before it begins.
docs/train.md has the arithmetic."""

from __future__ import annotations

import math
import shutil
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, NamedTuple

from peagle.catalog.find import find_drafter, find_instance, find_pair
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.catalog.tables import Instance, TrainingTable
from peagle.checkpoints.entries import is_from_checkpoint
from peagle.errors import EngineError, NotProved, OptionsConflict, Refused, UserError
from peagle.findings import Finding, warning
from peagle.fit.building import draft_model, target_model, with_sizes
from peagle.fit.weights import stored_parameters
from peagle.options import Options, engine_option
from peagle.planning.load import USUAL_CONCURRENCY, Load
from peagle.planning.planner import make_plan
from peagle.planning.speculation import heads_of_same_sizes
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.speed.acceptance import Acceptance, Curve, Performance, curve_through
from peagle.speed.ranking import ESTIMATE_MUST_WIN_BY, NO_SPECULATION, Setting
from peagle.speed.verdict import LoadVerdict
from peagle.text import format_usd
from peagle.train.data import MOST_PROMPTS, TOKEN_BYTES, Conversation
from peagle.train.recipe import (
    CHECKPOINT_HEADS,
    GPU_OPTIMIZER,
    GPU_REQUESTS,
    Recipe,
    Training,
    slots_per_anchor,
)
from peagle.train.run import Observe, Run, TrainProgress
from peagle.workload import Workload

Advice = Literal["train", "train-more-data", "do-not-train", "unknown"]
"""``unknown`` where no speed is known."""

USUAL_K = 5
"""The K at which acceptance lengths are compared, as that of published heads is."""

_DATA_BYTES, _SAVED_BYTES = 40, 2 * CHECKPOINT_HEADS
"""Bytes per token of the data (30 measured, without long texts); per parameter of a checkpoint."""

FEW_CONVERSATIONS = 10_000
"""Fewer have given no head that is worth its drafting: published ones are of 50,000 and more."""

_TEMPLATE_TOKENS = 4
"""Tokens of the chat template around a message."""


class TrainingOptions(VerdictOptions):
    """The GPUs of a training, which serve the head too, and the load that it is for: by default the
    size of requests is the data's."""

    TAKES = (
        "instance_type", "gpu", "vllm", "region", "concurrency", "prompt_tokens", "output_tokens",
    )  # fmt: skip

    prompt_tokens: int | None = engine_option(
        "tokens", "Tokens of each prompt that is served.  [default: of the data's]"
    )
    output_tokens: int | None = engine_option(
        "tokens", "Tokens of each answer, also of those regenerated.  [default: of the data's]"
    )


@dataclass(frozen=True)
class Range:
    """A likely value between its bounds."""

    low: float
    likely: float
    high: float

    @property
    def values(self) -> tuple[float, float, float]:
        """All three."""
        return self.low, self.likely, self.high

    def times(self, factor: float) -> Range:
        """All three, multiplied."""
        return Range(*(value * factor for value in self.values))

    def hours_for(self, amount: float) -> Range:
        """The hours for an amount, where this is a rate per second."""
        return Range(*(amount / value / 3600 for value in reversed(self.values)))


@dataclass(frozen=True)
class DataSize:
    """Conversations; all their tokens that are trained on; and requests, one per answer, with the
    tokens of their prompts, each with all turns before it, and of their answers, which the target
    ``regenerates`` or which are kept."""

    conversations: int
    tokens: int
    requests: int
    prompt_tokens: int
    answer_tokens: int
    regenerates: bool = True

    @property
    def request(self) -> Workload:
        """The mean size of a request."""
        sizes = (n // self.requests for n in (self.prompt_tokens, self.answer_tokens))
        return Workload(*(max(size, 1) for size in sizes))


@dataclass(frozen=True)
class Rates:
    """What a machine reaches, in tokens per second: of answers that are regenerated, and of the
    data in an epoch, hidden states included; and further seconds, mostly of engines' starts, of the
    whole training and of each epoch, whose head is measured."""

    basis: Literal["measured", "estimated"]
    regeneration: Range
    epoch: Range
    seconds: Range
    epoch_seconds: Range


@dataclass(frozen=True)
class BreakEven:
    """The acceptance length, with the K of the expected one, at which the head with its best K is
    as fast as ``against``; ``None`` if none suffices."""

    against: Setting
    tokens_per_second: float
    length: float | None


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training on ``instance_type``, which will serve the head too; what a probe
    has measured is of this machine. ``hours`` are of regeneration, epochs (all together), starts
    and the total. ``epochs`` are those within the budget, of ``asked_epochs``. ``expected`` is the
    acceptance length with ``k``, then the fastest K; ``None`` where no head of so few tokens is
    published.
    ``conversations_needed`` are those for the advice ``train``; ``None`` if no number is known to
    suffice. ``alternatives`` are, by drafter, the commands that serve it on this machine."""

    target: str
    instance_type: str
    gpu: str
    gpu_count: int
    usd_per_hour: float | None
    budget_usd: float | None
    data: DataSize
    asked_epochs: int
    epochs: int
    parameters: int
    basis: Literal["measured", "estimated", "unknown"]
    hours: dict[str, Range]
    usd: Range | None
    disk_bytes: int
    checkpoint_bytes: int
    concurrency: int
    workload: Workload
    k: int
    expected: Range | None
    tokens_per_second: float | None
    break_even: tuple[BreakEven, ...]
    advice: Advice
    conversations_needed: int | None
    alternatives: dict[str, tuple[str, ...]]

    @property
    def findings(self) -> Iterator[Finding]:
        """What to read before a training begins."""
        if self.data.conversations < FEW_CONVERSATIONS:
            message = f"the training has few conversations ({self.data.conversations:,}): 5,000 "
            message += "gave an acceptance length of 1.5 in the trainer's own example"
            fix = f"collect at least {FEW_CONVERSATIONS:,}; `peagle train plan` estimates how many"
            yield warning("data-few", "data", message, fix)
        if self.advice == "do-not-train":
            message = f"even the best head for {self.target} would not be the fastest"
            fix = "see `peagle train plan` for what to try instead, or go on"
            yield warning("do-not-train", "pair", message, fix)


def measure_data(
    conversations: Iterable[Conversation], recipe: Recipe, answer_tokens: int | None = None
) -> DataSize:
    """The size of conversations. ``answer_tokens`` replace each answer; by default answers keep
    their length, missing ones have the mean, and none is regenerated longer than the recipe allows,
    which is the length where no answer has one. Raises UserError where none is to be kept."""
    regenerates = not recipe.keep_answers
    texts = [
        [
            (message["role"], _TEMPLATE_TOKENS + len(message["content"].encode()) // TOKEN_BYTES)
            for message in conversation.messages
        ]
        for conversation in conversations
    ]
    answers = [n for messages in texts for role, n in messages if role == "assistant"]
    if not answers and not regenerates:
        fix = "leave out --keep-answers: the target answers the prompts"
        raise UserError("no conversation has an answer to keep", fix, code="no-answers")
    usual = sum(answers) // len(answers) if answers else recipe.answer_tokens
    total = prompts = answered = requests = 0
    for messages in texts:
        before = 0
        is_open = regenerates and messages[-1][0] != "assistant"
        for role, tokens in [*messages, ("assistant", usual)] if is_open else messages:
            if role == "assistant":
                longest = recipe.answer_tokens if regenerates else tokens
                tokens = min(answer_tokens or tokens, longest)
                requests, prompts, answered = requests + 1, prompts + before, answered + tokens
            before += tokens
        total += min(before, recipe.sequence_length)
    return DataSize(len(texts), total, requests, prompts, answered, regenerates)


def plan_training(
    options: TrainingOptions,
    data: DataSize,
    recipe: Recipe,
    catalog: Catalog,
    table: TrainingTable,
    *,
    budget: float | None = None,
    usd_per_hour: float | None = None,
    rates: Rates | None = None,
) -> TrainingPlan:
    """The plan of a head for the pair's target. ``budget`` is in USD; ``usd_per_hour`` replaces
    the price of the instance, and ``rates`` of a probe on this machine those of the model.

    Raises NotFound for unknown names, Refused where target and head do not fit, and UserError for a
    budget that pays for no epoch, or for which price or rates are unknown.
    """
    target = find_pair(catalog, options.pair).target
    head = new_head(target, recipe)
    workload = data.request.resized(options.prompt_tokens, options.output_tokens)
    engine, entry, price = _serving_engine(options, target, head, workload, catalog)
    load, instance = engine.load, engine.instance
    if not load.engine(instance, engine.gpus, head, head.k_recommended).fit.fits:
        on = f"{engine.gpus} x {instance.gpu} ({instance.place})"
        message = f"{target.id} with a head of {head.parameters:,} parameters does not fit on {on}"
        raise Refused(message, "choose an instance type with more GPU memory", "does-not-fit")
    usd_per_hour = usd_per_hour or (None if rates else price)
    rates = rates or estimate_rates(engine, head, data, recipe, table)
    asked_epochs = recipe.epochs
    if budget is not None:
        if usd_per_hour is None or rates is None:
            lacking = "price" if usd_per_hour is None else "speed"
            message = f"--budget: the {lacking} of the machine is unknown"
            raise OptionsConflict(message, "add --price-per-hour, or leave out --budget")
        recipe = _limit_epochs(budget, usd_per_hour, data, rates, recipe)
    hours = training_hours(data, rates, recipe) if rates else {}
    saved = _SAVED_BYTES * (head.parameters or 0)
    tokens = data.tokens * table.effective_epochs(recipe.epochs)
    k, speed, expected = head.k_recommended, 0.0, None
    if tokens >= table.heads[0].count_tokens(table):
        curves = expected_curves(tokens, table, engine.decay)
        speed, k = engine.fastest(head, curves[1])
        expected = Range(*(round(curve.length(k), 2) for curve in curves))
    settings = [NO_SPECULATION, *([entry.best] if entry.best and entry.best.k else [])]
    break_even = [point for each in settings if (point := engine.break_even(head, each, k))]
    advice: Advice = "unknown"
    needed: int | None = None
    if break_even:
        tokens_each = tokens / data.conversations
        needed = _conversations_needed(engine, head, break_even, tokens_each, table)
        advice = "do-not-train"
        if needed is not None:
            advice = "train" if needed <= data.conversations else "train-more-data"
    return TrainingPlan(
        target=target.id,
        instance_type=instance.type,
        gpu=instance.gpu,
        gpu_count=instance.gpu_count,
        usd_per_hour=usd_per_hour,
        budget_usd=budget,
        data=data,
        asked_epochs=asked_epochs,
        epochs=recipe.epochs,
        parameters=head.parameters or 0,
        basis=rates.basis if rates else "unknown",
        hours=hours,
        usd=hours["total"].times(usd_per_hour) if hours and usd_per_hour else None,
        disk_bytes=_DATA_BYTES * data.tokens + (recipe.epochs + 1) * saved,
        checkpoint_bytes=saved,
        concurrency=entry.concurrency,
        workload=workload,
        k=k,
        expected=expected,
        tokens_per_second=speed or None,
        break_even=tuple(break_even),
        advice=advice,
        conversations_needed=needed,
        alternatives=dict(_alternatives(target, options.pair, catalog, entry)),
    )


def new_head(target: Target, recipe: Recipe) -> Drafter:
    """The head of the recipe, as a drafter of the target that no run has measured. Its feed-forward
    blocks are as wide as a dense target's, else three hidden sizes
    (resolve_draft_intermediate_size of speculators 0.9.0)."""
    shape = target.architecture
    head = Drafter(
        name="new-head",
        title="the new head",
        method="eagle3",
        parallel_drafting=True,
        weights="./head",
        min_vllm="0.22.0",
        k_trained=recipe.depths,
        k_recommended=min(USUAL_K, recipe.depths),
        hidden_layers=recipe.layers,
        own_embeddings=True,
        source="peagle train",
    )
    model = draft_model(head, target_model(target))
    assert model is not None  # it has weights
    width = 3 * shape.hidden_size if shape.experts else shape.intermediate_size
    parameters = stored_parameters(with_sizes(model, intermediate_size=width))
    return head.model_copy(update={"parameters": parameters})


class _Engine(NamedTuple):
    """A target under a load, on so many GPUs of an instance."""

    load: Load
    instance: Instance
    gpus: int

    @property
    def decay(self) -> float:
        return self.load.catalog.speed_model.decay

    def speed(self, drafter: Drafter | None, k: int, length: float | None = None) -> Performance:
        """The performance with this drafter and K, and this acceptance length instead of the
        drafter's; of an engine that does not fit, unknown."""
        engine = self.load.engine(self.instance, self.gpus, drafter, k)
        if not engine.fit.fits:
            return Performance("unknown", Acceptance(1.0, "unknown", ""), "it does not fit")
        assumed = None if length is None else Acceptance(length, "assumed", "a new head")
        return self.load.performance(engine, drafter, k, self.load.concurrency, assumed=assumed)

    def fastest(self, head: Drafter, curve: Curve) -> tuple[float, int]:
        """The tokens per second of the head on this curve with its fastest K; 0 and the recommended
        K where no speed is known."""
        ks = range(1, (head.k_trained or 1) + 1)
        speeds = {k: self.speed(head, k, curve.length(k)).tokens_per_second or 0.0 for k in ks}
        k = max(ks, key=speeds.__getitem__)
        return speeds[k], k if speeds[k] else head.k_recommended

    def break_even(self, head: Drafter, against: Setting, k: int) -> BreakEven | None:
        """What the head must reach with its best K to be as fast as that setting, as the length of
        its curve with ``k``; ``None`` if a speed is unknown."""
        drafter = find_drafter(self.load.target, against.drafter) if against.drafter else None
        speed = self.speed(drafter, against.k).tokens_per_second
        lengths = range(1001, 1000 * (k + 1))

        def fastest(length: int) -> float:
            return self.fastest(head, curve_through(((k, length / 1000),), self.decay))[0]

        if not speed or not fastest(lengths[-1]):
            return None
        at = bisect_left(lengths, speed, key=fastest)
        length = lengths[at] / 1000 if at < len(lengths) else None
        return BreakEven(against, round(speed, 1), length)


def _serving_engine(
    options: TrainingOptions, target: Target, head: Drafter, workload: Workload, catalog: Catalog
) -> tuple[_Engine, LoadVerdict, float | None]:
    """The engine that serves the target at the load that the head is for, by default on the
    instance type of a plan, or where the head does not fit there, on the cheapest that has the
    memory; the verdict there; and the price in USD per hour."""
    concurrency = options.concurrency or USUAL_CONCURRENCY
    chosen: dict[str, Any] = {"loads": (concurrency,)}
    if options.instance_type is None and options.gpu is None:
        plan = make_plan(Options(pair=target.id, region=options.region), catalog)
        load = Load(
            target, plan.runtime.vllm, plan.max_model_len, concurrency, catalog, workload=workload
        )
        instance = find_instance(catalog.instances, plan.instance_type)
        if not load.engine_on(instance, 1, head, head.k_recommended).fit.fits:
            with_head = target.model_copy(update={"drafters": (*target.drafters, head)})
            targets = {**catalog.targets, target.id: with_head}
            pair = f"{target.id}+{head.name}"
            plan = make_plan(
                Options(pair=pair, region=options.region), replace(catalog, targets=targets)
            )
            chosen["tensor_parallel_size"] = plan.fit.tensor_parallel_size
        chosen["instance_type"] = plan.instance_type
    verdict = make_verdict(options.model_copy(update=chosen), catalog, {"requests": workload})
    entry = verdict.workloads[0].loads[0]
    instance = find_instance(catalog.instances, verdict.instance_type)
    length = verdict.max_model_len or target.default_max_model_len
    load = Load(target, verdict.vllm, length, entry.concurrency, catalog, workload=workload)
    gpus = entry.tensor_parallel_size or verdict.tensor_parallel_size
    return _Engine(load, instance, gpus), entry, verdict.usd_per_hour


def estimate_rates(
    engine: _Engine, head: Drafter, data: DataSize, recipe: Recipe, table: TrainingTable
) -> Rates | None:
    """The rates by the performance model; ``None`` on a GPU that it does not have, and where the
    target does not fit.

    An engine on the fewest GPUs regenerates answers, then computes hidden states beside a trainer
    on the other GPUs, or in turn with one on the same GPU.
    """
    instance, load = engine.instance, engine.load
    gpu = load.catalog.speed_model.gpu(instance.gpu, instance.gpu_memory_mib / 1024)
    if gpu is None:
        return None
    sample, speeds = max(data.tokens // data.conversations, 1), list[Range]()
    for size in (data.request, Workload(sample, output_tokens=1)):
        length = max(size.tokens, recipe.sequence_length)
        step = replace(load, workload=size, concurrency=GPU_REQUESTS, max_model_len=length)
        gpus = step.engine_on(instance, 1, None, 0).case.engine.tensor_parallel_size
        speed = _Engine(step, instance, gpus).speed(None, 0)
        if not (speed.tokens_per_second and speed.low and speed.high):
            return None
        speeds.append(Range(speed.low, speed.tokens_per_second, speed.high))
    states, others = speeds[1].times(sample), instance.gpu_count - gpus
    training = training_rate(load.target, head, data, recipe, gpu.tflops, table)
    training = training.times(max(others, 1))
    pairs = zip(states.values, training.values, strict=True)
    mean = data.answer_tokens / data.requests
    answers = (rate * mean for rate in table.answers_per_second.values)
    start = Range(*table.start_seconds.values)
    return Rates(
        "estimated",
        Range(*map(min, speeds[0].values, answers)),
        Range(*(min(pair) if others else 1 / sum(1 / rate for rate in pair) for pair in pairs)),
        start.times(5),  # to regenerate, untrained, for hidden states, and two to compare answers
        start,
    )


def training_rate(
    target: Target, head: Drafter, data: DataSize, recipe: Recipe, tflops: float,
    table: TrainingTable,
) -> Range:  # fmt: skip
    """Tokens per second of the trainer on a GPU with these TFLOPs: a step takes the time of its
    arithmetic, also on the target's output matrix for labels, and of the launches of kernels."""
    tokens, hidden = recipe.sequence_length, target.architecture.hidden_size
    vocabulary = target.architecture.vocab_size * hidden
    rows = 1 + min(data.answer_tokens / data.tokens, 1.0) * (slots_per_anchor(recipe.depths) - 1)
    numbers = (head.parameters or 0) - vocabulary
    flops, peak = tokens * (6 * rows * numbers + 2 * vocabulary), tflops * 1e12
    # Muon's five Newton-Schulz iterations (torch.optim), of the layers' matrices.
    is_muon = recipe.settings.get("optimizer", GPU_OPTIMIZER) == "muon"
    muon = 25 * hidden * (numbers - vocabulary) / table.efficiency.high if is_muon else 0.0
    shares = zip(table.efficiency.values, reversed(table.launch_seconds.values), strict=True)
    steps = (launches + (flops / share + muon) / peak for share, launches in shares)
    return Range(*(tokens / seconds for seconds in steps))


_ROUNDS, _PROMPTS, _STEPS = 4, 32, 30
"""Of a probe: conversations per concurrent request; held-out prompts; training steps."""

_SPREAD = 1.25
"""The ratio of a measured rate to the bounds of its range."""


def measure_rates(training: Training, observe: Observe, answer_tokens: int | None = None) -> Rates:
    """The rates of this training on this machine, from a short one, whose folder remains only where
    an error names a log in it: all steps run on a few conversations, and what does not grow with
    the data, such as starts, is counted once. ``answer_tokens`` is that of ``measure_data``, by
    whose tokens rates count. Raises what a training does."""
    data = training.data
    totals, each = dict[str, int](), dict[str, float]()

    def note(progress: TrainProgress) -> None:
        if progress.done:
            totals[progress.step] = progress.total
        if progress.seconds_each is not None:
            each[progress.step] = progress.seconds_each
        observe(progress)

    train, held_out = data.train[: _ROUNDS * training.setup.requests], data.held_out[:_PROMPTS]
    begun = time.monotonic()
    work = Path(mkdtemp(prefix=".peagle-probe-", dir=training.output)).resolve()
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, work)
        recipe = replace(training.recipe, epochs=1, max_steps=_STEPS)
        sample = replace(data, train=train, held_out=held_out)
        run = Run(replace(training, output=work, work=work, recipe=recipe, data=sample), note)
        try:
            with suppress(NotProved):  # after so few steps no draft may be accepted
                run.train()
        except EngineError:
            cleanup.pop_all()  # it names a log there
            raise
        elapsed, seconds = time.monotonic() - begun, run.seconds

    size = measure_data(train, recipe, answer_tokens)
    spent = seconds.get("answers", 0.0)
    answers = size.conversations * each["answers"] if "answers" in each else spent
    steps = totals.get("training", _STEPS)
    step = each.get("training", seconds["training"] / min(_STEPS, steps))
    states = totals.get("states", 0) * each.get("states", 0.0)
    prompt = each.get("measured", seconds["measured"] / len(held_out))
    further = min(MOST_PROMPTS, len(data.held_out)) - len(held_out)
    measuring = seconds["measured"] + further * prompt
    rest = elapsed - answers - states - step * min(_STEPS, steps) - seconds["measured"]
    regeneration = size.answer_tokens / answers if answers else 1.0
    epoch = steps * step + states / training.recipe.epochs  # saved once, for all epochs
    likely = (regeneration, size.tokens / epoch, max(rest, 0.0), measuring)
    return Rates("measured", *(Range(n / _SPREAD, n, n * _SPREAD) for n in likely))


def training_hours(data: DataSize, rates: Rates, recipe: Recipe) -> dict[str, Range]:
    """The hours at these rates."""
    epochs = recipe.epochs
    seconds = zip(rates.seconds.values, rates.epoch_seconds.values, strict=True)
    parts = {
        "regeneration": rates.regeneration.hours_for(data.answer_tokens * data.regenerates),
        "epochs": rates.epoch.hours_for(data.tokens * epochs),
        "starts": Range(*((once + epochs * each) / 3600 for once, each in seconds)),
    }
    sums = zip(*(part.values for part in parts.values()), strict=True)
    return {**parts, "total": Range(*map(sum, sums))}


def _limit_epochs(
    budget: float, usd_per_hour: float, data: DataSize, rates: Rates, recipe: Recipe
) -> Recipe:
    """The recipe with the epochs that the budget likely pays for. Raises UserError for none."""
    recipes = [replace(recipe, epochs=n + 1) for n in range(recipe.epochs)]
    hours = [training_hours(data, rates, each) for each in recipes]
    epochs = sum(each["total"].likely * usd_per_hour <= budget for each in hours)
    if epochs:
        return recipes[epochs - 1]
    usd, starts = (hours[0][key].likely * usd_per_hour for key in ("total", "starts"))
    fewer = math.floor(data.conversations * (budget - starts) / (usd - starts))
    message = f"one epoch of {data.conversations:,} conversations costs about {format_usd(usd)}"
    fix = "raise the budget" + (f", or use at most {fewer:,} conversations" if fewer > 0 else "")
    raise UserError(f"{message}, and --budget is {format_usd(budget)}", fix, "budget-too-small")


def _published(table: TrainingTable, decay: float) -> list[tuple[float, float]]:
    """The logarithm of the tokens of each published head, and its acceptance length with K=5."""
    return [
        (
            math.log(head.count_tokens(table)),
            curve_through(((head.k, head.acceptance_length),), decay).length(USUAL_K),
        )
        for head in table.heads
    ]


def expected_curves(tokens: float, table: TrainingTable, decay: float) -> tuple[Curve, ...]:
    """The low, the likely and the high acceptance after training on so many tokens, of which those
    of further epochs count as in ``table.effective_epochs``."""
    points = _published(table, decay)
    at = min(max(math.log(max(tokens, 1.0)), points[0][0]), points[-1][0])
    (x, y), (x2, y2) = next(pair for pair in pairwise(points) if at <= pair[1][0])
    accepted = y - 1 + (y2 - y) * (at - x) / (x2 - x)
    lengths = (1 + min(accepted * share, USUAL_K - 0.1) for share in table.domains.values)
    return tuple(curve_through(((USUAL_K, length),), decay) for length in lengths)


def _conversations_needed(
    engine: _Engine,
    head: Drafter,
    break_even: Sequence[BreakEven],
    tokens_each: float,
    table: TrainingTable,
) -> int | None:
    """The conversations, of so many tokens in all epochs, after which the head is likely faster by
    a tenth than all of ``break_even``, and at the low end no slower than the first of them;
    ``None`` if the training of no published head suffices."""
    to_win = (1 + ESTIMATE_MUST_WIN_BY) * max(each.tokens_per_second for each in break_even)

    def suffice(conversations: int) -> bool:
        low, likely, _ = expected_curves(tokens_each * conversations, table, engine.decay)
        (at_low, _), (at_likely, _) = engine.fastest(head, low), engine.fastest(head, likely)
        return at_low >= break_even[0].tokens_per_second and at_likely >= to_win

    published = _published(table, engine.decay)
    fewest, most = (math.ceil(math.exp(published[end][0]) / tokens_each) for end in (0, -1))
    numbers = range(fewest, most + 1)
    at = bisect_left(numbers, True, key=suffice)
    return numbers[at] if at < len(numbers) else None


def _alternatives(
    target: Target, pair: str, catalog: Catalog, entry: LoadVerdict
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The target's public drafters, of each method the fastest at this load; for a target of the
    user's own n-gram lookup, and the head of the model of which it may be a copy."""
    up = ("peagle", "local", "up")
    if is_from_checkpoint(target) or not target.drafters:
        yield "ngram", (*up, f"{pair}+ngram")
        for other, weights in heads_of_same_sizes(target, catalog):
            yield f"{other.default_drafter} of {other.id}", (*up, pair, "--drafter", weights)
        return
    speeds = {speed.setting.drafter: speed.tokens_per_second or 0.0 for speed in entry.speeds}
    public = [drafter for drafter in target.drafters if drafter.public]
    methods = set()
    for drafter in sorted(public, key=lambda drafter: -speeds.get(drafter.name, 0.0)):
        method = drafter.method, drafter.parallel_drafting
        if method not in methods:
            yield drafter.name, (*up, f"{target.short_name}+{drafter.name}")
        methods.add(method)
