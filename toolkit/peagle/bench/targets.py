"""What is measured or proved: an endpoint of SageMaker, an engine of this machine, or a URL.

AWS's own image exposes no counters: the drafts of such an endpoint are counted from vLLM's lines of
statistics in the log of every instance. Engines behind a URL are proved from their own
``/metrics``: a host name with several addresses, as of a headless Service, stands for as many
engines. Behind a load balancer several engines would look like one, and their counters would mix.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from peagle import proof
from peagle.aws import runtime, sagemaker
from peagle.aws.client import MAX_TOKEN_SECONDS, Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.bench.measure import BenchTarget
from peagle.bench.models import NO_SPECULATION, BenchedServer, BenchSetting, CounterSource
from peagle.bench.server import OpenAiServer, PromptRefused, counters_of, served_models, waiting_of
from peagle.catalog.schema import Catalog
from peagle.deploy.invoke import WakeUpOptions, wake
from peagle.deploy.proving import (
    PROOF_SECONDS,
    ProofRequest,
    StatisticsReader,
    request_of_model,
    request_of_plan,
)
from peagle.deploy.state import Deployment, Served
from peagle.deploy.status import stand_in_of
from peagle.engine import local
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, Fix, NotProved, UserError
from peagle.parallel import run_parallel
from peagle.planning.plan import Plan
from peagle.proof import MIN_DRAFTS, Counted, Proof
from peagle.protocol import Counters, parse_piece
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


_PAUSE_SECONDS = 5.0
_ANSWER_SECONDS = 900.0
"""What a round of prompts may take after ``PROOF_SECONDS``."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class UrlProof:
    """What to prove of the engines behind ``url``.

    ``plan`` says prompts and floor; without one the catalogue's target with the model's name says
    the prompts, and any accepted draft passes. ``floor`` and ``min_drafts`` replace the plan's.
    ``instances`` engines must answer within ``wait_seconds``. ``key`` is a bearer token.
    """

    url: str
    model: str | None = None
    key: str | None = None
    plan: Plan | None = None
    floor: float | None = None
    min_drafts: int = MIN_DRAFTS
    instances: int = 1
    wait_seconds: float = 0.0


def prove_url(
    asked: UrlProof, catalog: Catalog, say: Say = lambda line: None, clock: Clock | None = None
) -> Proof:
    """Prove that every engine behind the URL speculates; a proof that fails is returned too.

    Raises UserError for an invalid URL, key or model, EngineError when an engine does not answer,
    and NotProved for fewer engines than asked for, for one without vLLM's counters, for one that
    refuses a prompt, and for a ``floor`` of a plan without speculation.
    """
    clock = clock or Clock()
    engines = _engines(asked, say, clock)
    request = _request(asked, engines, catalog)
    if not request.speculates:
        for engine in engines.values():
            _require_answer(engine, request)
        return Proof(None, 0, (), None, passed=True, instance_count=len(engines))
    return replace(_counted(engines, request, say), floor_source=request.floor_source)


def _request(asked: UrlProof, engines: dict[str, OpenAiServer], catalog: Catalog) -> ProofRequest:
    model = next(iter(engines.values())).model
    request = (
        request_of_plan(asked.plan, asked.url)
        if asked.plan
        else request_of_model(model, asked.url, catalog)
    )
    request = replace(request, min_drafts=asked.min_drafts)
    if asked.floor is None:
        return request
    if not request.speculates:
        raise NotProved(
            "the plan does not speculate, so it has no acceptance length",
            "leave out --floor to prove only that the engine answers",
            code="no-speculation",
        )
    return replace(request, floor=asked.floor, floor_source="option")


def _engines(asked: UrlProof, say: Say, clock: Clock) -> dict[str, OpenAiServer]:
    """The engines by their address, once as many as asked for answer."""
    until = clock.now() + asked.wait_seconds
    while True:
        found: dict[str, OpenAiServer] = {}
        problem: EngineError | None = None
        try:
            for address, url in _addresses(asked.url).items():
                found[address] = _answering(url, asked)
        except EngineError as error:
            problem = error
        if len(found) >= asked.instances and problem is None:
            return found
        if clock.now() >= until:
            break
        say(f"{len(found)} of {asked.instances} engines answer")
        clock.sleep(_PAUSE_SECONDS)
    if problem:
        raise problem
    raise NotProved(
        f"{asked.url} has {len(found)} of {asked.instances} engines",
        "wait for the others with --wait, or lower --instances",
        code="engines-missing",
    )


def _answering(url: str, asked: UrlProof) -> OpenAiServer:
    """The server at an address, which answers and serves the model."""
    server = server_of_url(url, asked.model, asked.key)
    names = served_models(server) if asked.model else (server.model,)
    if server.model not in names:
        raise UserError(
            f"{server.base_url} does not serve {server.model!r}",
            f"it serves {', '.join(names[:5]) or 'nothing'}",
            "model",
        )
    return server


def _addresses(url: str) -> dict[str, str]:
    """A base URL for each address of the host; that of ``url`` itself where there is only one, and
    with HTTPS, whose certificate is of the name."""
    base = base_url_of(url)
    parts = urlsplit(base)
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, parts.port or parts.scheme, type=socket.SOCK_STREAM)
    except OSError as error:
        raise EngineError(
            f"the host of {url} has no address: {error.strerror}",
            "check its name; a headless Service has one once a pod is ready",
            "no-answer",
        ) from error
    families = {family for family, *_ in found}
    chosen = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    ips = sorted({str(address[0]) for family, *_, address in found if family == chosen})
    if len(ips) == 1 or parts.scheme == "https":
        return {parts.netloc: base}
    port = f":{parts.port}" if parts.port else ""
    hosts = {ip: f"[{ip}]" if ":" in ip else ip for ip in ips}
    return {ip: f"http://{name}{port}{parts.path}" for ip, name in hosts.items()}


def _counted(engines: dict[str, OpenAiServer], request: ProofRequest, say: Say) -> Proof:
    """The proof of all engines, at the same time."""
    until = time.monotonic() + PROOF_SECONDS
    several = len(engines) > 1

    def count(address: str, server: OpenAiServer) -> Counted:
        def read() -> Counters:
            counted = counters_of(server)
            if counted is None:
                raise NotProved(
                    f"{server.base_url.removesuffix('/v1')}/metrics has no counters of vLLM",
                    "give the URL of the engine itself, not of a gateway without /metrics",
                    code="no-counters",
                )
            return counted

        return proof.count_drafts(
            read(),
            request.conversations(partial(_ask, server)),
            read,
            request.min_drafts,
            in_time=lambda: time.monotonic() <= until,
            say=lambda line: say(f"{address}: {line}" if several else line),
        )

    calls = [partial(count, address, server) for address, server in engines.items()]
    counts = dict(zip(engines, run_parallel(calls, until + _ANSWER_SECONDS), strict=True))
    if not several:
        (counted,) = counts.values()
        return proof.evaluate(counted.total, request.floor, request.min_drafts, counted.second)
    total = {address: counted.total for address, counted in counts.items()}
    second = {address: one.second for address, one in counts.items() if one.second is not None}
    proved = proof.evaluate_streams(total, request.floor, request.min_drafts, len(total), second)
    return replace(proved, source="counters")


def _require_answer(server: OpenAiServer, request: ProofRequest) -> None:
    if not parse_piece(_ask(server, request.body())).written:
        raise NotProved(f"{server.base_url} returned an empty answer", code="empty-answer")


def _ask(server: OpenAiServer, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return server.ask(body)
    except PromptRefused as error:
        raise proof.prompt_rejected(error.message) from error
