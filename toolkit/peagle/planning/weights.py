"""Where weights come from, where the container finds them, what SageMaker mounts, and how long a
start takes that reads them.

hub         the engine downloads them; nothing is mounted
directory   uploaded below s3://<bucket>/peagle-toolkit/<endpoint>.<hash of the files>/, and that
            prefix is mounted as /opt/ml/model, with the folders target/ and drafter/
s3://...    mounted as /opt/ml/model if it is the only prefix. Folders target/ and drafter/ of one
            prefix, the layout of `peagle weights sync`, are mounted as that one prefix. Otherwise
            /opt/ml/model for the target and /opt/ml/additional-model-data-sources/drafter for the
            drafter
streamed    the engine reads target and drafter from s3://... with the Run:ai model streamer, and
            copies config.json and tokenizer to its cache first; nothing is mounted. Verified with
            vLLM 0.28.0 (tests/engine/test_streamer_vllm.py). The target must be in S3; a drafter
            from the Hub is downloaded, and a drafter in a directory is uploaded and mounted
baked       the image contains them below its PEAGLE_ML_ROOT, and the Hub's in its cache. Paths are
            those of other weights, since the entrypoint finds both; nothing is mounted
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import EngineStart, Instance
from peagle.checkpoints.models import is_folder
from peagle.checks.facts import parse_ecr_image
from peagle.data import CATALOG_PREFIX, data_folder
from peagle.errors import Fix, OptionMissing, UserError
from peagle.findings import error, note, warning
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.load import Load
from peagle.planning.plan import MODEL_BUCKET, Decisions, Mount, Pins, Plan, Reason, Weights, reason
from peagle.planning.speculation import SelectedPair
from peagle.s3uri import PREFIX_FORMAT, S3Uri
from peagle.text import format_duration, format_size
from peagle_serve.contract import (
    ADDITIONAL,
    ANY,
    ML_ROOT,
    MODEL_FOLDER,
    SHA256,
    WARM_PINS_VARIABLE,
    WEIGHTS_PIN_VARIABLE,
    InvalidEnvironment,
    is_s3_uri,
    read_pins,
)

WeightSizes = Sequence[tuple[Weights, int]]
"""The weights of target and drafter with their bytes."""

LOADER = "runai_streamer"
"""vLLM's ``--load-format`` that reads ``s3://`` addresses."""

DRAFTER_CHANNEL = "drafter"
DRAFTER_FOLDER = f"{ML_ROOT}/{ADDITIONAL}/{DRAFTER_CHANNEL}"

UPLOAD_FOLDER = "peagle-toolkit/"
"""Prefix of uploaded weights in a bucket; one folder per endpoint and its weights is below it."""

PIN_VARIABLES = (WARM_PINS_VARIABLE, WEIGHTS_PIN_VARIABLE)

MAX_ARCHIVES = 15
"""How many SHA-256s fit into one of SageMaker's environment variables (1,024 characters)."""

SHORTEST, LONGEST = 60, 3600
"""SageMaker's bounds of both timeouts of a start in seconds, from its service model."""

ENGINE_START_SECONDS = 600
"""For compilation, profiling and graph capture of a first start: four times the 147 s measured on
an H200 with a 20B target."""

INSTANCE_SECONDS = 300
"""For an instance and its image. AWS says "several minutes"; nothing was measured there."""

MOUNT_BYTES_PER_SECOND = 100_000_000
HUB_BYTES_PER_SECOND = 50_000_000
LOAD_BYTES_PER_SECOND = 200_000_000
"""Slow cases of S3 to instance, Hugging Face to instance, and disk to GPU."""

_BUFFER_SHARE = 4
"""The buffers of all GPUs together take this part of the host's memory: enough for any tensor, and
enough left for engine and system on the smallest hosts."""


class WeightBytes(NamedTuple):
    """The bytes that the engine downloads from the Hub, that SageMaker copies from S3, that the
    engine streams from S3, and that it loads from its disk to the GPUs."""

    hub: int
    mounted: int
    streamed: int
    loaded: int


def bytes_by_way(sizes: WeightSizes, gpus: int = 1) -> WeightBytes:
    """How the weights reach the GPUs: each of the ``gpus`` that share a model streams all of it."""
    hub = sum(size for weights, size in sizes if weights.kind == "hub")
    streamed = sum(size for weights, size in sizes if weights.streamed)
    from_s3 = sum(size for weights, size in sizes if weights.kind in ("s3", "directory"))
    loaded = sum(size for _, size in sizes) - streamed
    return WeightBytes(hub, from_s3 - streamed, streamed * gpus, loaded)


PlacedWeights = tuple[Weights, Weights | None]
"""The weights of target and drafter."""


def mount_weights(target: Weights, drafter: Weights | None) -> tuple[Mount, ...]:
    """The S3 prefixes that SageMaker mounts for them."""
    uris: dict[str | None, str] = {}
    for weights, folder in ((target, "target"), (drafter, "drafter")):
        if weights is None or weights.kind in ("hub", "image") or weights.streamed:
            continue
        uri = weights.s3_uri or weights.location
        if weights.engine_path == DRAFTER_FOLDER:
            uris[DRAFTER_CHANNEL] = uri
        elif weights.kind == "s3" and weights.engine_path == MODEL_FOLDER:
            uris[None] = uri
        else:
            uris[None] = uri.removesuffix(f"{folder}/")
    return tuple(Mount(channel=channel, s3_uri=uri) for channel, uri in uris.items())


def place_weights(
    options: Options, catalog: Catalog, pair: SelectedPair, name: str, decisions: Decisions
) -> PlacedWeights:
    """Source and path of all weights. Raises UserError for an invalid S3 URI, and for weights that
    are not where the options say."""
    target, head = _find_weights(options, catalog, pair, name)
    if options.baked_weights:
        return _in_image(options, catalog, target, head)
    if pair.target.gated and target.kind == "hub":
        message = f"{pair.target.id} is gated; the engine cannot download it without a token"
        fix = (
            "copy it to your bucket and use --model-source s3://...; a token in the endpoint's "
            "environment would be readable with DescribeModel"
        )
        decisions.findings.append(warning("target-is-gated", "target", message, fix))
    for part, weights in (("target", target), ("drafter", head)):
        if weights is None:
            continue
        if weights.kind == "hub" and weights.revision in (None, "main"):
            where = weights.location
            message = f"{where} is not pinned to a commit; a restart may serve other weights"
            fix = "to pin it, copy it to your bucket and use --model-source s3://..."
            fix = f"to pin it, use --drafter {where}@COMMIT" if part == "drafter" else fix
            decisions.findings.append(note("revision-not-pinned", part, message, fix))
    if options.weights_by == "stream":
        return _streamed(options, target, head)
    return _mounted(target, head)


def _find_weights(
    options: Options, catalog: Catalog, pair: SelectedPair, name: str
) -> PlacedWeights:
    """Where target and drafter are; folders are uploaded to the bucket's folder of the endpoint,
    which is mounted."""
    origin, drafter = catalog.origins.get(pair.target.id), pair.drafter
    source = options.model_source
    if source is not None and not is_s3_uri(source):
        raise UserError(
            f"--model-source {source!r} is not an s3:// prefix",
            "use the form s3://bucket/folder/",
            code="invalid-s3-uri",
        )
    if source is not None:
        target = _weights_at(source, None)
    else:
        target = _weights_at(pair.target.weights, pair.target.revision, origin)
    head = None
    if drafter is not None and pair.own_head is not None:
        head = _weights_at(pair.own_head, drafter.revision)
    elif drafter is not None and drafter.weights is not None:
        head = _weights_at(drafter.weights, drafter.revision, origin)
    return _uploaded(target, name, "target"), head and _uploaded(head, name, "drafter")


def _uploaded(weights: Weights, name: str, folder: str) -> Weights:
    if weights.kind != "directory":
        return weights
    uri, path = f"{upload_prefix(name)}{folder}/", f"{MODEL_FOLDER}/{folder}"
    return weights.model_copy(update={"s3_uri": uri, "engine_path": path})


def _streamed(options: Options, target: Weights, head: Weights | None) -> PlacedWeights:
    """Both as the engine reads them from S3. Raises UserError for a target elsewhere."""
    if target.kind != "s3":
        where = "on the Hub" if target.kind == "hub" else "in a folder"
        command = ("peagle", "weights", "sync", options.pair, "s3://BUCKET/PREFIX")
        raise UserError(
            f"weights_by stream needs the target in S3; it is {where} ({target.location})",
            Fix("copy it there, and add --model-source s3://BUCKET/PREFIX/target/", command),
            code="weights-not-in-s3",
        )
    if head is not None and head.kind == "s3":
        head = _at(head, head.location)
    return _at(target, target.location), head


def _mounted(target: Weights, head: Weights | None) -> PlacedWeights:
    """Both as SageMaker mounts what is in S3: as one prefix only with the names of its folders,
    since another parent folder may contain unrelated files."""
    if head is None:
        return target, None
    parent, kinds = target.location.removesuffix("target/"), {target.kind, head.kind}
    both = target.location.endswith("/target/") and head.location == f"{parent}drafter/"
    if kinds == {"s3"} and both:
        return _at(target, f"{MODEL_FOLDER}/target"), _at(head, f"{MODEL_FOLDER}/drafter")
    if {"s3"} <= kinds <= {"s3", "directory"}:
        head = _at(head, DRAFTER_FOLDER)  # the model folder takes one of two prefixes
    return target, head


def placed_sizes(options: Options, pair: SelectedPair, load: Load) -> WeightSizes:
    """The weights of a pair with their bytes; where they are does not depend on the endpoint."""
    target, head = place_weights(options, load.catalog, pair, "", Decisions())
    sizes = [(target, load.target.weight_bytes)]
    return [*sizes, (head, load.drafter_bytes(pair.drafter))] if head else sizes


def _at(weights: Weights, engine_path: str) -> Weights:
    return weights.model_copy(update={"engine_path": engine_path})


def _in_image(
    options: Options, catalog: Catalog, target: Weights, drafter: Weights | None
) -> PlacedWeights:
    """Both as baked into the image. Raises UserError if the image cannot contain them."""
    image = parse_ecr_image(options.image or "")
    if options.image is None or (image and image.account in catalog.runtimes.accounts.values()):
        raise OptionMissing(
            "--baked-weights requires --image with an image of your own",
            Fix(
                "add --image URI; to build one",
                ("peagle", "image", "build", options.pair, "--bake-weights", "--push"),
            ),
        )
    for weights in (target, drafter):
        if weights is not None and weights.kind == "s3":
            raise UserError(
                f"weights in S3 are mounted, not baked into an image: {weights.location}",
                "leave out --baked-weights or the s3:// URI",
                code="weights-in-s3",
            )
    baked = {"kind": "image", "s3_uri": None}
    return target.model_copy(update=baked), drafter and drafter.model_copy(update=baked)


def _weights_at(location: str, revision: str | None, origin: str | None = None) -> Weights:
    """Weights in S3, in a folder, or on the Hub; of those that a file of the catalogue names, which
    is the ``origin``, ``./folder`` is next to that."""
    if is_s3_uri(location):
        try:
            uri = S3Uri.mountable(location).uri
        except ValueError as error:
            raise UserError(str(error), PREFIX_FORMAT, code="invalid-s3-uri") from error
        return Weights(kind="s3", location=uri, engine_path=MODEL_FOLDER)
    if origin is not None and location.startswith("."):
        folder, shipped = Path(origin).absolute().parent / location, data_folder("model_catalog")
        location = str(folder)
        if folder.is_relative_to(shipped):
            location = f"{CATALOG_PREFIX}{folder.relative_to(shipped).as_posix()}"
        return Weights(kind="directory", location=location, engine_path=location)
    if is_folder(location):
        return Weights(kind="directory", location=location, engine_path=location)
    return Weights(kind="hub", location=location, revision=revision, engine_path=location)


def streamer_variables(
    plan: Plan, options: Options, pair: SelectedPair, candidate: Candidate, decisions: Decisions
) -> dict[str, str]:
    """The streamer's variables and findings; empty for weights that are not streamed."""
    region, sizes = plan.region, placed_sizes(options, pair, candidate.load)
    streamed = [(weights, size) for weights, size in sizes if weights.streamed]
    if not streamed:
        return {}
    gpus, findings = candidate.gpus, decisions.findings
    buffer = candidate.instance.memory_gib * 2**30 // _BUFFER_SHARE // gpus
    reasons = (
        reason("AWS_DEFAULT_REGION", region, "streams-in-region"),
        reason("RUNAI_STREAMER_MEMORY_LIMIT", buffer, "streamer-buffer", several=gpus > 1),
    )
    runtimes = candidate.load.catalog.runtimes.runtimes
    if not any(each.streamer for each in runtimes if each.vllm == plan.runtime.vllm):
        message = (
            f"the image with vLLM {plan.runtime.vllm} is not known to contain the Run:ai model "
            "streamer, which reads weights from S3"
        )
        fix = "leave --vllm out, or weights_by stream, so that SageMaker mounts the weights"
        findings.append(error("runtime-without-streamer", "weights_by", message, fix))
    locations = [weights.location for weights, _ in streamed]
    total = format_size(sum(size for _, size in streamed))
    each = f", once for each of {gpus} GPUs" if gpus > 1 else ""
    message = (
        f"the engine reads {total} from {' and '.join(locations)} at every start{each}, with the "
        "permissions of the execution role; warm starts need mounted weights"
    )
    buckets = dict.fromkeys(location.split("/")[2] for location in locations)
    permissions = (
        f"the role needs s3:ListBucket and s3:GetObject on {' and '.join(buckets)}, in {region}; "
        "see infra/iam/execution-role-policy.json"
    )
    findings.append(note("weights-streamed", "weights_by", message, permissions))
    decisions.reasons += reasons
    return {because.what: because.value for because in reasons}


def choose_timeouts(
    options: Options, sizes: WeightSizes, gpus: int, decisions: Decisions
) -> tuple[int, int]:
    """ModelDataDownloadTimeoutInSeconds, for the weights that SageMaker copies from S3, and
    ContainerStartupHealthCheckTimeoutInSeconds: download from the Hub, load, compile."""
    size = bytes_by_way(sizes, gpus)
    copying = _whole_minutes(size.mounted / MOUNT_BYTES_PER_SECOND + SHORTEST)
    starting = _whole_minutes(
        size.hub / HUB_BYTES_PER_SECOND
        + size.streamed / MOUNT_BYTES_PER_SECOND
        + size.loaded / LOAD_BYTES_PER_SECOND
        + ENGINE_START_SECONDS
    )
    code = "copied-from-s3" if size.mounted else "not-copied"
    shown = min(copying, LONGEST)
    copied = reason("download_timeout_seconds", shown, code, s3_bytes=size.mounted)
    started = reason(
        "startup_timeout_seconds",
        min(starting, LONGEST),
        "time-to-start",
        hub_bytes=size.hub,
        s3_bytes=size.streamed,
        readers=gpus if size.streamed and gpus > 1 else None,
        loaded_bytes=size.loaded,
        engine_seconds=ENGINE_START_SECONDS,
    )
    return (
        _timeout(options.download_timeout, copying, copied, decisions),
        _timeout(options.startup_timeout, starting, started, decisions),
    )


def _whole_minutes(seconds: float) -> int:
    return max(math.ceil(seconds / 60) * 60, SHORTEST)


def _timeout(asked: int | None, seconds: int, because: Reason, decisions: Decisions) -> int:
    """The user's timeout, else the needed one, at most SageMaker's longest."""
    if seconds > LONGEST:
        message = f"a slow case takes {format_duration(seconds)}; SageMaker waits at most "
        message += format_duration(LONGEST)
        fix = (
            "choose a smaller target, let SageMaker mount weights in S3 (--model-source), whose "
            "copy does not count as startup, or use weights_by stream"
        )
        decisions.findings.append(warning("timeout-at-maximum", because.what, message, fix))
    if asked is not None:
        return asked
    decisions.reasons.append(because)
    return min(seconds, LONGEST)


def start_time(
    options: Options,
    sizes: WeightSizes,
    gpus: int,
    load: Load,
    instance: Instance,
    decisions: Decisions,
) -> int:
    """The seconds until a new instance answers, in whole minutes: it is found and pulls the image,
    the weights arrive and are loaded, and the engine starts, which alone is measured. With a pinned
    archive of compiled code the start is warm. ``gpus`` are those of an engine."""
    pins = choose_pins(options)
    kinds = ("restored", "kept") if pins.warm or pins.any_warm else ("cold",)

    def nearness(start: EngineStart) -> tuple[bool, bool, bool, float]:
        on_gpu = f" {instance.gpu} " in f" {start.device} "
        of_target = start.target == load.target.short_name
        return start.kind == kinds[0], on_gpu, of_target, start.seconds

    # Of those that are equally near, the slowest.
    of_kind = (start for start in load.catalog.runtimes.starts if start.kind in kinds)
    measured = max(of_kind, key=nearness, default=None)
    size = bytes_by_way(sizes, gpus)
    from_s3 = size.streamed + size.mounted
    engine = measured.seconds if measured else ENGINE_START_SECONDS
    transfer = (
        size.hub / HUB_BYTES_PER_SECOND
        + from_s3 / MOUNT_BYTES_PER_SECOND
        + size.loaded / LOAD_BYTES_PER_SECOND
    )
    minutes = math.ceil((engine + INSTANCE_SECONDS + transfer) / 60)
    code = "start-as-measured" if measured else "start-not-measured"
    decisions.explain(
        "start_time",
        f"about {minutes} min",
        code,
        measured_seconds=measured.seconds if measured else None,
        warm=kinds != ("cold",),
        target=measured.target if measured else None,
        vllm=measured.vllm if measured else None,
        device=measured.device if measured else None,
        file=measured.file if measured else None,
        instance_seconds=INSTANCE_SECONDS,
        hub_bytes=size.hub,
        s3_bytes=from_s3,
        loaded_bytes=size.loaded,
        engine_seconds=None if measured else ENGINE_START_SECONDS,
    )
    return minutes * 60


def choose_pins(options: Options) -> Pins:
    """The pins that the user sets. Raises UserError for an invalid SHA-256, and for too many."""
    digests = tuple(dict.fromkeys(text.strip().lower() for text in options.warm_sha256))
    invalid = [digest for digest in digests if not SHA256.fullmatch(digest)]
    if invalid or len(digests) > MAX_ARCHIVES:
        raise UserError(
            f"warm_sha256 has {len(digests)} values, of which {len(invalid)} are no SHA-256",
            f"use up to {MAX_ARCHIVES} of the 64 digits that were printed when it was collected",
            code="invalid-pin",
        )
    return Pins(warm=digests, any_warm=options.allow_unpinned_warm)


def pin_variables(pins: Pins) -> dict[str, str]:
    """The container's variables for these pins."""
    warm = ANY if pins.any_warm else ",".join(pins.warm)
    variables = {WARM_PINS_VARIABLE: warm, WEIGHTS_PIN_VARIABLE: pins.weights or ""}
    return {name: value for name, value in variables.items() if value}


def parse_pins(environment: Mapping[str, str]) -> Pins:
    """The pins in a container's variables, without invalid ones."""
    weights = environment.get(WEIGHTS_PIN_VARIABLE, "")
    try:
        warm = read_pins(environment)
    except InvalidEnvironment:
        warm = frozenset()
    return Pins(
        weights=weights if SHA256.fullmatch(weights) else None,
        warm=tuple(sorted(warm - {ANY})),
        any_warm=ANY in warm,
    )


def with_pins(plan: Plan, pins: Pins) -> Plan:
    """The plan with these pins in place of its own."""
    others = {name: text for name, text in plan.environment.items() if name not in PIN_VARIABLES}
    environment = dict(sorted((others | pin_variables(pins)).items()))
    return plan.model_copy(update={"pins": pins, "environment": environment})


def upload_prefix(name: str) -> str:
    """Where directories of the endpoint ``name`` are uploaded: an ``s3://`` prefix."""
    return str(S3Uri(MODEL_BUCKET, f"{UPLOAD_FOLDER}{name}/"))


def local_weights(plan: Plan) -> tuple[Weights, ...]:
    """The plan's weights in folders of this machine, which are uploaded."""
    return tuple(part for part in plan.weights.values() if part.kind == "directory")


def portable_pair(pair: str) -> str:
    """The pair with the name of a head's folder in place of its path, which differs between
    machines."""
    target, plus, drafter = pair.partition("+")
    return f"{target}{plus}{PurePath(drafter).name if drafter.startswith('/') else drafter}"


def with_contents(plan: Plan, contents: str) -> Plan:
    """The plan with the hash of its folders in their destination in S3, and so in the model's
    identity in every format: other weights are another model, and those that serve stay."""
    old = upload_prefix(plan.name)
    new = f"{old.removesuffix('/')}.{contents}/"
    changed: dict[str, object] = {}
    for part, model in (("target", plan.target), ("drafter", plan.drafter)):
        if model is not None and model.weights is not None:
            uri = model.weights.s3_uri and model.weights.s3_uri.replace(old, new)
            weights = model.weights.model_copy(update={"s3_uri": uri})
            changed[part] = model.model_copy(update={"weights": weights})
    changed["mounts"] = tuple(
        mount.model_copy(update={"s3_uri": mount.s3_uri.replace(old, new)}) for mount in plan.mounts
    )
    return plan.model_copy(update=changed)


def planned_contents(plan: Plan) -> str | None:
    """The hash of the folders that the plan was made of; ``None`` for a plan without it."""
    start = f"{upload_prefix(plan.name).removesuffix('/')}."
    for weights in local_weights(plan):
        if weights.s3_uri and weights.s3_uri.startswith(start):
            return weights.s3_uri.removeprefix(start).partition("/")[0]
    return None
