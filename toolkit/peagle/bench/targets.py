"""What is measured: an endpoint of SageMaker, an engine of this machine, or a URL, all of which are
servers with OpenAI's protocol; how to ask one, and what it is before a load.

The load of ``peagle bench`` comes from aiperf; asking is for prompts whose answers are read, and
for what must be known first: whether it streams and counts tokens, and how many a word costs.

AWS's own image exposes no counters: the drafts of such an endpoint are counted from vLLM's lines of
statistics in the log of every instance.
"""

from __future__ import annotations

import http
import http.client
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from peagle.aws import runtime, sagemaker
from peagle.aws.client import MAX_TOKEN_SECONDS, Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.bench.result import NO_SPECULATION, BenchedServer, BenchSetting, CounterSource
from peagle.bench.workloads import WORDS, Prompt, random_prompt
from peagle.catalog.schema import Catalog
from peagle.deploy.invoke import WakeUpOptions, wake
from peagle.deploy.proving import StatisticsReader
from peagle.deploy.state import Deployment
from peagle.deploy.status import read_stand_in
from peagle.engine import local
from peagle.engine.gpus import Gpus, catalogue_name, find_gpus
from peagle.engine.local import StepProgress, running_engine
from peagle.engine.logs import crash_fix
from peagle.engine.runner import LocalRunner
from peagle.engine.state import LocalEngine
from peagle.engine_log import capture_size_in
from peagle.errors import (
    EngineError,
    EngineFailed,
    Fix,
    PeagleError,
    UserError,
    parsing,
    to_count,
)
from peagle.fit.building import read_capture_size
from peagle.parallel import ask_parallel
from peagle.planning import Options, make_plan
from peagle.protocol import (
    Counters,
    EventSplitter,
    engine_message,
    follow_up_body,
    parse_counters,
    parse_response,
    request_body,
)
from peagle.text import json_object, sanitize
from peagle.vllm.defaults import inferred_method, method_id
from peagle_serve.contract import SPECULATION
from peagle_serve.middleware import sum_counters

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends one request body and returns the whole answer."""

ANSWER_SECONDS = 600
"""How long one answer may take."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable: the key for a URL."""


class PromptRefused(UserError, code="prompt-refused"):
    """The engine rejects this request: too long for the context, or an invalid field."""


@dataclass(frozen=True)
class RefusedPrompt:
    """The engine rejected the prompt of this line of the file."""

    line: int
    message: str


@dataclass(frozen=True)
class OpenAiServer:
    """A server at ``base_url``, which ends in ``/v1``, that serves ``model``. ``log`` is the
    command that prints its log, ``log_file`` the log of an engine of this machine. ``key`` is a
    bearer token. ``chat``: prompts are sent as chats."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    log: tuple[str, ...] = ()
    chat: bool = True
    log_file: str = ""

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a chat or a completion. Raises as ``exchange``."""
        return parse_response(self.post(body)[1])

    def post(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """Content type and content of the answer to a chat or a completion."""
        route = "chat/completions" if "messages" in body else "completions"
        return self.exchange(route, {"model": self.model, **body})

    @property
    def fix(self) -> Fix:
        """What to do when the server fails: what its crash needs, else where to look."""
        fix = Fix("read its log" if self.log else "look at the server's log", self.log)
        return crash_fix(self.log_file, fix) if self.log_file else fix

    def exchange(self, route: str, body: dict[str, Any] | None = None) -> tuple[str, bytes]:
        """Content type and content of the answer, by the path from the server's root, or by the
        route below the base URL. Raises PromptRefused where this request is rejected, UserError
        where any would be, and EngineError without a whole answer."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            parts = urlsplit(self.base_url)
            path = route if route.startswith("/") else f"{parts.path.rstrip('/')}/{route}"
            secure = parts.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
            with closing(connection):
                content = None if body is None else json.dumps(body)
                connection.request("GET" if body is None else "POST", path, content, headers)
                reply = connection.getresponse()
                status, answer = reply.status, reply.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = f"{self.base_url} does not respond: {sanitize(error) or type(error).__name__}"
            raise EngineError(why, self.fix, "no-answer") from error
        if status == http.HTTPStatus.OK:
            return reply.getheader("Content-Type") or "", answer
        text = answer[: 1 << 16].decode("utf-8", errors="replace")
        message = sanitize(engine_message(text).strip() or f"HTTP {status}", 300)
        if status in (400, 413, 422):
            why = message.partition(" Please reduce ")[0].rstrip(".")
            raise PromptRefused(why, "shorten the prompt or lower max_tokens")
        if status in (401, 403, 404):
            raise UserError(
                f"{self.base_url}/{route} answers {status}: {message}",
                f"check the URL, which ends in /v1, the model, and the key in {KEY_VARIABLE}",
                "server-refuses",
            )
        raise EngineFailed(f"{self.base_url} failed ({status}): {message}", self.fix)


def ask_together(
    ask: Ask, asked: Sequence[tuple[Prompt, dict[str, Any]]], concurrency: int
) -> tuple[list[dict[str, Any]], list[RefusedPrompt]]:
    """The answers to requests, of which ``concurrency`` are sent at a time, and those refused.
    Raises what ``ask`` raises, except PromptRefused, and EngineError (no-answer)."""

    def send(prompt: Prompt, body: dict[str, Any]) -> dict[str, Any] | RefusedPrompt:
        try:
            return ask(body)
        except PromptRefused as error:
            return RefusedPrompt(prompt.line, error.message)

    calls = [partial(send, prompt, body) for prompt, body in asked]
    answers = ask_parallel(calls, ANSWER_SECONDS, concurrency)
    refused = [answer for answer in answers if isinstance(answer, RefusedPrompt)]
    return [answer for answer in answers if not isinstance(answer, RefusedPrompt)], refused


_FEW_WORDS, _MANY_WORDS = 8, 100
_OWN_FORMAT = ("gpt-oss",)
"""In names of models whose chats have a format of their own in vLLM (Harmony), which forbids tokens
after the end: ``ignore_eos`` would be accepted, and the stream end with an error."""


class NoStreaming(UserError, code="no-streaming"):
    """The server sends whole answers, or no token counts: latencies cannot be measured."""


@dataclass(frozen=True)
class Probe:
    """What a server does: the tokens that it counts for its template (``overhead``), for that of a
    further turn, and for a word, and whether it accepts ``ignore_eos``."""

    overhead: float
    per_word: float
    fixed_length: bool
    per_turn: float = 0.0

    def words(self, tokens: int) -> int:
        """The number of words of a prompt of so many tokens; at least 1."""
        return max(1, round((tokens - self.overhead) / self.per_word))

    def added_words(self, tokens: int) -> int:
        """The number of words with which a further turn has so many tokens; at least 2."""
        return max(2, round((tokens - self.per_turn) / self.per_word))


def probe(server: OpenAiServer) -> Probe:
    """Send three short requests. Raises NoStreaming, and what ``OpenAiServer.ask`` raises."""
    fixed_length = not (server.chat and any(name in server.model.lower() for name in _OWN_FORMAT))
    few_words, many_words = (
        request_body(random_prompt(n, random.Random()), chat=server.chat, max_tokens=8, stream=True)
        for n in (_FEW_WORDS, _MANY_WORDS)
    )
    try:
        few = _prompt_tokens(server, few_words, fixed_length)
    except PromptRefused:
        if not fixed_length:
            raise
        fixed_length = False
        few = _prompt_tokens(server, few_words, fixed_length)
    many = _prompt_tokens(server, many_words, fixed_length)
    two_turns = follow_up_body(few_words, f" {WORDS[0]}", WORDS[1])
    turn = _prompt_tokens(server, two_turns, fixed_length) - few
    per_word = max((many - few) / (_MANY_WORDS - _FEW_WORDS), 0.1)
    overhead, per_turn = few - per_word * _FEW_WORDS, turn - 2 * per_word
    return Probe(max(overhead, 0.0), per_word, fixed_length, max(per_turn, 0.0))


def _prompt_tokens(server: OpenAiServer, body: dict[str, Any], fixed_length: bool) -> int:
    """The tokens of the prompt as the server counts them in a stream. Raises as ``probe`` does."""
    kind, content = server.post(body | ({"ignore_eos": True} if fixed_length else {}))
    tokens = None
    if kind.startswith("text/event-stream"):
        for event in EventSplitter().feed(content):
            if event == "[DONE]":
                break
            with parsing("the engine's response", EngineError):
                if usage := parse_response(event).get("usage"):
                    tokens = to_count(usage["prompt_tokens"])
    if tokens is None:
        raise NoStreaming(
            f"{server.base_url} sends no streams with token counts",
            "use a server that supports stream and stream_options.include_usage",
        )
    return tokens


def served_models(server: OpenAiServer) -> list[str]:
    """The models that the server lists. Raises UserError and EngineError."""
    document = parse_response(server.exchange("models")[1])
    with parsing("the list of models", EngineError):
        return [str(model["id"]) for model in document["data"]]


def fetch_counters(server: OpenAiServer) -> Counters | None:
    """The speculation counters in the server's ``/metrics``; ``None`` where vLLM's are not."""
    with suppress(PeagleError):
        page = server.exchange("/metrics")[1].decode("utf-8", "replace")
        return parse_counters(sum_counters(page)) if "vllm:" in page else None
    return None


@dataclass(frozen=True)
class BenchTarget:
    """A server to measure, what is known about it, and how to read its counters, ``None`` where
    unknown. ``counted_by`` is where drafts are counted. ``usd_per_hour`` is of all instances.
    ``max_cudagraph_capture_size`` is the largest batch with a CUDA graph, in tokens."""

    server: OpenAiServer
    facts: BenchedServer
    setting: BenchSetting
    read_counters: Callable[[], Counters | None] = lambda: None
    usd_per_hour: float | None = None
    price_source: str | None = None
    counted_by: CounterSource = "counters"
    max_cudagraph_capture_size: int | None = None

    @property
    def runs_alone(self) -> bool:
        """Whether this is known to be a target without speculation."""
        return self.facts.pair is not None and not self.setting.k


_UNKNOWN = BenchSetting(None, 0, is_known=False)


def open_url(url: str, model: str | None = None, key: str | None = None) -> BenchTarget:
    """The server at a URL, with or without ``/v1``. Without ``model``, it must list one only.
    Raises UserError for an address that is no URL and for several models, and EngineError."""
    server = find_server(url, model, key)
    facts = BenchedServer(url, "url", server.base_url, server.model)
    return BenchTarget(server, facts, _UNKNOWN, partial(fetch_counters, server))


def find_server(url: str, model: str | None, key: str | None) -> OpenAiServer:
    """The server at a URL, with the ``model`` given, else with the only one that it lists. Raises
    what ``open_url`` does."""
    server = OpenAiServer(parse_base_url(url), model or "", key)
    if model is not None:
        return server
    names = served_models(server)
    if len(names) != 1:
        raise UserError(
            f"{server.base_url} serves {len(names)} models: {', '.join(names[:5])}",
            "choose one with --model",
            "model",
        )
    return replace(server, model=names[0])


def parse_base_url(url: str) -> str:
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


def with_gpus(server: BenchedServer, machine: Gpus, catalog: Catalog) -> BenchedServer:
    """The server with these GPUs of this machine, by their name in the catalogue."""
    names = {instance.gpu for instance in catalog.instances.instances}
    gpu, count = machine.gpus[0], len(machine.gpus)
    name = catalogue_name(gpu, names) or gpu.model
    driver, cuda = machine.driver, machine.cuda
    return replace(server, gpu=name, gpu_count=count, driver=driver, cuda=cuda)


def open_engine(engine: LocalEngine, catalog: Catalog) -> BenchTarget:
    """An engine of ``peagle local up``."""
    url, log = engine.openai_base_url, ("peagle", "local", "logs", engine.name)
    server = OpenAiServer(url, engine.served_as, None, log, engine.chat, engine.process.log)
    facts = BenchedServer(
        name=engine.name,
        where="local",
        base_url=server.base_url,
        model=server.model,
        pair=engine.pair,
        vllm=engine.vllm,
    )
    if engine.gpus and (machine := find_gpus()):
        used = tuple(gpu for gpu in machine.gpus if gpu.uuid in engine.gpus)
        facts = replace(facts, tensor_parallel_size=len(used))
        facts = with_gpus(facts, replace(machine, gpus=used), catalog)
    setting = parse_setting(json_object(engine.environment.get(SPECULATION)))
    return BenchTarget(
        server,
        facts,
        setting,
        partial(local.counters, engine.process.port),
        max_cudagraph_capture_size=capture_size_in(Path(engine.process.log)),
    )


@contextmanager
def target_alone(
    engine: LocalEngine, catalog: Catalog, progress: StepProgress = lambda step, line: None
) -> Iterator[BenchTarget]:
    """The target of ``engine`` alone, with the engine's own settings, which runs while the block
    does, on GPUs where the engine does. Raises NotFound for a target that the catalogue does not
    have, and Refused where no GPU is free beside the engine."""
    name = f"{engine.name}-alone"
    options = Options(pair=engine.served_as, name=name, vllm=engine.vllm, speculation=False)
    environment = {k: v for k, v in engine.environment.items() if k != SPECULATION}
    plan = make_plan(options, catalog).model_copy(update={"environment": environment})
    with running_engine(plan, progress, LocalRunner(gpus=bool(engine.gpus))) as started:
        yield open_engine(started, catalog)


def parse_setting(config: dict[str, object]) -> BenchSetting:
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


def open_endpoint(
    aws: Aws,
    name: str,
    record: Deployment | None,
    catalog: Catalog,
    model: str | None = None,
    wake_up: WakeUpOptions | None = None,
) -> BenchTarget:
    """An endpoint, through SageMaker's OpenAI-compatible route; one that scaled to zero is woken
    first, as ``wake_up`` says. ``record`` is ``None`` for an endpoint that ``peagle deploy`` did
    not create; then ``model`` is needed. Raises UserError without a model, and CloudError, NotAwake
    among them."""
    served, plan = (record.current.served, record.current.plan) if record else (None, None)
    if model is None and served is not None:
        model = plan.target.id if plan else str(served.settings.get("served-model-name") or "")
    if not model:
        raise UserError(f"the model that {name} serves is unknown", "name it with --model", "model")
    has_copies = served is not None and served.copies is not None
    if has_copies and (live := sagemaker.describe(aws, name)) is not None:
        wake(aws, live, record, wake_up)
    server = OpenAiServer(
        aws.openai_base_url(name, has_copies),
        model,
        aws.bearer_token(MAX_TOKEN_SECONDS),
        log=("peagle", "logs", name),
    )
    facts = BenchedServer(
        name=name,
        where="sandbox" if aws.in_sandbox else "aws",
        base_url=server.base_url,
        model=server.model,
        tensor_parallel_size=1,
        region=aws.region,
        stand_in=read_stand_in(aws, name) if aws.in_sandbox else None,
    )
    setting, price, dated = _UNKNOWN, None, None
    if served is not None:
        instances = catalog.instances.instances
        instance = next((each for each in instances if each.type == served.instance_type), None)
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
        setting = parse_setting(served.speculative_config) if served.k else NO_SPECULATION
        if served.k and plan and plan.drafter:
            setting = BenchSetting(plan.drafter.name, served.k, setting.imposed_rates)
        if not aws.in_sandbox and served.usd_per_hour is not None:
            price = served.usd_per_hour
            dated = f"AWS's on-demand price on {served.price_date}"
    read, source = _NO_COUNTERS
    if served is None or served.k:
        read, source = read_endpoint_counters(aws, name)
    graphs = read_capture_size(served.settings) if served else None
    return BenchTarget(server, facts, setting, read, price, dated, source, graphs)


EndpointCounters = tuple[Callable[[], Counters | None], CounterSource]
"""How to read what an endpoint counts, ``None`` where that is unknown, and from where."""

_NO_COUNTERS: EndpointCounters = (lambda: None, "counters")


def read_endpoint_counters(aws: Aws, name: str, clock: Clock | None = None) -> EndpointCounters:
    """The engine's counters where one instance exposes them, else those in the log of all instances
    from now on; none where that may not be read. A reading of the log waits for the statistics, up
    to 45 s on AWS; one soon after another does not."""
    live = sagemaker.describe(aws, name)
    if live is None:
        return _NO_COUNTERS
    if live.engine_count == 1 and runtime.counters(aws, name) is not None:
        return partial(runtime.counters, aws, name), "counters"
    time_of = clock or Clock()
    try:
        reader = StatisticsReader(aws, live, time_of)
        reader.read()
    except AccessDenied:
        return _NO_COUNTERS
    instances, read_at = max(live.engine_count, 1), time_of.now()

    def read() -> Counters:
        nonlocal read_at
        # No answer over the network takes less than 0.05 s.
        if not aws.is_amazon or time_of.now() > read_at + 0.05:
            reader.wait(instances)
        read_at = time_of.now()
        return sum(reader.counts.counted.values(), Counters())

    return read, "log"
