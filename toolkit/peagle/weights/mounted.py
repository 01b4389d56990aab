"""Whether the weights that a plan takes from S3 are there and whole, asked before anything is
created.

SageMaker copies whatever lies below a prefix: a half-copied model costs the whole start before the
container can say so. `peagle weights sync` leaves a manifest that tells; without one, the names of
the files and the index of the shards do. A few small reads for each prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.checkpoints.index import files_read
from peagle.errors import CheckpointError, PeagleError, UserError
from peagle.findings import Finding, error, warning
from peagle.planning.plan import MODEL_BUCKET, Plan, Weights
from peagle.weights.bucket import Bucket
from peagle.weights.layout import MANIFEST, PARTS, Place, strangers
from peagle.weights.lock import read_lock
from peagle.weights.manifest import (
    Folder,
    Manifest,
    another_pair,
    command_for,
    incomplete,
    read_manifest,
)

HALF, ANOTHER, MISSING = "weights-half", "weights-of-another-pair", "weights-missing"
UNSEEN, OTHER_PART = "weights-not-seen", "weights-of-the-other-part"
WEIGHTS_CODES = frozenset(
    {HALF, ANOTHER, MISSING, UNSEEN, OTHER_PART, "weights-elsewhere", "file-and-folder",
     "folder-keys", "foreign-objects"}
)  # fmt: skip
"""Findings about mounted weights; each look settles them anew."""

MOST_OBJECTS = 5_000
"""More are not listed: some lists would take minutes."""


def mounted_findings(aws: Aws, plan: Plan) -> tuple[Finding, ...]:
    """What is to be said of the weights that the plan has mounted or streamed; nothing of those
    that deploy itself uploads. What may not be looked at is a warning."""
    patient = aws.best_effort() if aws.is_amazon else aws
    found: list[Finding] = []
    for place, mounted in _places(plan).items():
        try:
            for finding in _Stored(patient, plan, place, mounted).findings():
                found.append(finding)
        except PeagleError as failed:
            found.append(_unseen(place, failed))
    return tuple(found)


def mounted_at_plan(aws: Aws, plan: Plan) -> tuple[Finding, ...]:
    """The same for a plan: what nobody has begun to copy may be copied until it is deployed, so
    that is a warning here."""
    return tuple(
        finding.model_copy(update={"level": "warning"}) if finding.code == MISSING else finding
        for finding in mounted_findings(aws, plan)
    )


def _places(plan: Plan) -> dict[Place, bool]:
    """The prefixes from which weights come, and whether SageMaker mounts them."""
    streamed = {_place(weights.location): False for _, weights in _in_s3(plan) if weights.streamed}
    uris = (mount.s3_uri for mount in plan.mounts)
    return streamed | {
        _place(uri): True for uri in uris if not uri.startswith(f"s3://{MODEL_BUCKET}/")
    }


def _in_s3(plan: Plan) -> Iterator[tuple[str, Weights]]:
    drafter = plan.drafter.weights if plan.drafter else None
    for name, weights in (("target", plan.target.weights), ("drafter", drafter)):
        if weights is not None and weights.kind == "s3":
            yield name, weights


def _unseen(place: Place, failed: PeagleError) -> Finding:
    fix = f"look for yourself: peagle weights list {place.uri}"
    if isinstance(failed, AccessDenied):
        fix = "these credentials need s3:ListBucket and s3:GetObject there; or " + fix
    message = f"nobody looked whether the weights are whole: {failed.message}"
    return warning(UNSEEN, place.uri, message, fix)


@dataclass(frozen=True)
class _Part:
    """The weights of target or drafter below the prefix, and the prefix of the pair, if they lie
    in a folder of that name."""

    name: str
    place: Place
    pair: Place | None

    @property
    def option(self) -> str:
        """What names them on the command line."""
        return "--model-source" if self.name == "target" else "--drafter"


class _Stored:
    """One prefix, as it is looked at."""

    def __init__(self, aws: Aws, plan: Plan, place: Place, mounted: bool) -> None:
        self.place, self._mounted = place, mounted
        self._plan = plan
        self._bucket = Bucket(aws, self.place.bucket)
        self._parts = tuple(_parts(plan, self.place))
        self._read: dict[str, Manifest] = {}

    def findings(self) -> Iterator[Finding]:
        """Raises PeagleErrors for what cannot be asked."""
        elsewhere = tuple(self._region())
        if elsewhere:
            yield from elsewhere
            return
        try:
            there = self._list()
        except AccessDenied as denied:
            yield from self._by_manifest_alone()
            yield _unseen(self.place, denied)
            return
        if len(there) == MOST_OBJECTS:
            yield from self._by_manifest_alone()
            message = f"it holds more than {MOST_OBJECTS:,} objects, which were not all looked at"
            yield warning(UNSEEN, self.place.uri, message, "name the folder of one model")
            return
        if self._mounted:
            yield from self._strangers(there)
        for part in self._parts:
            yield from self._part(part, there)

    def _region(self) -> Iterator[Finding]:
        """SageMaker reads weights in its own region only. Nothing where that may not be asked."""
        try:
            found = self._bucket.call("head_bucket")
        except Missing:
            message = f"there is no bucket {self.place.bucket}"
            yield error(MISSING, self.place.uri, message, "check the address")
            return
        except AccessDenied:
            return
        region = found.get("BucketRegion") or self._plan.region
        if region != self._plan.region:
            yield error(
                "weights-elsewhere", self.place.uri,
                f"the bucket is in {region}, and SageMaker in {self._plan.region} reads no other "
                "region's",
                f"plan for --region {region}, or copy the weights to a bucket in "
                f"{self._plan.region}",
            )  # fmt: skip

    def _list(self) -> dict[str, int]:
        entries = self._bucket.aws.items(
            "s3", "list_objects_v2", "Contents",
            Bucket=self.place.bucket, Prefix=self.place.prefix,
        )  # fmt: skip
        return {entry["Key"]: entry["Size"] for entry in islice(entries, MOST_OBJECTS)}

    def _strangers(self, there: Mapping[str, int]) -> Iterator[Finding]:
        """What keeps SageMaker from mounting the prefix; other objects beside a pair only cost."""
        beside = any(part.pair == self.place for part in self._parts)
        wanted = () if beside else there
        for finding in strangers(self.place, there, tuple(wanted), PARTS):
            costs = finding.code == "foreign-objects"
            yield finding.model_copy(update={"level": "warning"}) if costs else finding

    def _manifest(self, pair: Place | None) -> Manifest:
        """The manifest beside the folders; empty where there is none, or none to be read."""
        if pair is None:
            return {}
        if pair.uri not in self._read:
            try:
                self._read[pair.uri] = read_manifest(self._bucket, pair)
            except (AccessDenied, UserError):
                self._read[pair.uri] = {}
        return self._read[pair.uri]

    def _by_manifest_alone(self) -> Iterator[Finding]:
        for part in self._parts:
            folder = self._manifest(part.pair).get(part.name)
            if folder is not None:
                yield from self._judged(part, folder, None)
            yield from self._other_part(part)

    def _part(self, part: _Part, there: Mapping[str, int]) -> Iterator[Finding]:
        below = {
            key.removeprefix(part.place.prefix): size
            for key, size in there.items()
            if key.startswith(part.place.prefix)
        }
        folder = self._manifest(part.pair).get(part.name)
        if folder is not None:
            yield from self._judged(part, folder, below)
        elif mistaken := tuple(self._other_part(part)):
            yield from mistaken
        elif not below:
            yield error(MISSING, part.place.uri, f"nothing lies there, and the {part.name}'s "
                        "weights should", f"check {part.option}, or bring them there: `peagle "
                        f"weights sync` copies a pair")  # fmt: skip
        elif f"{part.name}/config.json" in below and "config.json" not in below:
            yield error(MISSING, part.place.uri, f"the {part.name} lies in a folder of it",
                        f"give {part.option} {part.place.folder(part.name)}")  # fmt: skip
        else:
            yield from self._by_names(part, below)

    def _other_part(self, part: _Part) -> Iterator[Finding]:
        """An error when the manifest says that it is the target's folder, and the plan takes the
        drafter from it, or the other way round."""
        other = "target" if part.name == "drafter" else "drafter"
        if not part.place.uri.endswith(f"/{other}/"):
            return
        pair = _place(part.place.uri.removesuffix(f"{other}/"))
        manifest = self._manifest(pair)
        if other not in manifest:
            return
        right = f"give {part.option} {pair.folder(part.name)}"
        yield error(OTHER_PART, part.place.uri,
                    f"{MANIFEST} says that a {other} lies there, and no {part.name}",
                    right if part.name in manifest else f"give another {part.option}")  # fmt: skip

    def _by_names(self, part: _Part, below: Mapping[str, int]) -> Iterator[Finding]:
        """Without a manifest: config, weights, and every shard that the index names."""
        try:
            files_read(part.place.uri.rstrip("/"), below,
                       lambda name: self._bucket.read(part.place.prefix + name))  # fmt: skip
        except CheckpointError as wrong:
            yield error(HALF, part.option, wrong.message, wrong.fix)

    def _judged(
        self, part: _Part, folder: Folder, below: Mapping[str, int] | None
    ) -> Iterator[Finding]:
        """What the manifest says of the folder, and of what lies there if that is known."""
        other = another_pair(self._plan, part.name, folder)
        if other:
            yield error(ANOTHER, part.place.uri, other,
                        f"give another {part.option}, or plan for that pair")  # fmt: skip
            return
        wrong = incomplete(folder, below)
        if wrong:
            place = part.pair or part.place
            command = command_for(place, self._manifest(part.pair), [part.name])
            wrong += self._at_work(place)
            fix = f"finish it: {command or f'peagle weights sync PAIR {place.uri}'}"
            yield error(HALF, part.place.uri, f"the {part.name} is only half copied: {wrong}", fix)

    def _at_work(self, place: Place) -> str:
        """Who copies there just now, if that can be told."""
        with suppress(PeagleError):
            lock = read_lock(self._bucket, place)
            return f"; {lock.words}" if lock is not None and not lock.stale else ""
        return ""


def _parts(plan: Plan, prefix: Place) -> Iterator[_Part]:
    """Target and drafter, as far as they come from this prefix."""
    for name, weights in _in_s3(plan):
        place = _place(weights.location)
        named = place.uri.endswith(f"/{name}/")
        above = _place(place.uri.removesuffix(f"{name}/")) if named else None
        if prefix in (place, above):
            yield _Part(name, place, above)


def _place(uri: str) -> Place:
    """Of an address that planning has looked at."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return Place(bucket, prefix)
