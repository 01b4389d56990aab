"""A training as a job of SageMaker: the same ``peagle train`` in a container, by CreateTrainingJob.

Data is in S3 beside the checkpoints of its run, and SageMaker copies both to and from ``/opt/ml``.
Another job of the same run goes on from its last checkpoint; docs/train.md says what a run is, and
why the request is not sent by the SageMaker Python SDK.
"""

from __future__ import annotations

import math
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peagle.aws import s3
from peagle.aws.client import Aws
from peagle.aws.errors import AlreadyExists
from peagle.aws.iam import Role
from peagle.aws.training import TrainingJob, require_trained
from peagle.catalog.tables import Instance
from peagle.data import data_folder
from peagle.findings import Finding, error
from peagle.planning.company import NO_COMPANY, Company, model_network
from peagle.planning.runtime import DEFAULT_PREFIX, MAX_NAME_LENGTH
from peagle.render.requests import PAIR_TAG, tag_value
from peagle.s3uri import S3Uri
from peagle.text import format_size, json_digest
from peagle.train.data import HELD_OUT_FILE, TRAIN_FILE, TrainingData, grows, write_parts
from peagle.train.result import CATALOG, require_empty
from peagle_serve.contract import ML_ROOT, is_s3_uri

CHANNEL = "data"
INPUT_FOLDER = f"{ML_ROOT}/input/data"
CHECKPOINTS_FOLDER, HEADS_FOLDER = f"{ML_ROOT}/checkpoints", f"{ML_ROOT}/model"

JOB_VARIABLE = "TRAINING_JOB_NAME"
"""SageMaker sets it in the container of a job."""

FAILURE_FILE = "output/failure"
"""Below ``/opt/ml``: what a program writes there is the job's FailureReason."""

TRAINING_TAG = {"Key": "peagle:toolkit", "Value": "training"}

_SPOT_WAIT = 2
"""How many times its runtime a job on spot instances may take in all."""

_SPARE_GB = 20
_GB = 1e9
_TIME = "%y%m%d-%H%M%S"
_TIME_LENGTH, _DIGEST_LENGTH = 14, 8


@dataclass(frozen=True)
class JobRun:
    """What the jobs of one training share: a name, and a folder in ``bucket``."""

    name: str
    bucket: str

    def uri(self, part: str) -> str:
        """``data``, ``checkpoints`` or ``jobs`` in S3."""
        return f"s3://{self.bucket}/{DEFAULT_PREFIX}train/{self.name}/{part}"

    def job_name(self, now: float) -> str:
        """The name of a job of the run that is requested ``now``, in epoch seconds."""
        return f"{self.name}-{datetime.fromtimestamp(now, UTC):{_TIME}}"


@dataclass(frozen=True)
class JobSettings:
    """Where and how a job runs. ``disk_bytes`` is what the training needs; ``max_seconds`` its
    runtime, without the wait for a spot instance."""

    instance: Instance
    image: str
    role: Role
    max_seconds: int
    disk_bytes: int
    is_spot: bool = False
    company: Company = NO_COMPANY


def volume_gb(disk_bytes: int) -> int:
    """The size of the volume, in GB, that has so many bytes for the training."""
    return math.ceil(disk_bytes / _GB) + _SPARE_GB


def make_run(target: str, arguments: Sequence[str], data: TrainingData, bucket: str) -> JobRun:
    """The run of a training of ``target``'s head with these ``arguments`` and data."""
    content = data.sources if grows(data.sources) else data.sha256
    digest = json_digest([target, list(arguments), content])[:_DIGEST_LENGTH]
    slug = re.sub(r"[^a-z0-9]+", "-", target.rstrip("/").rpartition("/")[2].lower()).strip("-")
    stem = f"{DEFAULT_PREFIX}train-{slug}"
    longest = MAX_NAME_LENGTH - _TIME_LENGTH - _DIGEST_LENGTH - 1
    return JobRun(f"{stem[:longest].rstrip('-')}-{digest}", bucket)


def target_channel(pair: str) -> str:
    """The channel, with the name of its folder, of a target at ``s3://``; "" for another."""
    if not is_s3_uri(pair):
        return ""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", pair.rstrip("/").rpartition("/")[2])[:64]
    return "target" if name in ("", CHANNEL) else name


def job_arguments(pair: str, head: str, arguments: Sequence[str]) -> list[str]:
    """The command in the container, after the program's name: that of this machine with the
    container's folders. ``head`` is the name of the head's folder, and so the head's."""
    channel, data = target_channel(pair), f"{INPUT_FOLDER}/{CHANNEL}"
    return [
        "train", "run", f"{INPUT_FOLDER}/{channel}" if channel else pair, *arguments,
        "--data", f"{data}/{TRAIN_FILE}", "--held-out", f"{data}/{HELD_OUT_FILE}",
        "--work", CHECKPOINTS_FOLDER,
        "-o", f"{HEADS_FOLDER}/{re.sub(r'[^A-Za-z0-9._-]+', '-', head)[:64]}",
    ]  # fmt: skip


def training_job_request(
    name: str, run: JobRun, pair: str, arguments: Sequence[str], options: JobSettings
) -> dict[str, Any]:
    """CreateTrainingJob's parameters for a job of the run that trains ``pair``'s head with these
    ``job_arguments``."""
    company, stopping = options.company, {"MaxRuntimeInSeconds": options.max_seconds}
    if options.is_spot:
        stopping["MaxWaitTimeInSeconds"] = _SPOT_WAIT * options.max_seconds
    key, channels = company.kms_key, {CHANNEL: f"{run.uri(CHANNEL)}/"}
    if channel := target_channel(pair):
        channels[channel] = pair.rstrip("/") + "/"
    return {
        "TrainingJobName": name,
        "RoleArn": options.role.arn,
        "AlgorithmSpecification": {
            "TrainingImage": options.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["peagle"],
            "ContainerArguments": list(arguments),
        },
        "InputDataConfig": [
            {
                "ChannelName": name,
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}},
            }
            for name, uri in channels.items()
        ],
        "OutputDataConfig": {"S3OutputPath": run.uri("jobs"), **({"KmsKeyId": key} if key else {})},
        "CheckpointConfig": {"S3Uri": run.uri("checkpoints"), "LocalPath": CHECKPOINTS_FOLDER},
        "ResourceConfig": {
            "InstanceType": options.instance.type,
            "InstanceCount": 1,
            "VolumeSizeInGB": volume_gb(options.disk_bytes),
            # A key is for EBS volumes: SageMaker refuses it where it makes none.
            **({"VolumeKmsKeyId": key} if key and not options.instance.nvme_gb else {}),
        },
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": options.is_spot,
        **model_network(company),
        "Tags": [
            TRAINING_TAG, {"Key": PAIR_TAG, "Value": tag_value(pair)}, *company.tag_list,
        ],
    }  # fmt: skip


def job_findings(instance: Instance, disk_bytes: int) -> Iterator[Finding]:
    """Whether a job has room on the instance: disks of its own are used in place of a volume."""
    local, needed = instance.nvme_gb, volume_gb(disk_bytes)
    if local and needed > local:
        message = f"the training needs {format_size(needed * _GB)} of disk; "
        message += f"{instance.type} has {local} GB"
        yield error("job-disk", "instance_type", message, "choose a type with more local storage")


def start_job(
    aws: Aws, run: JobRun, data: TrainingData, request: Mapping[str, Any], company: Company
) -> None:
    """Upload the data to the run's folder, unless a job before has, in a bucket that is made if it
    is not there, and request the job."""
    if not s3.bucket_exists(aws, run.bucket):
        s3.create_bucket(aws, run.bucket, company.tag_list)
    names = (HELD_OUT_FILE, TRAIN_FILE)
    places = [S3Uri.parse(f"{run.uri(CHANNEL)}/{name}") for name in names]
    if s3.find_object(aws, run.bucket, places[-1].key) is None:
        with tempfile.TemporaryDirectory() as folder:
            write_parts(data, Path(folder))
            for place in places:
                file = Path(folder) / place.key.rpartition("/")[2]
                aws.upload(file, place.bucket, place.key, {}, lambda _: None, company.kms_key)
    # A name has the time of its request: one that exists is of a request whose answer was lost.
    with suppress(AlreadyExists):
        aws.call("sagemaker", "create_training_job", **request)


def fetch_head(aws: Aws, job: TrainingJob, folder: Path) -> None:
    """Download the head that the job has made into a new or empty ``folder``. Raises CloudError for
    a job without one, and as ``require_empty``."""
    require_trained(job)
    require_empty(folder)
    artifact = S3Uri.parse(job.artifact)
    listed = aws.call("s3", "head_object", Bucket=artifact.bucket, Key=artifact.key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        archive, unpacked = Path(temporary) / "model.tar.gz", Path(temporary) / "model"
        size, etag = listed["ContentLength"], listed["ETag"]
        s3.download_object(aws, artifact, etag, size, archive, lambda _: None)
        with tarfile.open(archive) as packed:
            members = [each for each in packed if not each.issym()]  # to the target's folder
            packed.extractall(unpacked, members, filter="data")  # nosec B202 # filtered
        head = next(unpacked.glob("*/config.json")).parent
        _complete_catalog(head / CATALOG)
        if folder.exists():
            folder.rmdir()
        head.rename(folder)


def _complete_catalog(catalog: Path) -> None:
    """Give the head's catalogue the target's folder, which the archive has not: that of the bundled
    catalogue. Without one, as for a target in S3, there is no catalogue."""
    entry = next(catalog.glob("*/*.yaml"), None)
    if entry and "\nweights: ./target\n" in entry.read_text("utf-8"):
        bundled = data_folder("model_catalog") / entry.parent.name / entry.stem / "target"
        if bundled.is_dir():
            entry.with_name("target").symlink_to(bundled, target_is_directory=True)
        else:
            shutil.rmtree(catalog)
