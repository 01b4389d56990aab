"""What is measured: an endpoint of SageMaker, an engine of this machine, or a URL.

AWS's own image exposes no counters: the drafts of such an endpoint are counted from vLLM's lines of
statistics in the log of every instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from peagle.aws import runtime, sagemaker
from peagle.aws.client import MAX_TOKEN_SECONDS, Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.bench.measure import BenchTarget
from peagle.bench.result import NO_SPECULATION, UNKNOWN, BenchedServer, BenchSetting, CounterSource
from peagle.bench.server import OpenAiServer, counters_of, served_models, waiting_of
from peagle.catalog.schema import Catalog
from peagle.deploy.invoke import WakeUpOptions, wake
from peagle.deploy.proving import StatisticsReader
from peagle.deploy.state import Deployment, Served
from peagle.deploy.status import stand_in_of
from peagle.engine import local
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, Fix, UserError
from peagle.protocol import Counters
from peagle.store import SANDBOX
from peagle.text import json_object
from peagle.vllm.defaults import inferred_method, method_id
from peagle_serve.contract import SPECULATION

_SOON_SECONDS = 0.05
"""No answer over the network takes less than that."""


def target_of_url(url: str, model: str | None = None, key: str | None = None) -> BenchTarget:
    """A server with OpenAI's protocol; ``url`` is its base URL, with or without ``/v1``.

    Without ``model``, it must list one model only. Counters and queue come from its ``/metrics``,
    if it has vLLM's. Raises UserError for an address that is no URL and for several models, and
    EngineError when it does not answer.
    """
    server = server_of_url(url, model, key)
    facts = BenchedServer(url, "url", server.base_url, server.model)
    return BenchTarget(
        server, facts, UNKNOWN, partial(counters_of, server), partial(waiting_of, server)
    )


def server_of_url(url: str, model: str | None, key: str | None) -> OpenAiServer:
    """The server at a URL, with the ``model`` given, else with the only one that it lists. Raises
    what ``target_of_url`` does."""
    server = OpenAiServer(base_url_of(url), model or "", key)
    if model is not None:
        return server
    names = tuple(served_models(server))
    if len(names) != 1:
        shown = ", ".join(names[:5]) or "none"
        raise UserError(
            f"{server.base_url} serves {len(names)} models: {shown}",
            "choose one with --model",
            "model",
        )
    return OpenAiServer(server.base_url, names[0], key)


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
    config = json_object(engine.environment.get(SPECULATION))
    read = partial(local.counters, engine.process.port) if engine.speculates else (lambda: None)
    return BenchTarget(server, facts, setting_of_config(config), read, partial(waiting_of, server))


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
    """An endpoint, through SageMaker's OpenAI-compatible route, which has chats only.

    The bearer token is made for it. ``record`` is ``None`` for an endpoint that ``peagle deploy``
    did not create; then ``model`` is needed. In the sandbox there is no price, since AWS's is of
    another machine. An endpoint that scaled to zero is woken first, as ``wake_up`` says.

    Raises UserError without a model, and CloudError, NotAwake among them.
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
    setting = UNKNOWN
    if served is not None:
        setting = setting_of_config(served.speculative_config) if served.k else NO_SPECULATION
        if served.k and plan and plan.drafter:
            setting = BenchSetting(plan.drafter.name, served.k, setting.imposed_rates)
    read, source = counters_of_endpoint(aws, name) if served is None or served.k else _NO_COUNTERS
    price = served.usd_per_hour if served and aws.scope != SANDBOX else None
    dated = f"on {served.price_date}" if served and served.price_date else "of the catalogue"
    return BenchTarget(
        server,
        _facts_of_endpoint(aws, name, server, served, catalog),
        setting,
        read,
        usd_per_hour=price,
        price_source=None if price is None else f"AWS's on-demand price {dated}",
        counted_by=source,
    )


def _facts_of_endpoint(
    aws: Aws, name: str, server: OpenAiServer, served: Served | None, catalog: Catalog
) -> BenchedServer:
    """What serves the requests; of an unknown endpoint only its address."""
    sandbox = aws.scope == SANDBOX
    facts = BenchedServer(
        name=name,
        where="sandbox" if sandbox else "aws",
        base_url=server.base_url,
        model=server.model,
        tensor_parallel_size=1,
        region=aws.region,
        stand_in=stand_in_of(aws, name) if sandbox else None,
    )
    if served is None:
        return facts
    types = {instance.type: instance for instance in catalog.instances.instances}
    instance = types.get(served.instance_type)
    size = served.settings.get("tensor-parallel-size", 1)
    return replace(
        facts,
        pair=served.pair or None,
        vllm=served.vllm,
        gpu=instance.gpu if instance else None,
        gpu_count=instance.gpu_count if instance else None,
        tensor_parallel_size=size if isinstance(size, int) else None,
        instance_type=served.instance_type,
        instance_count=served.instance_count,
    )


class LogCounters:
    """Reads what all instances of the endpoint ``name`` count from now on.

    The first line of each instance may include what it drafted up to 10 s before. A reading waits
    for the statistics, up to 45 s on AWS; the first does not, nor one soon after another, since
    nothing was sent in between. Raises EngineError where there is no such
    endpoint, and AccessDenied where the log may not be read.
    """

    def __init__(self, aws: Aws, name: str, clock: Clock | None = None) -> None:
        live = sagemaker.describe(aws, name)
        if live is None:
            fix = Fix("look at its state", ("peagle", "status", name))
            raise EngineError(f"the endpoint {name} does not exist", fix, code="no-such-endpoint")
        self._instances = max(live.engine_count, 1)
        self._clock = clock or Clock()
        self._reader = StatisticsReader(aws, live, self._clock)
        self._is_amazon = aws.is_amazon
        self._read_at: float | None = None

    def read(self) -> Counters:
        """The counts of all instances together, of everything that was answered until now."""
        if self._read_at is None:
            self._reader.read()
        elif not self._is_amazon or self._clock.now() > self._read_at + _SOON_SECONDS:
            self._reader.wait(self._instances)
        self._read_at = self._clock.now()
        return sum(self._reader.counts.counted.values(), Counters(0, 0, 0))


EndpointCounters = tuple[Callable[[], Counters | None], CounterSource]
"""How to read what an endpoint counts, ``None`` where that is unknown, and from where."""

_NO_COUNTERS: EndpointCounters = (lambda: None, "counters")


def counters_of_endpoint(aws: Aws, name: str, clock: Clock | None = None) -> EndpointCounters:
    """The engine's counters where one instance exposes them, else those in the log; none where that
    may not be read."""
    live = sagemaker.describe(aws, name)
    if live and live.engine_count == 1 and runtime.counters(aws, name) is not None:
        return partial(runtime.counters, aws, name), "counters"
    try:
        logged = LogCounters(aws, name, clock)
        logged.read()
    except (AccessDenied, EngineError):
        return _NO_COUNTERS
    return logged.read, "log"
