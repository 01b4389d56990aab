"""Where weights come from, where the container finds them, and what SageMaker mounts.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from peagle.catalog.schema import Catalog, Target
from peagle.catalog.tables import Runtime, RuntimeTable
from peagle.checkpoints.models import hub_snapshot, is_folder
from peagle.checks.facts import parse_ecr_image
from peagle.data import CATALOG_PREFIX, data_folder
from peagle.errors import Fix, OptionMissing, OptionsConflict, UserError
from peagle.findings import Finding, error, note, warning
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.drafter import SelectedPair
from peagle.planning.engines import Load
from peagle.planning.plan import MODEL_BUCKET, Decision, Mount, Plan, Reason, Weights
from peagle.s3uri import PREFIX_FORMAT, S3Uri, slashes_hint
from peagle.text import format_size, one_of
from peagle.vllm import versions
from peagle_serve.contract import ADDITIONAL, ML_ROOT, MODEL_FOLDER, is_s3_uri

WeightSizes = Sequence[tuple[Weights, int]]
"""The weights of target and drafter with their bytes."""


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


LOADER = "runai_streamer"
"""vLLM's ``--load-format`` that reads ``s3://`` addresses."""

WITHOUT_STREAMER = "runtime-without-streamer"
REGION_VARIABLE = "AWS_DEFAULT_REGION"
BUFFER_VARIABLE = "RUNAI_STREAMER_MEMORY_LIMIT"
"""Of the streamer's buffer in host memory, in bytes; without it 40 GB or all, by its version."""

_BUFFER_SHARE = 4
"""The buffers of all GPUs together take this part of the host's memory: enough for any tensor, and
enough left for engine and system on the smallest hosts."""


def stream(
    sizes: WeightSizes, candidate: Candidate, runtime: Runtime, table: RuntimeTable, region: str
) -> Decision[dict[str, str]]:
    """The streamer's variables and findings; empty for weights that are not streamed."""
    streamed = [(weights, size) for weights, size in sizes if weights.streamed]
    if not streamed:
        return Decision({})
    gpus = candidate.gpus
    buffer = str(candidate.instance.memory_gib * 2**30 // _BUFFER_SHARE // gpus)
    share = "a quarter of the host's memory" + (" for all GPUs" if gpus > 1 else "")
    reasons = {
        REGION_VARIABLE: (region, "the engine reads from S3 in the endpoint's region"),
        BUFFER_VARIABLE: (buffer, f"bytes between S3 and a GPU: {share}"),
    }
    locations = [weights.location for weights, _ in streamed]
    total = format_size(sum(size for _, size in streamed))
    each = f", once for each of {gpus} GPUs" if gpus > 1 else ""
    message = (
        f"the engine reads {total} from {' and '.join(locations)} at every start{each}, with the "
        "permissions of the execution role; warm starts need mounted weights"
    )
    buckets = dict.fromkeys(location.split("/")[2] for location in locations)
    fix = (
        f"the role needs s3:ListBucket and s3:GetObject on {' and '.join(buckets)}, in {region}; "
        "see infra/iam/execution-role-policy.json"
    )
    return Decision(
        {name: value for name, (value, _) in reasons.items()},
        tuple(Reason(what=n, value=value, because=why) for n, (value, why) in reasons.items()),
        (*_without_streamer(runtime, table), note("weights-streamed", "weights_by", message, fix)),
    )


def _without_streamer(runtime: Runtime, table: RuntimeTable) -> Iterator[Finding]:
    """An error for an image without the streamer, with the runtimes that have it."""
    if runtime.streamer is not None:
        return
    message = (
        f"the image with vLLM {runtime.vllm} is not known to contain the Run:ai model "
        "streamer, which reads weights from S3"
    )
    omit = "leave weights_by stream out, so that SageMaker mounts the weights"
    with_it = sorted((r.vllm for r in table.runtimes if r.streamer), key=versions.parse)
    fix = Fix(omit)
    if with_it:
        names = one_of(with_it)
        fix = Fix(f"use --vllm {names}, or {omit}", options=("--vllm", with_it[-1]))
    yield error(WITHOUT_STREAMER, "weights_by", message, fix)


DRAFTER_CHANNEL = "drafter"
DRAFTER_FOLDER = f"{ML_ROOT}/{ADDITIONAL}/{DRAFTER_CHANNEL}"


@dataclass(frozen=True)
class PlacedWeights:
    """The weights of target and drafter."""

    target: Weights
    drafter: Weights | None

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The S3 prefixes that SageMaker mounts for them."""
        return mounts_of(self.target, self.drafter)


def place_weights(
    options: Options, catalog: Catalog, pair: SelectedPair, name: str
) -> Decision[PlacedWeights]:
    """Source and path of all weights. Raises UserError for an invalid S3 URI."""
    target = with_upload_destination(_target_weights(options, catalog, pair.target), "target", name)
    drafter = _drafter_weights(catalog, pair)
    if drafter is not None:
        drafter = with_upload_destination(drafter, "drafter", name)
    if options.weights_by == "stream":
        target, drafter = _stream_both(options, target, drafter)
    elif options.baked_weights:
        return Decision(_in_image(options, catalog, target, drafter))
    elif drafter is not None:
        if _are_folders_of_one_prefix(target, drafter):
            target = _at(target, f"{MODEL_FOLDER}/target")
            drafter = _at(drafter, f"{MODEL_FOLDER}/drafter")
        elif {"s3"} <= {target.kind, drafter.kind} <= {"s3", "directory"}:
            # Two prefixes, of which the model folder takes one.
            drafter = _at(drafter, DRAFTER_FOLDER)
    findings = (
        *_gated(pair.target, target),
        *_unpinned("target", target),
        *_unpinned("drafter", drafter),
    )
    reasons = (*_snapshot("target", target), *_snapshot("drafter", drafter))
    return Decision(PlacedWeights(target, drafter), reasons, findings)


def placed_sizes(options: Options, pair: SelectedPair, load: Load) -> WeightSizes:
    """The weights of a pair with their bytes; where they are does not depend on the endpoint."""
    placed = place_weights(options, load.catalog, pair, "").value
    drafter = (
        [(placed.drafter, load.drafter_bytes(pair.drafter))] if placed.drafter is not None else []
    )
    return [(placed.target, load.target.weight_bytes), *drafter]


def _at(weights: Weights, engine_path: str) -> Weights:
    return weights.model_copy(update={"engine_path": engine_path})


def _stream_both(
    options: Options, target: Weights, drafter: Weights | None
) -> tuple[Weights, Weights | None]:
    """Both, with those in S3 streamed. Raises UserError for a target that is not in S3."""
    if options.baked_weights:
        raise OptionsConflict(
            "--baked-weights cannot be combined with weights_by stream", "leave one of them out"
        )
    if target.kind != "s3":
        where = "on the Hub" if target.kind == "hub" else "in a folder"
        raise UserError(
            f"weights_by stream needs the target in S3; it is {where} ({target.location})",
            Fix(
                "add --model-source s3://BUCKET/PREFIX/target/, after copying the weights there",
                ("peagle", "weights", "sync", options.pair, "s3://BUCKET/PREFIX"),
            ),
            code="weights-not-in-s3",
        )
    if drafter is not None and drafter.kind == "s3":
        drafter = _at(drafter, drafter.location)
    return _at(target, target.location), drafter


def mounts_of(target: Weights, drafter: Weights | None) -> tuple[Mount, ...]:
    """The S3 prefixes that SageMaker mounts for these weights."""
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
    inside = drafter.model_copy(update=baked) if drafter is not None else None
    return PlacedWeights(target.model_copy(update=baked), inside)


def _are_folders_of_one_prefix(target: Weights, drafter: Weights) -> bool:
    """Only with these names: another parent folder may contain unrelated files."""
    if {target.kind, drafter.kind} != {"s3"} or not target.location.endswith("/target/"):
        return False
    return drafter.location == f"{target.location.removesuffix('target/')}drafter/"


def _target_weights(options: Options, catalog: Catalog, target: Target) -> Weights:
    if options.model_source is not None:
        if not is_s3_uri(options.model_source):
            raise UserError(
                f"--model-source {options.model_source!r} is not an s3:// prefix",
                slashes_hint(options.model_source) or "use the form s3://bucket/folder/",
                code="invalid-s3-uri",
            )
        return _in_s3(options.model_source)
    weights = None if target.weights.startswith(".") else _own_location(target.weights)
    return weights or _catalogued(catalog, target, target.weights, target.revision)


def _drafter_weights(catalog: Catalog, pair: SelectedPair) -> Weights | None:
    drafter = pair.drafter
    if drafter is None or drafter.weights is None:
        return None
    if pair.own is None:
        return _catalogued(catalog, pair.target, drafter.weights, drafter.revision)
    return _own_location(pair.own) or _on_hub(pair.own, drafter.revision)


def _own_location(location: str) -> Weights | None:
    """The user's own weights in S3 or in a folder; ``None`` for those on the Hub."""
    if is_s3_uri(location):
        return _in_s3(location)
    if is_folder(location):
        return Weights(kind="directory", location=location, engine_path=location)
    return None


def _catalogued(catalog: Catalog, target: Target, weights: str, revision: str | None) -> Weights:
    """Weights as the catalogue names them: a Hugging Face id, or a folder next to the file."""
    if not weights.startswith("."):
        return _on_hub(weights, revision)
    file = Path(catalog.origins[target.id]).absolute()
    folder, shipped = file.parent / weights, data_folder("model_catalog")
    if folder.is_relative_to(shipped):
        location = f"{CATALOG_PREFIX}{folder.relative_to(shipped).as_posix()}"
    else:
        location = str(folder)
    return Weights(kind="directory", location=location, engine_path=location)


def _on_hub(repository: str, revision: str | None) -> Weights:
    return Weights(kind="hub", location=repository, revision=revision, engine_path=repository)


def _in_s3(address: str) -> Weights:
    try:
        location = S3Uri.mountable(address).uri
    except ValueError as error:
        raise UserError(str(error), PREFIX_FORMAT, code="invalid-s3-uri") from error
    return Weights(kind="s3", location=location, engine_path=MODEL_FOLDER)


def _snapshot(part: str, weights: Weights | None) -> Iterator[Reason]:
    """Which commit of the Hub a local copy in its cache is."""
    folder = weights.location if weights and weights.kind == "directory" else ""
    if commit := hub_snapshot(folder):
        yield Reason(what=f"{part} commit", value=commit, because="the Hub's cache names it")


def _gated(target: Target, weights: Weights) -> tuple[Finding, ...]:
    if not target.gated or weights.kind != "hub":
        return ()
    message = f"{target.id} is gated; the engine cannot download it without a Hugging Face token"
    fix = (
        "copy it to your bucket and use --model-source s3://...; a token in the endpoint's "
        "environment would be readable with DescribeModel"
    )
    return (warning("target-is-gated", "target", message, fix),)


def _unpinned(flag: str, weights: Weights | None) -> tuple[Finding, ...]:
    if weights is None or weights.kind != "hub" or weights.revision not in (None, "main"):
        return ()
    message = f"{weights.location} is not pinned to a commit; a restart may serve other weights"
    fix = "to pin it, copy it to your bucket and use --model-source s3://..."
    if flag == "drafter":
        fix = f"to pin it, use --drafter {weights.location}@COMMIT"
    return (note("revision-not-pinned", flag, message, fix),)


UPLOAD_FOLDER = "peagle-toolkit/"
"""Prefix of uploaded weights in a bucket; one folder per endpoint and its weights is below it."""


def upload_prefix(name: str) -> str:
    """Where directories of the endpoint ``name`` are uploaded: an ``s3://`` prefix."""
    return str(S3Uri(MODEL_BUCKET, f"{UPLOAD_FOLDER}{name}/"))


def with_upload_destination(weights: Weights, folder: str, name: str) -> Weights:
    """A directory with its upload destination; other weights unchanged."""
    if weights.kind != "directory":
        return weights
    to = {"s3_uri": f"{upload_prefix(name)}{folder}/", "engine_path": f"{MODEL_FOLDER}/{folder}"}
    return weights.model_copy(update=to)


def local_weights(plan: Plan) -> tuple[Weights, ...]:
    """The plan's weights in folders of this machine, which are uploaded."""
    drafter = plan.drafter.weights if plan.drafter else None
    return tuple(w for w in (plan.target.weights, drafter) if w and w.kind == "directory")


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
    parts = {
        part: model.model_copy(update={"weights": _moved(model.weights, old, new)})
        for part, model in (("target", plan.target), ("drafter", plan.drafter))
        if model is not None and model.weights is not None
    }
    mounts = tuple(
        mount.model_copy(update={"s3_uri": mount.s3_uri.replace(old, new)}) for mount in plan.mounts
    )
    return plan.model_copy(update={**parts, "mounts": mounts})


def planned_contents(plan: Plan) -> str | None:
    """The hash of the folders that the plan was made of; ``None`` for a plan without it."""
    start = f"{upload_prefix(plan.name).removesuffix('/')}."
    hashes = [w.s3_uri.removeprefix(start) for w in local_weights(plan)
              if w.s3_uri and w.s3_uri.startswith(start)]  # fmt: skip
    return hashes[0].partition("/")[0] if hashes else None


def _moved(weights: Weights, old: str, new: str) -> Weights:
    uri = weights.s3_uri.replace(old, new) if weights.s3_uri else None
    return weights.model_copy(update={"s3_uri": uri})
