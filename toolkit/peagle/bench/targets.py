"""What is measured: an endpoint of SageMaker, an engine of this machine, or a URL.

AWS's own image exposes no counters: the drafts of such an endpoint are counted from vLLM's lines of
statistics in the log of every instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from peagle.aws import runtime, sagemaker
from peagle.aws.client import MAX_TOKEN_SECONDS, Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.bench.measure import BenchTarget
from peagle.bench.result import NO_SPECULATION, BenchedServer, BenchSetting, CounterSource
from peagle.bench.server import OpenAiServer, counters_of, served_models, waiting_of
from peagle.catalog.schema import Catalog
from peagle.deploy.invoke import WakeUpOptions, wake
from peagle.deploy.proving import StatisticsReader
from peagle.deploy.state import Deployment
from peagle.deploy.status import stand_in_of
from peagle.engine import local
from peagle.engine.local import StepProgress, start_local, stop_local
from peagle.engine.state import LocalEngine, local_engine_names, read_local_engine
from peagle.errors import Fix, UserError
from peagle.planning import Options, make_plan
from peagle.protocol import Counters
from peagle.store import SANDBOX
from peagle.text import json_object
from peagle.vllm.defaults import inferred_method, method_id
from peagle_serve.contract import SPECULATION

_UNKNOWN = BenchSetting(None, 0, is_known=False)

_SOON_SECONDS = 0.05
"""No answer over the network takes less than that."""


def target_of_url(url: str, model: str | None = None, key: str | None = None) -> BenchTarget:
    """A server with OpenAI's protocol; ``url`` is its base URL, with or without ``/v1``. Without
    ``model``, it must list one model only. Raises UserError for an address that is no URL and for
    several models, and EngineError when it does not answer."""
    server = server_of_url(url, model, key)
    facts = BenchedServer(url, "url", server.base_url, server.model)
    return BenchTarget(
        server, facts, _UNKNOWN, partial(counters_of, server), partial(waiting_of, server)
    )


def server_of_url(url: str, model: str | None, key: str | None) -> OpenAiServer:
    """The server at a URL, with the ``model`` given, else with the only one that it lists. Raises
    what ``target_of_url`` does."""
    server = OpenAiServer(base_url_of(url), model or "", key)
    if model is not None:
        return server
    names = list(served_models(server))
    if len(names) != 1:
        raise UserError(
            f"{server.base_url} serves {len(names)} models: {', '.join(names[:5])}",
            "choose one with --model",
            "model",
        )
    return replace(server, model=names[0])


def base_url_of(url: str) -> str:
    """The base URL of OpenAI's protocol, which ends in ``/v1``. Raises UserError for other text."""
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    if not is_server or parts.username or parts.query or parts.fragment:
        raise UserError(
            f"{url} is not the URL of a server", "such as http://127.0.0.1:8000/v1", "url"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


def target_of_engine(engine: LocalEngine) -> BenchTarget:
    """An engine of ``peagle local up``."""
    log = ("peagle", "local", "logs", engine.name)
    server = OpenAiServer(engine.openai_base_url, engine.served_as, log=log, chat=engine.chat)
    facts = BenchedServer(
        name=engine.name,
        where="local",
        base_url=server.base_url,
        model=server.model,
        pair=engine.pair,
        vllm=engine.vllm,
    )
    setting = setting_of_config(json_object(engine.environment.get(SPECULATION)))
    read = partial(local.counters, engine.process.port) if engine.speculates else (lambda: None)
    return BenchTarget(server, facts, setting, read, partial(waiting_of, server))


def target_alone(
    engine: LocalEngine, catalog: Catalog, progress: StepProgress = lambda step, line: None
) -> AbstractContextManager[BenchTarget]:
    """The target of ``engine`` alone, with the engine's own settings, which runs while the block
    does; one that ran before is left running. Raises UserError for an engine in a container, whose
    image is not known here, and NotFound for a target that the catalogue does not have."""
    name = f"{engine.name}-alone"
    if engine.image is not None:
        command = ("peagle", "local", "up", engine.served_as, "--no-speculation",
                   "--engine", "docker", "--name", name)  # fmt: skip
        fix = Fix("start its target alone, and pass its address with --against", command)
        raise UserError(f"{engine.name} runs in a container", fix, "needs-against")
    options = Options(pair=engine.served_as, name=name, vllm=engine.vllm, speculation=False)
    environment = {k: v for k, v in engine.environment.items() if k != SPECULATION}
    plan = make_plan(options, catalog).model_copy(update={"environment": environment})

    @contextmanager
    def running() -> Iterator[BenchTarget]:
        ran = name in local_engine_names() and read_local_engine(name) is not None
        started = start_local(plan, progress=progress)
        try:
            yield target_of_engine(started)
        finally:
            if not ran:
                stop_local(name, now=True)

    return running()


def setting_of_config(config: dict[str, object]) -> BenchSetting:
    """The setting in vLLM's ``--speculative-config``. The drafter's name is the method: ``p-eagle``
    for parallel drafting with EAGLE-3, else vLLM's."""
    k = config.get("num_speculative_tokens")
    if not config or not isinstance(k, int):
        return NO_SPECULATION
    rates = config.get("synthetic_acceptance_rates")
    imposed = [rate for rate in rates if type(rate) is float] if isinstance(rates, list) else []
    method = str(config.get("method") or inferred_method(str(config.get("model") or "")))
    name = method_id(method, bool(config.get("parallel_drafting")))
    return BenchSetting(name, k, tuple(imposed))


def target_of_endpoint(
    aws: Aws,
    name: str,
    record: Deployment | None,
    catalog: Catalog,
    model: str | None = None,
    wake_up: WakeUpOptions | None = None,
) -> BenchTarget:
    """An endpoint, through SageMaker's OpenAI-compatible route, which has chats only; one that
    scaled to zero is woken first, as ``wake_up`` says.

    ``record`` is ``None`` for an endpoint that ``peagle deploy`` did not create; then ``model`` is
    needed. In the sandbox there is no price. Raises UserError without a model, and CloudError,
    NotAwake among them.
    """
    served = record.current.served if record else None
    plan = record.current.plan if record else None
    if model is None and served is not None:
        model = plan.target.id if plan else str(served.settings.get("served-model-name") or "")
    if not model:
        raise UserError(f"the model that {name} serves is unknown", "name it with --model", "model")
    has_copies = served is not None and served.copies is not None
    if has_copies and (live := sagemaker.describe(aws, name)) is not None:
        wake(aws, live, record, wake_up)
    server = OpenAiServer(
        aws.openai_base_url(name, name if has_copies else ""),
        model,
        aws.bearer_token(MAX_TOKEN_SECONDS),
        log=("peagle", "logs", name),
    )
    in_sandbox = aws.scope == SANDBOX
    facts = BenchedServer(
        name=name,
        where="sandbox" if in_sandbox else "aws",
        base_url=server.base_url,
        model=server.model,
        tensor_parallel_size=1,
        region=aws.region,
        stand_in=stand_in_of(aws, name) if in_sandbox else None,
    )
    if served is None:
        read, source = counters_of_endpoint(aws, name)
        return BenchTarget(server, facts, _UNKNOWN, read, counted_by=source)
    types = {instance.type: instance for instance in catalog.instances.instances}
    instance = types.get(served.instance_type)
    size = served.settings.get("tensor-parallel-size", 1)
    facts = replace(
        facts,
        pair=served.pair or None,
        vllm=served.vllm,
        gpu=instance.gpu if instance else None,
        gpu_count=instance.gpu_count if instance else None,
        tensor_parallel_size=size if isinstance(size, int) else None,
        instance_type=served.instance_type,
        instance_count=served.instance_count,
    )
    setting, (read, source) = NO_SPECULATION, _NO_COUNTERS
    if served.k:
        setting = setting_of_config(served.speculative_config)
        if plan and plan.drafter:
            setting = BenchSetting(plan.drafter.name, served.k, setting.imposed_rates)
        read, source = counters_of_endpoint(aws, name)
    price = None if in_sandbox else served.usd_per_hour
    dated = f"on {served.price_date}" if served.price_date else "of the catalogue"
    return BenchTarget(
        server,
        facts,
        setting,
        read,
        usd_per_hour=price,
        price_source=None if price is None else f"AWS's on-demand price {dated}",
        counted_by=source,
    )


EndpointCounters = tuple[Callable[[], Counters | None], CounterSource]
"""How to read what an endpoint counts, ``None`` where that is unknown, and from where."""

_NO_COUNTERS: EndpointCounters = (lambda: None, "counters")


def counters_of_endpoint(aws: Aws, name: str, clock: Clock | None = None) -> EndpointCounters:
    """The engine's counters where one instance exposes them, else those in the log of all instances
    from now on; none where that may not be read.

    A reading of the log waits for the statistics, up to 45 s on AWS; one soon after another does
    not, since nothing was sent in between.
    """
    live = sagemaker.describe(aws, name)
    if live is None:
        return _NO_COUNTERS
    if live.engine_count == 1 and runtime.counters(aws, name) is not None:
        return partial(runtime.counters, aws, name), "counters"
    time = clock or Clock()
    try:
        reader = StatisticsReader(aws, live, time)
        reader.read()
    except AccessDenied:
        return _NO_COUNTERS
    instances, read_at = max(live.engine_count, 1), time.now()

    def read() -> Counters:
        nonlocal read_at
        if not aws.is_amazon or time.now() > read_at + _SOON_SECONDS:
            reader.wait(instances)
        read_at = time.now()
        return sum(reader.counts.counted.values(), Counters(0, 0, 0))

    return read, "log"
