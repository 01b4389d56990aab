"""The load that a plan is for, and the engines that serve it: the memory of each, and its speed,
computed once.

Neither depends on prices, required times, numbers of instances or any option other than the load,
so all plans and verdicts of a process for the same load share them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from peagle.case import build_case
from peagle.catalog.schema import Catalog, Drafter, SpeedRun, Target
from peagle.catalog.tables import HERE, Instance
from peagle.checkpoints.architecture import divisions, is_expert_parallel
from peagle.errors import Fix, OutOfRange, use_option
from peagle.findings import error, warning
from peagle.fit.building import draft_model, fit_case, target_model
from peagle.fit.estimate import (
    Fit,
    FitCase,
    compute_fit,
    compute_prefix_share,
    compute_request_share,
    drafter_on_gpu,
    missing_bytes,
)
from peagle.options import Options
from peagle.planning.plan import Decisions, reason
from peagle.speed.acceptance import Acceptance, Performance, find_acceptance, names_in_runs
from peagle.speed.estimate import on_engine, performance, slots, turn_step_tokens
from peagle.speed.ranking import SAME_ESTIMATE_SHARE
from peagle.speed.step import Geometry, StepTimes, read_geometry
from peagle.vllm.defaults import CAPTURE_SIZE, capture_size
from peagle.workload import PRESETS, Workload

USUAL_CONCURRENCY = 8
"""The default. P-EAGLE gains most with few concurrent requests: +55-69 % with one, +5-25 % with 64
(vLLM's blog of 2026-03-13, GPT-OSS-20B on a B200)."""

USUAL_WORKLOAD = Workload(prompt_tokens=2048, output_tokens=256)
"""The default size of a request: a question with some context, which the evidence has, too."""

MIN_LOAD_SHARE = 0.25
"""Minimum share of the load, at full length, that the KV cache must hold, if requests are not
longer. Most requests are much shorter than the longest context, so a cache for all of them would
mostly stay empty; with a smaller one, vLLM queues or preempts requests."""

FURTHER_TURNS = 8
"""How many turns after the usual one the context of a conversation has room for, at least."""


def with_workload(options: Options) -> Options:
    """The options with the size of requests of their preset; that of a batch is ``batch``.

    Of another prompt the preset's share is cached, and of that its share is shared by all; at least
    what the options say is shared is cached.
    """
    cached, shared = options.cached_prompt_tokens, options.shared_prompt_tokens
    name = options.workload or ("batch" if options.requests is not None else None)
    if name is None:
        cached = shared if cached is None else cached
        return options.model_copy(update={"cached_prompt_tokens": cached})
    preset = PRESETS[name]
    size = preset.resized(options.prompt_tokens, options.output_tokens)
    if cached is None:
        cached = max(size.cached_prompt_tokens, shared or 0)
    if shared is None:
        shared = cached * preset.shared_prompt_tokens // max(preset.cached_prompt_tokens, 1)
    return options.model_copy(
        update={
            "workload": name,
            "prompt_tokens": size.prompt_tokens,
            "cached_prompt_tokens": cached,
            "shared_prompt_tokens": shared,
            "output_tokens": size.output_tokens,
        }
    )


def choose_length(options: Options, target: Target, decisions: Decisions) -> int:
    """The longest context in tokens, at most what the target supports; the rules report a longer
    one from the options. By default the target's, or what requests and the further turns of a
    conversation need, as a power of two; less where only that fits."""
    longest, length = target.architecture.max_positions, target.default_max_model_len
    if options.max_model_len is not None:
        return min(options.max_model_len, longest)
    because = reason("max_model_len", f"{length:,}", "context-of-target", target=target.id)
    cached, turns = options.cached_prompt_tokens, None
    needed = (options.prompt_tokens or 0) + (options.output_tokens or USUAL_WORKLOAD.output_tokens)
    if cached and cached > (options.shared_prompt_tokens or 0):
        needed, turns = needed + FURTHER_TURNS * (needed - cached), FURTHER_TURNS
    if needed > length:
        is_rounded = options.requests is None
        length = 1 << (needed - 1).bit_length() if is_rounded else needed
        because = reason(
            "max_model_len", f"{length:,}", "context-of-requests", turns=turns, rounded=is_rounded
        )
    if length >= longest:
        length = longest
        because = reason("max_model_len", f"{length:,}", "context-at-maximum", target=target.id)
    fitting, on = options.fitting_length, options.instance_type
    if fitting is not None and fitting < length:
        on = "this machine" if on == HERE else on
        where = f" on {on}" if on else ", on any instance type"
        message = f"the default context of {length:,} tokens does not fit{where}: "
        message += f"{fitting:,} are planned"
        confirm = use_option("--max-model-len", fitting, verb="confirm it with")
        decisions.findings.append(warning("context-shortened", "max_model_len", message, confirm))
        because = reason("max_model_len", f"{fitting:,}", "context-too-long", tokens=length)
        length = fitting
    decisions.reasons.append(because)
    return length


def shorter_contexts(usual: int, least: int) -> Iterator[int]:
    """Contexts to try where the usual one does not fit: halves of it down to one request."""
    length = usual
    while length > least:
        yield length
        length //= 2
    yield min(usual, least)


def choose_concurrency(options: Options, decisions: Decisions) -> int:
    """The number of concurrent requests; excess requests queue."""
    if options.concurrency is None:
        decisions.explain("concurrency", USUAL_CONCURRENCY, "default-concurrency")
    return options.concurrency or USUAL_CONCURRENCY


def choose_workload(
    options: Options, target: Target, max_model_len: int, decisions: Decisions
) -> Workload:
    """The tokens of one request; the defaults are shortened to what the context leaves.

    An error reports requests that exceed it. Raises UserError as ``choose_size_of_requests`` does.
    """
    prompt, output = options.prompt_tokens, options.output_tokens
    workload = choose_size_of_requests(options, max_model_len)
    if (prompt or output) and workload.tokens > max_model_len:
        needed = (prompt or USUAL_WORKLOAD.prompt_tokens) + (output or USUAL_WORKLOAD.output_tokens)
        message = f"requests of {needed:,} tokens exceed the context of {max_model_len:,} tokens"
        sizes = {"--prompt-tokens": prompt, "--output-tokens": output}
        fix = Fix(f"lower {' or '.join(flag for flag, tokens in sizes.items() if tokens)}")
        if needed <= target.architecture.max_positions:
            fix = use_option("--max-model-len", needed, f", or {fix.sentence}")
        where = "prompt_tokens" if prompt else "output_tokens"
        decisions.findings.append(error("requests-above-context", where, message, fix))
    if prompt is None or output is None:
        shown = f"{workload.prompt_tokens:,} + {workload.output_tokens:,} tokens"
        decisions.explain("workload", shown, "default-workload")
    return workload


def choose_size_of_requests(options: Options, length: int = 1 << 30) -> Workload:
    """The tokens of one request; the defaults are shortened to what the context leaves.

    Raises OutOfRange for a prompt that is all in the cache, and for more shared than cached tokens.
    """
    output, prompt = options.output_tokens, options.prompt_tokens
    if output is None:
        output = max(1, min(USUAL_WORKLOAD.output_tokens, length - (prompt or length // 2)))
    if prompt is None:
        prompt = max(1, min(USUAL_WORKLOAD.prompt_tokens, length - output))
    cached, shared = options.cached_prompt_tokens or 0, options.shared_prompt_tokens or 0
    if not 0 <= shared <= cached < prompt:
        raise OutOfRange(
            f"of the {prompt:,} tokens of a prompt, {cached:,} are cached and {shared:,} shared",
            "cached tokens are fewer than --prompt-tokens, and shared ones are among them",
        )
    return Workload(prompt, output, cached, shared)


PLANNED_GPU_MEMORY_UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM may use; set explicitly, since its default has changed."""


_OWN_GRAPHS = frozenset(
    {CAPTURE_SIZE, "cudagraph-capture-sizes", "compilation-config", "enforce-eager"}
)
"""Arguments of vLLM with which the user decides about CUDA graphs."""

_LARGEST_OF_TURN = 1024
"""Tokens up to which CUDA graphs of steps with a prompt were measured."""


@dataclass(frozen=True)
class EngineFit:
    """One engine on GPUs of a kind: input and result of the memory model. ``cache_share`` is what
    the cache must hold of each request of the load, ``shared`` what it holds once for all, in
    requests of max-model-len. ``graph_tokens`` is the size of the largest CUDA graph where it is
    beyond vLLM's default, and ``for_turn`` whether that is for a step with the prompt of a turn."""

    case: FitCase
    fit: Fit
    cache_share: float
    shared: float
    graph_tokens: int | None = None
    for_turn: bool = False

    @cached_property
    def geometry(self) -> Geometry:
        """The sizes from which speeds are computed."""
        return read_geometry(self.case)

    def with_default_graphs(self, k: int) -> FitCase:
        """The case with this K, and with vLLM's CUDA graphs unless the user decides about them."""
        case = self.case._replace(engine=self.case.engine._replace(k=k))
        return _with_size(case, None) if self.graph_tokens else case

    @cached_property
    def most_requests(self) -> int:
        """The most concurrent requests for which the KV cache is large enough."""
        held = max(self.fit.max_concurrency - self.shared, 0.0) / self.cache_share
        return math.floor(held) if self.fit.fits else 0


def _with_size(case: FitCase, size: int | None) -> FitCase:
    return case._replace(engine=case.engine._replace(max_cudagraph_capture_size=size))


@dataclass
class Computed:
    """What is computed for a load, each at first use. A drafter is known by its name: it is the
    user's own head, or one of the target's in the catalogue."""

    engines: dict[tuple[object, ...], EngineFit] = field(default_factory=dict)
    speeds: dict[tuple[object, ...], Performance] = field(default_factory=dict)
    acceptances: dict[tuple[object, ...], Acceptance] = field(default_factory=dict)
    ks: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Load:
    """A target under a load, independent of drafter and instance.

    ``settings`` are the user's own arguments of vLLM; an empty value leaves out one of the
    catalogue's. ``own_head`` is the user's own drafter, which runs name by its location only, even
    if it has the name of the catalogue's. ``of_one_size``: no request is longer than ``workload``,
    as in a batch. ``engines`` is the number of those that share ``concurrency`` evenly; the
    ``--max-num-seqs`` of each is still all of it.

    Loads are equal if the same is computed from them: of the catalogue they compare what fits and
    speeds are computed from, by identity. A catalogue that is loaded again keeps what has not
    changed, and to compare all measured rows takes longer than to use them.
    """

    target: Target
    vllm: str
    max_model_len: int
    concurrency: int
    catalog: Catalog
    settings: dict[str, str] = field(default_factory=dict)
    workload: Workload = USUAL_WORKLOAD
    own_head: Drafter | None = None
    of_one_size: bool = False
    engines: int = 1

    def __hash__(self) -> int:
        return hash((self.target.id, self.max_model_len, self.concurrency, self.workload))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Load) and self._key == other._key

    @cached_property
    def _key(self) -> tuple[object, ...]:
        catalog = self.catalog
        tables = catalog.runtimes, catalog.instances, catalog.version_rules, catalog.speed_model
        same = [*map(id, (self.target, *tables, *self.runs))]
        load = self.vllm, self.max_model_len, self.concurrency, self.workload, self.of_one_size
        return same, load, self.settings, self.own_head, self.engines

    @property
    def requests_per_engine(self) -> int:
        """The concurrent requests of each engine."""
        return math.ceil(self.concurrency / self.engines)

    @cached_property
    def computed(self) -> Computed:
        """What this process has computed for an equal load."""
        return computed_for(self)

    @property
    def runs(self) -> tuple[SpeedRun, ...]:
        """The measured runs of the target, on any GPU, in the order in which they answer."""
        return self.catalog.speeds.get(self.target.id, ())

    def names(self, drafter: Drafter | None) -> Collection[str | None]:
        """The names of the drafter in runs."""
        return names_in_runs(drafter, self.own_head is not None)

    def divisions(self, gpus: int) -> Sequence[int]:
        """The numbers of GPUs, up to so many, on which one engine runs."""
        return divisions(self.target.architecture, gpus, is_expert_parallel(self.settings))

    def drafter_bytes(self, drafter: Drafter | None) -> int:
        """Bytes of the drafter's weights on a single GPU; 0 without weights."""
        model = draft_model(drafter, target_model(self.target)) if drafter else None
        return drafter_on_gpu(model, 1) if model else 0

    def acceptance(self, drafter: Drafter | None, k: int) -> Acceptance:
        """What is known of the acceptance length of the drafter with this K: measured on any
        device, with or without a speed, or published."""
        key = drafter and drafter.name, k
        if key not in self.computed.acceptances:
            decay = self.catalog.speed_model.decay
            self.computed.acceptances[key] = find_acceptance(
                drafter, k, self.runs, self.names(drafter), decay=decay
            )
        return self.computed.acceptances[key]

    def may_know(self, drafter: Drafter | None) -> bool:
        """Whether there can be a speed: measured, or from a known acceptance."""
        if self.acceptance(drafter, 1 if drafter else 0).basis != "unknown":
            return True
        names = self.names(drafter)
        return any(row.drafter in names for run in self.runs for row in run.speeds)

    def compared_ks(self, drafter: Drafter | None) -> tuple[int, ...]:
        """The values of K to compare: the recommended and the measured ones, and where an
        acceptance is known all up to the trained K; 0 without a drafter."""
        if drafter is None:
            return (0,)
        if drafter.name not in self.computed.ks:
            usual, names = drafter.k_recommended, self.names(drafter)
            ks = {row.k for run in self.runs for row in run.speeds if row.drafter in names}
            ks |= {row.k for run in self.runs for row in run.on_text if row.drafter in names}
            ks.add(usual)
            most = drafter.k_trained or max(ks | {1})
            if self.acceptance(drafter, usual).basis != "unknown":
                ks |= {*range(1, (drafter.k_trained or usual) + 1)}
            self.computed.ks[drafter.name] = tuple(sorted(k for k in ks if 0 < k <= most))
        return self.computed.ks[drafter.name]

    def options(self, instance: Instance, k: int | None) -> Options:
        """The options of one engine under this load."""
        return Options(
            pair=self.target.id,
            k=k,
            max_model_len=self.max_model_len,
            concurrency=self.concurrency,
            vllm=self.vllm,
            instance_type=instance.type,
            settings=self.settings,
        )

    def engine(self, instance: Instance, gpus: int, drafter: Drafter | None, k: int) -> EngineFit:
        """The engine on this many GPUs of the instance's kind."""
        kind = instance.gpu, instance.gpu_memory_mib, instance.gpu_architecture
        key = *kind, gpus, drafter and drafter.name, k
        if key not in self.computed.engines:
            if gpus > 1:
                case = self.engine(instance, 1, drafter, k).with_default_graphs(k)
                config = case.engine._replace(gpu_count=gpus, tensor_parallel_size=gpus)
                case = case._replace(engine=config)
            else:
                options = self.options(instance, k)
                built = build_case(
                    self.catalog, self.target, drafter, options, tensor_parallel_size=1
                )
                planned = {"gpu-memory-utilization": PLANNED_GPU_MEMORY_UTILIZATION}
                built = replace(built, settings={**planned, **built.settings})
                case = fit_case(built, instance)
            least = 0.0 if self.of_one_size else MIN_LOAD_SHARE
            tokens, length = self.workload.tokens, self.max_model_len
            each = min(1.0, max(least, tokens / length, compute_request_share(case, tokens)))
            shared = compute_prefix_share(case, self.workload.shared_prompt_tokens)
            plain = EngineFit(case, compute_fit(case), each - shared, shared)
            self.computed.engines[key] = self._with_graphs(plain)
        return self.computed.engines[key]

    def _with_graphs(self, engine: EngineFit) -> EngineFit:
        """The engine with the first CUDA graphs with which it holds the load as before."""
        held = min(engine.most_requests, self.requests_per_engine)
        for size, for_turn in self._find_graphs(engine):
            case = _with_size(engine.case, size)
            larger = EngineFit(
                case, compute_fit(case), engine.cache_share, engine.shared, size, for_turn
            )
            if larger.fit.fits and larger.most_requests >= held:
                return larger
        return engine

    def _find_graphs(self, engine: EngineFit) -> Iterator[tuple[int, bool]]:
        """The CUDA graphs for a step of an engine's requests, in conversations first those for one
        that also has the prompt of a turn. None where vLLM's default has them, where the user
        decides, and where they save no time."""
        config, default, model = engine.case.engine, engine.geometry, self.catalog.speed_model
        gpu = model.gpu(config.gpu, config.gpu_memory_gib)
        if gpu is None or any(name.partition(".")[0] in _OWN_GRAPHS for name in self.settings):
            return
        requests, workload = self.requests_per_engine, self.workload
        running = min(requests, slots(engine.case, engine.fit, workload))
        context = workload.prompt_tokens + workload.output_tokens / 2
        if workload.cached_prompt_tokens:
            workload = on_engine(engine.case, engine.fit, workload, requests, self.engines)

        def seconds(geometry: Geometry, tokens: int, is_turn: bool) -> float:
            times = StepTimes(geometry, gpu, model)
            if is_turn:
                return times.prefill_step_seconds(tokens, workload)
            return times.decode_seconds(running, context)

        for is_turn in (True, False) if self.workload.cached_prompt_tokens else (False,):
            tokens = requests * (config.k + 1)
            if is_turn:
                tokens = turn_step_tokens(workload, requests, config.k)
            largest = _LARGEST_OF_TURN if is_turn else config.max_num_batched_tokens
            size = capture_size(tokens, config.k) if default.captured < tokens <= largest else 0
            if not tokens <= size <= largest:
                continue
            graphs = default.with_graphs(size, size)
            saved = 1 - seconds(graphs, tokens, is_turn) / seconds(default, tokens, is_turn)
            if saved > SAME_ESTIMATE_SHARE:
                yield size, is_turn

    def engine_on(
        self, instance: Instance, requests: int, drafter: Drafter | None, k: int
    ) -> EngineFit:
        """The engine on the fewest GPUs of the instance that hold so many concurrent requests; else
        on those that hold most, or that lack least memory."""
        tried: list[EngineFit] = []
        for size in self.divisions(instance.gpu_count):
            tried.append(self.engine(instance, size, drafter, k))
            if tried[-1].fit.fits and requests <= tried[-1].most_requests:
                return tried[-1]
        fitting = [engine for engine in tried if engine.fit.fits]
        if fitting:
            return max(fitting, key=lambda engine: engine.fit.max_concurrency)
        return min(tried, key=lambda engine: missing_bytes(engine.case))

    def performance(
        self,
        engine: EngineFit,
        drafter: Drafter | None,
        k: int,
        requests: float,
        engines: int = 1,
        assumed: Acceptance | None = None,
    ) -> Performance:
        """The performance of one of ``engines`` engines with so many concurrent requests, in the
        memory that is left with the K of ``engine``. The acceptance is the known one unless
        ``assumed``."""
        config = engine.case.engine
        gpus = config.gpu, config.gpu_memory_gib, config.tensor_parallel_size
        key = *gpus, drafter and drafter.name, config.k, k, requests, engines, assumed
        if key not in self.computed.speeds:
            other = engine
            if k != config.k:  # it would have other CUDA graphs
                other = self._with_graphs(replace(engine, case=engine.with_default_graphs(k)))
            self.computed.speeds[key] = performance(
                other.case,
                self.workload,
                requests,
                assumed or self.acceptance(drafter, k),
                self.catalog.speed_model,
                self.runs,
                self.names(drafter),
                fit=engine.fit,
                geometry=other.geometry,
                engines=engines,
            )
        return self.computed.speeds[key]


@lru_cache(maxsize=32)
def computed_for(load: Load) -> Computed:
    """What this process has computed for an equal load."""
    return Computed()
