"""The sentences of a plan's reasons, by code.

``{usd:usd}`` is a value in one of ``_FORMATS``, or in a format of Python. ``{name:?yes|no}`` is
``yes`` where the value is known and neither false nor 0, else ``no``; both may contain values.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from peagle.planning.plan import Reason
from peagle.planning.weights import (
    HUB_BYTES_PER_SECOND,
    LOAD_BYTES_PER_SECOND,
    MOUNT_BYTES_PER_SECOND,
)
from peagle.text import (
    format_concurrency,
    format_duration,
    format_rate,
    format_requests,
    format_size,
    format_usd,
)

_HOURLY = "{usd_per_hour:?at {usd_per_hour:usd} an hour{instances:for_all}|price unknown}"
_PER_MILLION = "{usd_per_million_tokens:usd} per million output tokens"
_FITS = "{holds_load:? for this load|}{required:?, {meets:?|not }known to meet what is required|}"
_TYPES = f"{{types}} types that fit{_FITS}"
_COST = f"{_TYPES}: {_PER_MILLION}, {_HOURLY}"
_ELSEWHERE = "{other_instance_type:? on {other_instance_count} x {other_instance_type}|}"
_TIMES = (
    "{ttft_seconds:?ttft {ttft_seconds:.3g} s, |}{itl_seconds:?itl {itl_seconds:.3g} s, |}{basis}"
)
_AT_ONCE = (
    "{in_cache:?the KV cache of one holds {requests:requests} of this size|one runs "
    "{requests:requests} at once (--concurrency)}, more would queue"
)
_BREAKS = f"{{slo}} breaks with {{requests:requests}} ({_TIMES})"
_FROM_HUB = f"{{hub_bytes:size}} from the Hub at {format_rate(HUB_BYTES_PER_SECOND)}"
_FROM_S3 = f"{{s3_bytes:size}} from S3 at {format_rate(MOUNT_BYTES_PER_SECOND)}"
_TO_GPU = f"{{loaded_bytes:size}} to the GPU at {format_rate(LOAD_BYTES_PER_SECOND)}"
_COPIES = (
    "{copies_seconds_before:?; the copies are deleted {copies_seconds_before:duration} before|}"
)
_NOT_MEASURED = (
    "not measured: {instance_seconds:duration} for an instance and its image"
    f"{{hub_bytes:?, {_FROM_HUB}|}}"
    f"{{s3_bytes:?, {_FROM_S3}|}}"
    f"{{loaded_bytes:?, {_TO_GPU}|}}"
)

SENTENCES: Mapping[str, str] = {
    # What runs
    "default-region": "neither --region nor AWS_REGION is set",
    "catalogue-vllm": "the catalogue's default, checked {checked}",
    "image-of-aws": "AWS's image of vLLM {vllm} in {region}",
    "ami-for-driver": (
        "the image needs CUDA {cuda}; the default AMI of {family} has an older driver"
    ),
    "ami-not-covered": "AWS's rule for AMIs does not cover {family}",
    "ami-reported": "reported to work on {family}",
    "name-of-pair": "from the pair; --name changes it",
    "commit-on-hub": "{revision} of {location} on the Hub, when planned",
    # The load
    "context-of-target": "the default for {target}, which supports more",
    "context-of-requests": (
        "the tokens of a request{turns:? and {turns} more turns|}{rounded:?, as a power of two|}"
    ),
    "context-at-maximum": "the maximum of {target}",
    "context-too-long": "{tokens:,} tokens do not fit",
    "default-concurrency": (
        "speculation gains most with few concurrent requests; excess requests queue"
    ),
    "default-workload": (
        "single prompts; --workload, --prompt-tokens and --output-tokens change them"
    ),
    "batch-lowest-cost": "the lowest total cost of the batch, {usd:usd}",
    "batch-fastest": "the fastest; the batch is not done in time",
    # Instances
    "largest-instance": "the largest in the catalogue, since none fits",
    "nearest-instance": f"the nearest to what is required, {_HOURLY}",
    "only-instance": f"the only type that fits{_FITS}; {_HOURLY}",
    "cheapest-instance": f"the cheapest of {_TYPES}; {_HOURLY}",
    "lowest-cost": f"the lowest cost of {_COST}",
    "about-lowest-cost": (
        f"about the lowest cost of {_COST}; costs within {{tie_percent}} % count as equal, and it "
        "has the lowest price per hour"
    ),
    "one-gpu": "the instance has one GPU",
    "least-missing-memory": "needs the least additional memory",
    "fastest-gpus": "the fastest on up to {gpus} GPUs ({basis})",
    "fewest-gpus": (
        "the fewest of the {gpus} GPUs that hold the load and divide the attention heads"
    ),
    "one-serves": "one instance serves the load",
    "done-in-time": "fewer do not finish in time",
    "bound-of-scaling": "the bound of --min-instances and --max-instances",
    "cache-of-one": "the KV cache of one is enough for {requests:requests} of this load",
    "fewer-too-slow": (
        "fewer are too slow; together they reach "
        "{tokens_per_second:?{tokens_per_second:,.0f} tokens/s, {basis}|an unknown speed}"
    ),
    "copies-share-gpus": (
        "with {gpus_each:gpus} each they use {used} of the {gpus} GPUs"
        f"{{usd_per_million_tokens:?, at {_PER_MILLION}|}}"
    ),
    # Speculation
    "drafter-of-target": "the catalogue's default for {target}{use:?, for {use}|}",
    "drafter-for-length": "{shorter} is for shorter contexts or requests",
    "no-head": "no EAGLE-3 or P-EAGLE head is known for {target}",
    "cost-with-drafter": (
        f"{_PER_MILLION} with it, {{other_usd_per_million_tokens:usd}} without{_ELSEWHERE}"
    ),
    "cost-without-drafter": (
        f"{_PER_MILLION} without, {{other_usd_per_million_tokens:usd}} with {{other_drafter}}"
        f"{_ELSEWHERE}"
    ),
    "speed-with-drafter": (
        "{tokens_per_second:,.0f} tokens/s with it, {other_tokens_per_second:,.0f} without, on the "
        "same GPUs"
    ),
    "speed-without-drafter": (
        "{tokens_per_second:,.0f} tokens/s without, {other_tokens_per_second:,.0f} with "
        "{other_drafter}, on the same GPUs"
    ),
    "drafter-unknown": "the speed with {drafter} is unknown here; --drafter {drafter} plans it",
    "drafter-too-large": "the drafter does not fit in addition to the target",
    "speed-unknown": "its speed here is unknown",
    "best-in-verdict": (
        "the verdict {file}: best with {requests:concurrency} of {prompt_tokens:,} + "
        "{output_tokens:,} tokens"
        "{tokens_per_second:?, {tokens_per_second:,.0f} tokens/s {basis}|}"
    ),
    "fastest-k": (
        "the fastest ({basis}): {tokens_per_second:,.0f} tokens/s with {requests:concurrency}"
        "{others:by_k}"
    ),
    "smallest-k-as-fast": (
        "the smallest that is as fast ({basis}): {tokens_per_second:,.0f} tokens/s with "
        "{requests:concurrency}{others:by_k}"
    ),
    "k-of-own-head": "recommended for {source}",
    "k-without-card": "the model card of your head is unknown; recommended for {source}",
    "k-of-drafter": "recommended for {drafter} ({source})",
    # The engine
    "catalogue-setting": "{because}",
    "crash-exits": (
        "a crashed engine must exit instead of restarting until the health check times out"
    ),
    "downloads-to-nvme": (
        "downloads go to the instance's NVMe; the root disk may be too small for them"
    ),
    "isolated-downloads": (
        "network_isolation: a download fails at once instead of after many attempts"
    ),
    "isolated-vocabulary": "network_isolation: {file} comes from next to the weights",
    "weights-by-stream": "weights_by stream: the engine reads weights from S3",
    "streams-in-region": "the engine reads from S3 in the endpoint's region",
    "streamer-buffer": (
        "bytes between S3 and a GPU: a quarter of the host's memory{several:? for all GPUs|}"
    ),
    "cuda-graphs-of-load": (
        "a step of {requests:requests}{turn:?, of which one begins a turn,|} has more tokens than "
        "vLLM's CUDA graphs by default, and is faster with one"
    ),
    # Its start
    "copied-from-s3": f"{_FROM_S3}, and a minute",
    "not-copied": "SageMaker copies no weights",
    "time-to-start": (
        f"{{hub_bytes:?{_FROM_HUB}, |}}"
        f"{{s3_bytes:?{_FROM_S3}|}}{{readers:? ({{readers}} GPUs read all)|}}{{s3_bytes:?, |}}"
        f"{{loaded_bytes:?{_TO_GPU}, |}}and {{engine_seconds:duration}} to compile"
    ),
    "start-as-measured": (
        "{measured_seconds:duration} for a {warm:?warm|cold} start, as measured with {target}, "
        "dummy weights and vLLM {vllm} on an {device} ({file}); "
        f"{_NOT_MEASURED}"
    ),
    "start-not-measured": f"{_NOT_MEASURED}, {{engine_seconds:duration}} for the engine's start",
    # Its operation
    "rollout-bakes": (
        "updates bake {seconds:duration} after each {copies:?batch; an alarm, on all copies "
        "together,|step; an alarm} undoes them"
    ),
    "none-queues": f"{_AT_ONCE}; --slo plans for response times instead",
    "objective-unknown": f"{_AT_ONCE}; whether {{slo}} holds is unknown",
    "objective-holds": f"{{slo}} holds with {{requests:requests}} ({_TIMES}); {_AT_ONCE}",
    "objective-breaks": (
        f"{_BREAKS}{{holds_with:?; with {{holds_with}} it holds|: more instances do not help}}"
    ),
    "cooldown-of-aws": "AWS's own; a start takes less",
    "cooldown-of-start": "starting another {unit} takes about this long (start_time)",
    "end-by-ttl": f"EventBridge Scheduler deletes the endpoint then{_COPIES}",
    "end-by-budget": (
        "{ttl_seconds:?the earlier of --ttl and --budget: |}{budget_usd:usd} at {usd_per_hour:usd} "
        "per hour, with the most instances, last {seconds:duration} from the deploy; what runs "
        f"more meanwhile is not counted{_COPIES}"
    ),
    "log-without-end": "a log without retention is kept, and paid for, for ever",
}


def reason_text(reason: Reason) -> str:
    """The sentence of a reason; its code where a later version made the plan."""
    sentence = SENTENCES.get(reason.code)
    return reason.code if sentence is None else _SENTENCE.vformat(sentence, (), reason.values)


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "by_k": lambda speeds: "".join(f", {speed:,.0f} with K={k}" for k, speed in speeds.items()),
    "concurrency": format_concurrency,
    "duration": format_duration,
    "for_all": lambda count: f" for {count}" if count > 1 else "",
    "gpus": lambda count: f"{count} GPU{'' if count == 1 else 's'}",
    "requests": format_requests,
    "size": format_size,
    "usd": format_usd,
}


class _Sentence(string.Formatter):
    """A template of ``SENTENCES``; an unknown value is empty."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("?"):
            text, _, otherwise = format_spec[1:].partition("|")
            return text if value else otherwise
        if value is None:
            return ""
        form = _FORMATS.get(format_spec)
        return form(value) if form else format(value, format_spec)


_SENTENCE = _Sentence()
