"""vLLM's speculation counters through ``/invocations``, the one route that SageMaker offers.

vLLM loads the class by ``--middleware``. A request with the header
``X-Amzn-SageMaker-Custom-Attributes: peagle=counters`` is answered from the server's own
``/metrics``; every other one goes on untouched, so nothing is buffered or slowed down.
"""

from __future__ import annotations

import re
from typing import Any

from serve.attributes import answer, asks_for
from serve.inner import Application, Message, Receive, Send, call

ATTRIBUTE = b"peagle=counters"

_SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"_total(?:\{(?P<labels>.*)\})? (?P<value>\S+)",
    re.MULTILINE,
)
_POSITION = re.compile(r'(?:^|,)position="(\d+)"')


class CountersMiddleware:
    """An ASGI application around vLLM's."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if asks_for(scope, ATTRIBUTE):
            await answer(send, *await self._counters(scope))
        else:
            await self._app(scope, receive, send)

    async def _counters(self, scope: Message) -> tuple[int, dict[str, Any]]:
        """Status and document."""
        status, page = await call(self._app, scope, "GET", "/metrics")
        if status != 200:
            return 502, {"error": f"the engine answered {status} for its metrics"}
        return 200, counters_of(page)


def counters_of(page: str) -> dict[str, Any]:
    """The counters in a page of Prometheus text, summed over engines.

    All are zero without speculation, and ``speculation`` tells that from zero drafts so far.
    """
    totals = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    positions: dict[int, int] = {}
    samples = list(_SAMPLE.finditer(page))
    for sample in samples:
        count = int(float(sample["value"]))
        position = _POSITION.search(sample["labels"] or "")
        if sample["name"] in totals:
            totals[sample["name"]] += count
        elif position:
            place = int(position[1])
            positions[place] = positions.get(place, 0) + count
    return {
        "speculation": bool(samples),
        **totals,
        "accepted_per_position": [positions[place] for place in sorted(positions)],
    }
