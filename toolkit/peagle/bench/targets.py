"""What ``peagle bench`` measures: an endpoint of SageMaker, an engine of this machine, or a URL.

AWS's own image exposes no counters: the drafts of such an endpoint are counted from vLLM's lines of
statistics in the log of every instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from peagle.aws import runtime, sagemaker
from peagle.aws.client import MAX_TOKEN_SECONDS, Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.bench.measure import BenchTarget
from peagle.bench.models import NO_SPECULATION, BenchedServer, BenchSetting, CounterSource
from peagle.bench.openai_server import OpenAiServer
from peagle.bench.probe import counters_of, served_models, waiting_of
from peagle.catalog.schema import Catalog
from peagle.deploy.proving.statistics import StatisticsReader
from peagle.deploy.served import Served
from peagle.deploy.state import Deployment
from peagle.deploy.status import stand_in_of
from peagle.deploy.wake_up import WakeUpOptions, wake
from peagle.engine import local
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, Fix, UserError
from peagle.protocol import Counters
from peagle.store import SANDBOX
from peagle.text import json_object
from peagle.vllm.defaults import inferred_method, method_id
from peagle_serve.contract import SPECULATION

UNKNOWN = BenchSetting(None, 0, is_known=False)

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
    names = served_models(server)
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
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.username or parts.query or parts.fragment:
        raise UserError(
            f"{url} is not the URL of a server", "such as http://127.0.0.1:8000/v1", "url"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


def target_of_engine(engine: LocalEngine) -> BenchTarget:
    """An engine of ``peagle local up``."""
    server = OpenAiServer(
        engine.openai_base_url,
        engine.served_as,
        log=("peagle", "local", "logs", engine.name),
        chat=engine.chat,
    )
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
    """The setting in vLLM's ``--speculative-config``, with the method as the drafter's name."""
    k = config.get("num_speculative_tokens")
    if not config or not isinstance(k, int):
        return NO_SPECULATION
    rates = config.get("synthetic_acceptance_rates")
    imposed = [rate for rate in rates if type(rate) is float] if isinstance(rates, list) else []
    return BenchSetting(_drafter_of(config), k, tuple(imposed))


def _drafter_of(config: dict[str, object]) -> str:
    """``p-eagle`` for parallel drafting with EAGLE-3, else vLLM's name of the method."""
    method = str(config.get("method") or inferred_method(str(config.get("model") or "")))
    return method_id(method, bool(config.get("parallel_drafting")))


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
    named = model or _model_of(record)
    if named is None:
        raise UserError(f"the model that {name} serves is unknown", "name it with --model", "model")
    live = sagemaker.describe(aws, name) if served and served.copies is not None else None
    if live is not None:
        wake(aws, live, record, wake_up)
    base = aws.openai_base_url(name, name if served and served.copies is not None else "")
    server = OpenAiServer(
        base, named, aws.bearer_token(MAX_TOKEN_SECONDS), log=("peagle", "logs", name)
    )
    speculates = served is None or served.k > 0
    counters = counters_of_endpoint(aws, name) if speculates else NO_COUNTERS
    price = served.usd_per_hour if served and aws.scope != SANDBOX else None
    dated = f"on {served.price_date}" if served and served.price_date else "of the catalogue"
    return BenchTarget(
        server,
        _facts_of_endpoint(aws, name, server, served, catalog),
        _setting_of_endpoint(record),
        counters.read,
        usd_per_hour=price,
        price_source=None if price is None else f"AWS's on-demand price {dated}",
        counted_by=counters.source,
    )


def _model_of(record: Deployment | None) -> str | None:
    """The model's name in requests, where ``deploy`` recorded it."""
    if record is None:
        return None
    if record.current.plan:
        return record.current.plan.target.id
    return str(record.current.served.settings.get("served-model-name") or "") or None


def _facts_of_endpoint(
    aws: Aws, name: str, server: OpenAiServer, served: Served | None, catalog: Catalog
) -> BenchedServer:
    """What serves the requests; of an unknown endpoint only its address."""
    instance = next(
        (one for one in catalog.instances.instances if served and one.type == served.instance_type),
        None,
    )
    sandbox = aws.scope == SANDBOX
    return BenchedServer(
        name=name,
        where="sandbox" if sandbox else "aws",
        base_url=server.base_url,
        model=server.model,
        pair=served.pair or None if served else None,
        vllm=served.vllm if served else None,
        gpu=instance.gpu if instance else None,
        gpu_count=instance.gpu_count if instance else None,
        tensor_parallel_size=_tensor_parallel(served.settings if served else {}),
        instance_type=served.instance_type if served else None,
        instance_count=served.instance_count if served else None,
        region=aws.region,
        stand_in=stand_in_of(aws, name) if sandbox else None,
    )


def _setting_of_endpoint(record: Deployment | None) -> BenchSetting:
    """Drafter and K as deployed; the plan knows the drafter's name in the catalogue."""
    if record is None:
        return UNKNOWN
    served, plan = record.current.served, record.current.plan
    if not served.k:
        return NO_SPECULATION
    setting = setting_of_config(served.speculative_config)
    if plan and plan.drafter:
        return BenchSetting(plan.drafter.name, served.k, setting.imposed_rates)
    return setting


def _tensor_parallel(settings: Mapping[str, object]) -> int | None:
    size = settings.get("tensor-parallel-size", 1)
    return size if isinstance(size, int) else None


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


@dataclass(frozen=True)
class EndpointCounters:
    """How to read what an endpoint counts, ``None`` where that is unknown, and from where."""

    read: Callable[[], Counters | None]
    source: CounterSource


NO_COUNTERS = EndpointCounters(lambda: None, "counters")


def counters_of_endpoint(aws: Aws, name: str, clock: Clock | None = None) -> EndpointCounters:
    """The engine's counters where one instance exposes them, else those in the log; none where that
    may not be read."""
    live = sagemaker.describe(aws, name)
    if live and live.engine_count == 1 and runtime.counters(aws, name) is not None:
        return EndpointCounters(partial(runtime.counters, aws, name), "counters")
    try:
        logged = LogCounters(aws, name, clock)
        logged.read()
    except (AccessDenied, EngineError):
        return NO_COUNTERS
    return EndpointCounters(logged.read, "log")
