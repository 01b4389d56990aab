"""Prove that the engines behind a URL speculate, from their own ``/metrics``.

A host name with several addresses, as of a headless Service, stands for as many engines. Behind a
load balancer several engines would look like one, and their counters would mix.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from peagle import proof
from peagle.aws.client import Clock
from peagle.bench.targets import (
    OpenAiServer,
    PromptRefused,
    fetch_counters,
    find_server,
    parse_base_url,
    served_models,
)
from peagle.catalog.schema import Catalog
from peagle.deploy import proving
from peagle.deploy.proving import ProofRequest, Say
from peagle.errors import EngineError, NotProved
from peagle.parallel import ask_parallel
from peagle.planning.plan import Plan
from peagle.proof import MIN_DRAFTS, Counted, Proof
from peagle.protocol import Counters, parse_piece


def prove_url(
    url: str,
    catalog: Catalog,
    *,
    model: str | None = None,
    key: str | None = None,
    plan: Plan | None = None,
    floor: float | None = None,
    min_drafts: int = MIN_DRAFTS,
    instances: int = 1,
    wait_seconds: float = 0.0,
    say: Say = lambda line: None,
    clock: Clock | None = None,
) -> Proof:
    """Prove that every engine behind the URL speculates; a proof that fails is returned too.
    ``plan`` says prompts and floor; without one the catalogue's target with the model's name says
    the prompts. ``instances`` engines must answer within ``wait_seconds``. ``key`` is a bearer
    token. Raises UserError for an invalid URL, key or model, EngineError, and NotProved for what
    cannot be proved."""
    clock = clock or Clock()
    until = clock.now() + wait_seconds
    while True:
        engines: dict[str, OpenAiServer] = {}
        problem: EngineError | None = None
        try:
            for address, base_url in _addresses(url).items():
                server = find_server(base_url, model, key)
                if model:
                    served_models(server)  # raises EngineError unless it answers
                engines[address] = server
        except EngineError as error:
            problem = error
        if len(engines) >= instances and problem is None:
            break
        if clock.now() >= until:
            raise problem or NotProved(
                f"{url} has {len(engines)} of {instances} engines",
                "wait for the others with --wait, or lower --instances",
                code="engines-missing",
            )
        say(f"{len(engines)} of {instances} engines answer")
        clock.sleep(5.0)
    if plan:
        request = proving.make_plan_request(plan, url)
    else:
        request = proving.make_model_request(next(iter(engines.values())).model, url, catalog)
    request = replace(request, min_drafts=min_drafts)
    if not request.speculates:
        for engine in engines.values():
            if not parse_piece(_ask(engine, request.body())).written:
                raise NotProved(f"{engine.base_url} returned an empty answer", code="empty-answer")
        return Proof(None, 0, (), None, passed=True, instance_count=len(engines))
    if floor is not None:
        request = replace(request, floor=floor, floor_source="option")
    return replace(_counted(engines, request, say), floor_source=request.floor_source)


def _addresses(url: str) -> dict[str, str]:
    """A base URL for each address of the host; that of ``url`` itself where there is only one, and
    with HTTPS, whose certificate is of the name."""
    base = parse_base_url(url)
    parts = urlsplit(base)
    try:
        resolved = socket.getaddrinfo(
            parts.hostname or "", parts.port or parts.scheme, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise EngineError(
            f"the host of {url} has no address: {error.strerror}",
            "check its name; a headless Service has one once a pod is ready",
            "no-answer",
        ) from error
    families = {family for family, *_ in resolved}
    chosen = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    ips = sorted({str(address[0]) for family, *_, address in resolved if family == chosen})
    if len(ips) == 1 or parts.scheme == "https":
        return {parts.netloc: base}
    port = f":{parts.port}" if parts.port else ""
    hosts = {ip: f"[{ip}]" if ":" in ip else ip for ip in ips}
    return {ip: f"http://{name}{port}{parts.path}" for ip, name in hosts.items()}


def _counted(engines: dict[str, OpenAiServer], request: ProofRequest, say: Say) -> Proof:
    """The proof of all engines, at the same time."""
    until = time.monotonic() + proving.PROOF_SECONDS
    several = len(engines) > 1

    def count(address: str, server: OpenAiServer) -> Counted:
        def read() -> Counters:
            counted = fetch_counters(server)
            if counted is None:
                raise NotProved(
                    f"{server.base_url.removesuffix('/v1')}/metrics has no counters of vLLM",
                    "give the URL of the engine itself, not of a gateway without /metrics",
                    code="no-counters",
                )
            return counted

        return proof.count_drafts(
            read(),
            request.turns(partial(_ask, server)),
            read,
            request.min_drafts,
            in_time=lambda: time.monotonic() <= until,
            say=lambda line: say(f"{address}: {line}" if several else line),
        )

    calls = [partial(count, address, server) for address, server in engines.items()]
    # A round of two turns may begin just before ``until``.
    counts = ask_parallel(calls, proving.PROOF_SECONDS + 2 * proof.TURN_SECONDS)
    counted = dict(zip(engines if several else [None], counts, strict=True))
    return proof.evaluate(counted, request.floor, request.min_drafts, len(engines))


def _ask(server: OpenAiServer, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return server.ask(body)
    except PromptRefused as error:
        raise proof.prompt_rejected(error.message) from error
