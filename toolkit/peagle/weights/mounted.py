"""Whether the weights that a plan reads from S3 are there and complete, before anything is created.

SageMaker downloads whatever is below a prefix, so a partial copy wastes a whole start before the
container can report it. The manifest of ``peagle weights sync`` tells; without one, the file names
and the index of the shards do. A few small reads per prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.checkpoints.files import files_read
from peagle.checkpoints.vocabulary import vocabulary_folder
from peagle.errors import CheckpointError, Fix, PeagleError, UserError
from peagle.findings import Finding, error, warning
from peagle.planning.plan import MODEL_BUCKET, Plan, Weights
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket
from peagle.weights.layout import MANIFEST, PARTS, WeightsPrefix, unknown_objects
from peagle.weights.lock import read_lock
from peagle.weights.manifest import (
    FolderEntry,
    Manifest,
    incomplete,
    mismatch,
    read_manifest,
    sync_command,
)
from peagle_serve.contract import VOCABULARY_FILE, VOCABULARY_VARIABLE

PARTIAL, OTHER_PAIR, MISSING = "weights-half", "weights-of-another-pair", "weights-missing"
NOT_CHECKED, OTHER_PART = "weights-not-seen", "weights-of-the-other-part"
NO_VOCABULARY = "vocabulary-not-there"
WEIGHTS_CODES = frozenset(
    {PARTIAL, OTHER_PAIR, MISSING, NOT_CHECKED, OTHER_PART, NO_VOCABULARY, "weights-elsewhere",
     "file-and-folder", "folder-keys", "foreign-objects"}
)  # fmt: skip
"""All findings of this module: ``deploy`` checks the weights again and replaces the plan's."""

MAX_OBJECTS = 5_000
"""Listing more would take minutes."""


def mounted_findings(aws: Aws, plan: Plan) -> tuple[Finding, ...]:
    """Problems with the weights that the plan mounts or streams from S3; none of those that deploy
    uploads itself. Missing read permissions give a warning."""
    quick = aws.best_effort() if aws.is_amazon else aws
    found: list[Finding] = []
    for prefix, mounted in prefixes_read(plan).items():
        try:
            for finding in _PrefixCheck(quick, plan, prefix, mounted).findings():
                found.append(finding)
        except PeagleError as failed:
            found.append(_not_checked(prefix, failed))
    return tuple(found)


def prefixes_read(plan: Plan) -> dict[WeightsPrefix, bool]:
    """The prefixes in S3 that the plan's weights come from, except those that deploy uploads, and
    whether SageMaker mounts them."""
    uploaded = str(S3Uri(MODEL_BUCKET))
    streamed = {
        WeightsPrefix.parse(weights.location): False
        for _, weights in _in_s3(plan)
        if weights.streamed
    }
    uris = [mount.s3_uri for mount in plan.mounts]
    return streamed | {
        WeightsPrefix.parse(uri): True for uri in uris if not uri.startswith(uploaded)
    }


def _in_s3(plan: Plan) -> Iterator[tuple[str, Weights]]:
    drafter = plan.drafter.weights if plan.drafter else None
    for name, weights in (("target", plan.target.weights), ("drafter", drafter)):
        if weights is not None and weights.kind == "s3":
            yield name, weights


def _not_checked(prefix: WeightsPrefix, failed: PeagleError) -> Finding:
    sentence = "check it yourself"
    if isinstance(failed, AccessDenied):
        sentence = "grant s3:ListBucket and s3:GetObject to these credentials, or check it yourself"
    return warning(
        NOT_CHECKED, prefix.uri, f"the weights were not checked: {failed.message}",
        Fix(sentence, ("peagle", "weights", "list", prefix.uri)),
    )  # fmt: skip


@dataclass(frozen=True)
class _PlannedPart:
    """Target or drafter below the prefix; ``pair`` is the prefix of the pair, if the weights are in
    a folder of that name."""

    name: str
    prefix: WeightsPrefix
    pair: WeightsPrefix | None

    @property
    def option(self) -> str:
        """The option that names its location."""
        return "--model-source" if self.name == "target" else "--drafter"


class _PrefixCheck:
    """The check of one prefix."""

    def __init__(self, aws: Aws, plan: Plan, prefix: WeightsPrefix, mounted: bool) -> None:
        self.prefix, self._mounted = prefix, mounted
        self._plan = plan
        self._bucket = Bucket(aws, self.prefix.bucket)
        self._parts = tuple(_parts(plan, self.prefix))
        self._manifests: dict[WeightsPrefix, Manifest] = {}

    def findings(self) -> Iterator[Finding]:
        """Raises PeagleErrors for what cannot be read."""
        if elsewhere := tuple(self._region()):
            yield from elsewhere
            return
        try:
            present = self._list()
        except AccessDenied as denied:
            yield from self._by_manifest_only()
            yield _not_checked(self.prefix, denied)
            return
        if len(present) == MAX_OBJECTS:
            yield from self._by_manifest_only()
            message = f"the prefix has more than {MAX_OBJECTS:,} objects; not all were checked"
            yield warning(NOT_CHECKED, self.prefix.uri, message, "use the folder of one model")
            return
        if self._mounted:
            yield from self._unknown_objects(present)
        for part in self._parts:
            yield from self._part(part, present)
            yield from self._vocabulary(part, present)

    def _region(self) -> Iterator[Finding]:
        """SageMaker reads weights in its own region only. Silent where that may not be asked."""
        try:
            found = self._bucket.call("head_bucket")
        except Missing:
            message = f"there is no bucket {self.prefix.bucket}"
            yield error(MISSING, self.prefix.uri, message, "check the URI")
            return
        except AccessDenied:
            return
        region = found.get("BucketRegion") or self._plan.region
        if region != self._plan.region:
            yield error(
                "weights-elsewhere", self.prefix.uri,
                f"the bucket is in {region}; SageMaker in {self._plan.region} reads weights in its "
                "own region only",
                f"plan for --region {region}, or copy the weights to a bucket in "
                f"{self._plan.region}",
            )  # fmt: skip

    def _list(self) -> dict[str, int]:
        entries = self._bucket.aws.items(
            "s3", "list_objects_v2", "Contents",
            Bucket=self.prefix.bucket, Prefix=self.prefix.key,
        )  # fmt: skip
        return {entry["Key"]: entry["Size"] for entry in islice(entries, MAX_OBJECTS)}

    def _unknown_objects(self, present: Mapping[str, int]) -> Iterator[Finding]:
        """What keeps SageMaker from mounting the prefix; unknown objects only cost time."""
        of_pair = any(part.pair == self.prefix for part in self._parts)
        expected = () if of_pair else tuple(present)
        for finding in unknown_objects(self.prefix, present, expected, PARTS):
            harmless = finding.code == "foreign-objects"
            yield finding.model_copy(update={"level": "warning"}) if harmless else finding

    def _manifest(self, pair: WeightsPrefix | None) -> Manifest:
        """The manifest beside the folders; empty where none can be read."""
        if pair is None:
            return {}
        if pair not in self._manifests:
            self._manifests[pair] = {}
            with suppress(AccessDenied, UserError):
                self._manifests[pair] = read_manifest(self._bucket, pair)
        return self._manifests[pair]

    def _by_manifest_only(self) -> Iterator[Finding]:
        for part in self._parts:
            folder = self._manifest(part.pair).get(part.name)
            if folder is not None:
                yield from self._by_manifest(part, folder, None)
            yield from self._other_part(part)

    def _part(self, part: _PlannedPart, present: Mapping[str, int]) -> Iterator[Finding]:
        below = {
            key.removeprefix(part.prefix.key): size
            for key, size in present.items()
            if key.startswith(part.prefix.key)
        }
        folder = self._manifest(part.pair).get(part.name)
        if folder is not None:
            yield from self._by_manifest(part, folder, below)
        elif mistaken := tuple(self._other_part(part)):
            yield from mistaken
        elif not below:
            yield error(
                MISSING, part.prefix.uri, f"the {part.name}'s weights are missing at this prefix",
                Fix(f"check {part.option}, or copy a pair there", _sync(part.pair or part.prefix)),
            )  # fmt: skip
        elif f"{part.name}/config.json" in below and "config.json" not in below:
            yield error(
                MISSING, part.prefix.uri, f"the {part.name} is in a subfolder of this prefix",
                f"use {part.option} {part.prefix.part_uri(part.name)}",
            )  # fmt: skip
        else:
            yield from self._by_names(part, below)

    def _vocabulary(self, part: _PlannedPart, present: Mapping[str, int]) -> Iterator[Finding]:
        """An error when the engine must find its vocabulary beside the target, and it is not
        there."""
        folder = self._plan.environment.get(VOCABULARY_VARIABLE)
        if part.name != "target" or folder != self._plan.target.weights.engine_path:
            return
        if f"{part.prefix.key}{VOCABULARY_FILE}" not in present:
            message = f"{VOCABULARY_VARIABLE} names this folder, which has no {VOCABULARY_FILE}"
            fix = f"put it into {vocabulary_folder()} and copy the target again"
            yield error(NO_VOCABULARY, part.prefix.uri, message, fix)

    def _other_part(self, part: _PlannedPart) -> Iterator[Finding]:
        """An error when the plan takes the drafter from the target's folder, or the reverse."""
        other = "target" if part.name == "drafter" else "drafter"
        if not part.prefix.uri.endswith(f"/{other}/"):
            return
        pair = WeightsPrefix.parse(part.prefix.uri.removesuffix(f"{other}/"))
        manifest = self._manifest(pair)
        if other not in manifest:
            return
        right = f"use {part.option} {pair.part_uri(part.name)}"
        yield error(
            OTHER_PART, part.prefix.uri,
            f"according to {MANIFEST}, this is the folder of a {other}, not of a {part.name}",
            right if part.name in manifest else f"use another {part.option}",
        )  # fmt: skip

    def _by_names(self, part: _PlannedPart, below: Mapping[str, int]) -> Iterator[Finding]:
        """Without a manifest: the configuration, and every shard that the index names."""
        try:
            files_read(part.prefix.uri.rstrip("/"), below,
                       lambda name: self._bucket.read(part.prefix.key + name))  # fmt: skip
        except CheckpointError as wrong:
            yield error(PARTIAL, part.option, wrong.message, wrong.remedy)

    def _by_manifest(
        self, part: _PlannedPart, folder: FolderEntry, below: Mapping[str, int] | None
    ) -> Iterator[Finding]:
        """Compare the manifest with the plan, and with the objects where they are known."""
        if other := mismatch(self._plan, part.name, folder):
            yield error(OTHER_PAIR, part.prefix.uri, other,
                        f"use another {part.option}, or plan for that pair")  # fmt: skip
            return
        if reason := incomplete(folder, below):
            prefix = part.pair or part.prefix
            command = sync_command(prefix, self._manifest(part.pair), [part.name])
            fix = Fix("complete it", command or _sync(prefix))
            reason += self._writer(prefix)
            message = f"the copy of the {part.name} is incomplete: {reason}"
            yield error(PARTIAL, part.prefix.uri, message, fix)

    def _writer(self, prefix: WeightsPrefix) -> str:
        """Who copies there at the moment, if known."""
        with suppress(PeagleError):
            lock = read_lock(self._bucket, prefix)
            return f"; {lock}" if lock is not None and not lock.stale else ""
        return ""


def _parts(plan: Plan, prefix: WeightsPrefix) -> Iterator[_PlannedPart]:
    """Target and drafter, as far as they come from this prefix."""
    for name, weights in _in_s3(plan):
        own = WeightsPrefix.parse(weights.location)
        named = own.uri.endswith(f"/{name}/")
        above = WeightsPrefix.parse(own.uri.removesuffix(f"{name}/")) if named else None
        if prefix in (own, above):
            yield _PlannedPart(name, own, above)


def _sync(prefix: WeightsPrefix) -> tuple[str, ...]:
    return ("peagle", "weights", "sync", "PAIR", prefix.uri)
