"""Representative runs of every command that uses an account, and the calls that they make.

A call that a command makes for the first time must be in a run here: the policies are checked
against these runs.
"""

import functools
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from moto.sagemaker.models import sagemaker_backends

from peagle.aws import ecr
from peagle.aws import images as codebuild
from peagle.aws.client import Aws, Clock, Keys, connect
from peagle.aws.ecr import remove_image_resources
from peagle.aws.iam import SERVICE, find_role
from peagle.aws.runtime import Tail
from peagle.aws.s3 import default_bucket
from peagle.aws.training import describe_job, find_running_job, follow_job, stop_job
from peagle.catalog import load_catalog
from peagle.deploy.preflight import ROLE_ACTIONS
from peagle.images.build import make_member
from peagle.planning.company import Company
from peagle.planning.plan import Weights
from peagle.render.resources import trust_policy
from peagle.s3uri import S3Uri
from peagle.store import home
from peagle.train.data import read_training_data
from peagle.train.job import (
    JobSettings,
    fetch_head,
    make_run,
    start_job,
    training_job_request,
)
from peagle.weights.bucket import Bucket
from peagle.weights.inspect import inspect_weights, remove_weights
from peagle.weights.layout import weights_prefix
from peagle.weights.sync import sync_weights
from tests.support import with_keys
from tests.unit.aws.cloud import ACCOUNT, FakeAws, foreign_alarm
from tests.unit.aws.network import GROUP, SUBNETS
from tests.unit.aws.plans import IMAGE, a_plan
from tests.unit.aws.syncing import (
    CONFIG,
    PART,
    folder_weights,
    plan_for,
    shard,
    sync,
    use_small_parts,
    write_model,
)
from tests.unit.aws.templates import by_template
from tests.unit.aws.test_capacity import NO_INSTANCE
from tests.unit.cli.commands import FIRST, NAME, Terminal, without_record
from tests.unit.policies.accesses import Call, accesses
from tests.unit.policies.evaluation import Access
from tests.unit.train.test_data import questions, write

Runs = dict[str, list[Access]]
_END_ROLE = "peagle-ends-"


class Recorder:
    """Keeps what every call of every connection needs to be allowed, by the command that runs.

    It knows the tags of the resources that the recorded calls made, and of those in the account.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.runs: Runs = {}
        self._command = ""
        self._tags: dict[str, dict[str, str]] = {}
        for name in ("call", "items", "upload", "bearer_token"):
            patch.setattr(Aws, name, self._recording(name, getattr(Aws, name)))

    @contextmanager
    def command(self, name: str) -> Iterator[None]:
        """What is called inside belongs to ``name``."""
        self._command, before = name, self._command
        self.runs.setdefault(name, [])
        yield
        self._command = before

    def add(self, command: str, *needed: Access) -> None:
        self.runs.setdefault(command, []).extend(needed)

    def _recording(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def recorded(aws: Aws, *arguments: Any, **parameters: Any) -> Any:
            if self._command:
                self._record(aws, name, arguments, parameters)
            if name == "bearer_token":  # is made without a call; an account in memory has no keys
                return "sagemaker-api-key-1"
            return original(aws, *arguments, **parameters)

        return recorded

    def _record(self, aws: Aws, name: str, arguments: Any, parameters: dict[str, Any]) -> None:
        if name == "bearer_token":
            self.add(self._command, Access("sagemaker:CallWithBearerToken", "*"))
            return
        if name == "upload":
            _, bucket, key, *_ = arguments
            for operation in ("create_multipart_upload", "abort_multipart_upload"):
                self._keep(aws, "s3", operation, {"Bucket": bucket, "Key": key})
            return
        self._keep(aws, arguments[0], arguments[1], parameters)

    def _keep(self, aws: Aws, service: str, operation: str, parameters: dict[str, Any]) -> None:
        tags = aws.cloud.tags if isinstance(aws, FakeAws) else {}
        call = Call(service, operation, parameters, ACCOUNT, aws.region)
        needed = list(accesses(call, {**self._tags, **tags}))
        of_end = service == "scheduler" or _END_ROLE in str(parameters.get("RoleName"))
        ending = "drift of an end" if self._command == "drift" else "deploy with an end"
        self.add(ending if of_end else self._command, *needed)
        if operation.startswith("create_") and call.tags:
            self._tags.setdefault(needed[0].resource, {}).update(call.tags)


_COMPANY: dict[str, Any] = {
    "subnets": SUBNETS, "security_groups": GROUP, "kms_key": "alias/models",
    "tag": {"team": "ml"},
}  # fmt: skip
"""Settings of a company's account."""


class _NoPause(Clock):
    def sleep(self, seconds: float) -> None:
        pass


def all_runs(folder: Path, patch: pytest.MonkeyPatch) -> Runs:
    """What every command needs, by its name."""
    recorder = Recorder(patch)
    patch.setenv("PEAGLE_HOME", str(folder / "home"))
    _deployments(recorder, patch)
    _warm(recorder, patch)
    _weights(recorder, folder, patch)
    _images(recorder, patch)
    _training(recorder, folder)
    for command, entries in BY_OTHERS.items():
        recorder.add(command, *(Access(action, arn, keys) for action, arn, keys in entries))
    return recorder.runs


def _deployments(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(patch)
    terminal.cloud.quota_codes = {"ml.g5.xlarge for endpoint usage": "L-1"}

    def run(*words: str) -> None:
        name = " ".join(words[:2]) if words[1:2] == ("--online",) else words[0]
        with recorder.command(name):
            done = terminal.run(*words)
            assert done.code == 0, done.err

    quotas, terminal.cloud.quotas = terminal.cloud.quotas, {}
    run("plan", "--online", "tiny", "--instance-type", "ml.g5.xlarge")
    terminal.cloud.quotas = quotas
    run("plan", "--online", "tiny", "--instance-type", "ml.g5.xlarge")
    run(*FIRST, "--yes", "--role", "peagle-execution")
    run(*FIRST, "--yes", "--k", "3")
    run(*FIRST, "--yes", "--k", "4")
    run("rollback", NAME, "--yes")
    run(
        *FIRST,
        "--yes",
        "--k",
        "5",
        "--rollout",
        "all-at-once",
        "--slo",
        "ttft=0.5",
        "--tag",
        "team=ml",
    )
    terminal.cloud.next_scripts = [[("Updating", None), ("InService", "an alarm")]]
    with recorder.command("deploy"):
        assert terminal.run(*FIRST, "--yes", "--k", "6", "--rollout", "all-at-once").code == 4
    run("list")
    run("status", NAME)
    terminal.cloud.write_log("a line")
    run("logs", NAME)
    run("top", NAME, "--once")
    captured = ("--capture-data", "s3://peagle-captured/a")
    terminal.cloud.buckets["peagle-captured"] = {}
    topic = f"arn:aws:sns:us-east-1:{ACCOUNT}:on-call"
    terminal.cloud.topics[topic] = {"SubscriptionsConfirmed": "1"}
    observed = with_keys(home(), FIRST, alarm_topic=topic)
    run(*observed, "--yes", "--k", "4", "--observe", *captured)
    run("drift", NAME)
    theirs = {"ID": "theirs", "Status": "Enabled", "Expiration": {"Days": 9}}
    terminal.cloud.lifecycles["peagle-captured"].insert(0, theirs)
    kept = with_keys(home(), FIRST, capture_retention=0)
    run(*kept, "--yes", "--k", "4", *captured)
    run("drift", NAME)
    run(*FIRST, "--yes", "--k", "4")
    run("invoke", NAME, "Hello")
    quotas, terminal.cloud.quotas = terminal.cloud.quotas, {"ml.g5.xlarge for endpoint usage": 9}
    for end in ("drop", "promote"):
        run("compare", NAME, "--with", "tiny --k 2", "--yes")
        run("compare", NAME, "--share", "50%", "--yes")
        run("compare", NAME)
        run(end, NAME, "--yes")
    run("rollback", NAME, "--yes")
    terminal.cloud.quotas = quotas
    run("token", NAME)
    run("invoke", NAME, "Hello", "--no-stream")
    run("prove", NAME)
    terminal.cloud.log_groups = {f"/aws/sagemaker/Endpoints/{NAME}"}
    for alarm in _ALARMS:
        terminal.cloud.put_alarm(alarm, **foreign_alarm(NAME))
    company = with_keys(home(), FIRST, **_COMPANY)
    run(*company, "--yes", "--k", "4")
    run(*company, "--yes", "--k", "4", "--tag", "stage=test")
    run("destroy", NAME, "--previous", "--yes")
    _scaling(recorder, terminal)
    run("status", NAME)
    run("destroy", NAME, "--all", "--yes")
    run(*FIRST, "--yes", "--ttl", "8h")
    run(*FIRST, "--yes", "--ttl", "9h")
    terminal.cloud.now += 10 * 3600
    run("reap", "--yes", "--region", "us-east-1")
    by_template(terminal.world, a_plan(), "terraform")
    _unlucky(recorder, terminal, patch)
    _copies(recorder, patch)
    _drift_elsewhere(recorder, patch)


def _drift_elsewhere(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    """A machine without a record compares a plan file: all topics, and weights in S3."""
    terminal = Terminal(patch)
    terminal.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 4
    for name in ("config.json", "model.safetensors"):
        terminal.cloud.put("peagle-models", f"tiny/{name}", b"{}")
    plan = str(home() / "plan.json")
    from_s3 = ("--model-source", "s3://peagle-models/tiny/")
    captured = ("--capture-data", "s3://peagle-captured/prompts/")
    terminal.cloud.buckets["peagle-captured"] = {}
    observed = ("--observe", *captured)
    more = (*observed, "--rollout", "all-at-once", "--ttl", "9h")
    steps: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("plan --online", ("plan", "--online", *FIRST[1:], *from_s3, *more, "-o", plan)),
        ("deploy", ("deploy", plan, "--yes")),
        ("drift", ("drift", plan)),
        ("destroy", ("destroy", NAME, "--all", "--yes")),
    )
    for command, words in steps:
        if command == "drift":
            without_record(terminal)
        with recorder.command(command):
            done = terminal.run(*words)
            assert done.code == 0, done.err + done.out


def _copies(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    """Copies of the engine on one instance."""
    terminal = Terminal(patch)
    terminal.cloud.quotas["ml.g5.12xlarge for endpoint usage"] = 4
    terminal.cloud.log_groups = {f"/aws/sagemaker/InferenceComponents/{NAME}"}
    deploy = ("deploy", "tiny", "--instance-type", "ml.g5.12xlarge", "--copies", "4", "--yes")
    plain: tuple[tuple[str, ...], ...] = (
        deploy,
        (*deploy, "--tag", "team=web"),
        (*deploy, "--ttl", "8h", "--observe"),
        (*deploy, "--k", "3"),
        ("top", NAME, "--once"),
        ("rollback", NAME, "--yes"),
        ("invoke", NAME, "Hello"),
        ("logs", NAME),
        ("destroy", NAME, "--all", "--yes"),
    )
    for words in plain:
        with recorder.command("copies"):
            done = terminal.run(*words)
            assert done.code == 0, done.err
    zero = (*deploy, "--scale-to-zero", "--max-instances", "2")
    scaled: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("deploy with scaling", zero),
        ("drift with scaling", ("drift", NAME)),
        ("scale", ("scale", NAME, "--min", "1", "--yes")),
        ("scale", ("scale", NAME, "--off", "--to", "2", "--yes")),
        ("deploy with scaling", (*zero, "--k", "3")),
        ("destroy", ("destroy", NAME, "--yes")),
    )
    for command, words in scaled:
        with recorder.command(command):
            done = terminal.run(*words)
            assert done.code == 0, done.err


def _scaling(recorder: Recorder, terminal: Terminal) -> None:
    """Bounds are deployed, changed, and replaced by a fixed number."""
    bounds = ("--k", "4", "--max-instances", "2")
    runs = (
        ("deploy with scaling", (*FIRST, "--yes", *bounds)),
        ("scale", ("scale", NAME, "--max", "3", "--yes")),
        ("scale", ("scale", NAME, "--off", "--to", "2", "--yes")),
        ("deploy with scaling", (*FIRST, "--yes", *bounds)),
    )
    for command, words in runs:
        with recorder.command(command):
            done = terminal.run(*words)
            assert done.code == 0, done.err


def _unlucky(recorder: Recorder, terminal: Terminal, patch: pytest.MonkeyPatch) -> None:
    """AWS has no free instance of the first type, and an update fails its proof."""
    for name in ("ml.g5.xlarge", "ml.g6.xlarge"):
        terminal.cloud.quotas[f"{name} for endpoint usage"] = 4
    terminal.cloud.next_scripts = [[("Creating", None), ("Failed", NO_INSTANCE)]]
    with recorder.command("deploy on another type"):
        done = terminal.run(*FIRST, "--yes", "--fallback-instance-types", "ml.g6.xlarge")
        assert done.code == 0, done.err
    with recorder.command("deploy and roll back"), patch.context() as failing:
        failing.setattr(terminal.cloud.engine, "acceptance", 1.1)
        done = terminal.run(
            "deploy", "tiny", "--instance-type", "ml.g6.xlarge", "--yes", "--k", "4"
        )
        assert (done.code, "serves" in done.err) == (3, True), done.err
    with recorder.command("destroy"):
        done = terminal.run("destroy", NAME, "--yes")
        assert done.code == 0, done.err


def _warm(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(patch)
    for part in ("target", "drafter"):
        for name in ("config.json", "model.safetensors"):
            terminal.cloud.put("peagle-models", f"pair/{part}/{name}", b"{}")
    uri = "s3://peagle-models/pair"
    words = ("--instance-type", "ml.g5.xlarge", "--image", IMAGE, "--name", "peagle-warm")
    with recorder.command("warm"):
        done = terminal.run("warm", "tiny", *words, "--model-source", f"{uri}/target/",
                            "--drafter", f"{uri}/drafter/", "--yes")  # fmt: skip
    assert done.code == 0, done.err


def _weights(recorder: Recorder, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """A copy to a new bucket that is interrupted and repeated, one from S3, and the removal."""
    use_small_parts(patch)
    place = weights_prefix("s3://peagle-models/pair")
    target = folder_weights(write_model(folder / "target", 4 * PART))
    with mock_aws():
        aws = connect("us-east-1", keys=Keys("testing", "testing"))
        with recorder.command("weights sync"):
            with suppress(KeyboardInterrupt):
                sync_weights(aws, plan_for(aws, place, target=target), _interrupted)
            bucket = Bucket(aws, place.bucket)
            bucket.call("create_multipart_upload", Key=place.file_key("target", "config.json"))
            sync(aws, place, target=target)
        copied = {"config.json": CONFIG, "model.safetensors": shard("w", 3 * PART)}
        for name, content in copied.items():
            aws.call("s3", "put_object", Bucket="peagle-models", Key=f"head/{name}", Body=content)
        with recorder.command("weights sync"):
            origin = Weights(kind="s3", location="s3://peagle-models/head/", engine_path="")
            sync(aws, weights_prefix("s3://peagle-models/other"), target=origin)
        key = place.file_key("target", "model.safetensors")
        aws.call("s3", "delete_object", Bucket=place.bucket, Key=key)
        aws.call("s3", "create_multipart_upload", Bucket=place.bucket, Key=key)
        with recorder.command("weights remove"):
            remove_weights(aws, inspect_weights(aws, place))
    shutil.rmtree(folder / "target")


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def _images(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    context = [make_member("Dockerfile", b"FROM base\n")]
    order = codebuild.BuildRequest("peagle-tiny", "v1", "", context, "d1")
    with mock_aws():
        aws = connect("us-east-1", keys=Keys("testing", "testing"))
        with recorder.command("image"):
            ecr.login(aws, "host")
            ecr.digest_by_address(aws, "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0")
            codebuild.build_remotely(aws, order, lambda line: None, _NoPause())
            bounded = replace(order, tag="v2", company=Company(
                permissions_boundary="arn:aws:iam::123456789012:policy/boundary",
                tags={"team": "ml"},
            ))  # fmt: skip
            codebuild.build_remotely(aws, bounded, lambda line: None, _NoPause())
            log = Tail(aws, "", 0.0, group="/aws/codebuild/peagle-tiny", prefix="1")
            assert not [*log.new()]  # a build's log, which moto does not have
            with patch.context() as interrupting, suppress(KeyboardInterrupt):
                interrupting.setattr(codebuild, "_wait", _interrupted)
                codebuild.build_remotely(aws, order, lambda line: None, _NoPause())
        with recorder.command("destroy --images"):
            remove_image_resources(aws, lambda line: None)


def _training(recorder: Recorder, folder: Path) -> None:
    """A job on a type with volumes, for a company with a key; its stop, and its head."""
    company = Company(kms_key="alias/models", tags={"team": "ml"})
    instance = load_catalog().instances.instances[0].model_copy(update={"nvme_gb": 0})
    file = write(folder, questions(20))
    with mock_aws():
        aws = connect("us-east-1", keys=Keys("testing", "testing"))
        trust = json.dumps(trust_policy(ACCOUNT, SERVICE))
        role = {"RoleName": "peagle-training", "AssumeRolePolicyDocument": trust}
        aws.call("iam", "create_role", **role)
        with recorder.command("train"):
            data = read_training_data([str(file)], lambda: aws)
            options = JobSettings(instance, IMAGE, find_role(aws, None, "train"), 3600, 10**9,
                                 company=company)  # fmt: skip
            find_role(aws, "peagle-training")
            run = make_run("tiny", [], data, default_bucket(aws.account, aws.region))
            find_running_job(aws, run.name)
            name = run.job_name(0)
            start_job(
                aws, run, data, training_job_request(name, run, "tiny", ["train"], options), company
            )
            started = sagemaker_backends[ACCOUNT]["us-east-1"].training_jobs[name]
            started.training_job_status = "InProgress"
            with suppress(NotImplementedError):  # moto has no stop
                stop_job(aws, name)
            started.training_job_status = "Completed"
            [list(tail.new()) for _, tail in follow_job(aws, name)]
            job = describe_job(aws, name)
            packed = folder / "model.tar.gz"
            with tarfile.open(packed, "w:gz") as archive:
                archive.addfile(tarfile.TarInfo("./head/config.json"))
            artifact = S3Uri.parse(job.artifact)
            aws.upload(packed, artifact.bucket, artifact.key, {}, lambda _: None)
            fetch_head(aws, job, folder / "head")


_PLACE = "us-east-1:123456789012"
_ENDPOINT = f"arn:aws:sagemaker:{_PLACE}:endpoint/peagle-pair"
_TARGET = f"arn:aws:application-autoscaling:{_PLACE}:scalable-target/1"
_ALARM = f"arn:aws:cloudwatch:{_PLACE}:alarm:TargetTracking-endpoint/peagle-pair/variant/AllTraffic"
_ALARM_OF_COPIES = f"arn:aws:cloudwatch:{_PLACE}:alarm:TargetTracking-inference-component/peagle-x"
_SCALING = {"application-autoscaling:service-namespace": "sagemaker"}
_IMAGE = f"arn:aws:ecr:{_PLACE}:repository/peagle-tiny"
_STOCK = "arn:aws:ecr:us-east-1:763104351884:repository/vllm"
_LOG = f"arn:aws:logs:{_PLACE}:log-group:/aws/sagemaker/Endpoints/peagle-pair"
_LOG_OF_JOBS = f"arn:aws:logs:{_PLACE}:log-group:/aws/sagemaker/TrainingJobs"
_S3 = {"kms:ViaService": "s3.us-east-1.amazonaws.com"}
_ALARMS = (
    f"TargetTracking-endpoint/{NAME}/variant/AllTraffic-1",
    f"TargetTracking-inference-component/{NAME}-1",
    "peagle-slow",
)
Entry = tuple[str, str, dict[str, str]]
BY_OTHERS: dict[str, list[Entry]] = {
    # Docker pulls the image that another begins FROM, and pushes it.
    "image": [
        *((f"ecr:{action}", _STOCK, {}) for action in (
            "BatchCheckLayerAvailability", "GetDownloadUrlForLayer", "BatchGetImage")),
        *((f"ecr:{action}", _IMAGE, {}) for action in (
            "BatchCheckLayerAvailability", "InitiateLayerUpload", "UploadLayerPart",
            "CompleteLayerUpload", "PutImage")),
    ],
    # SageMaker, with the role of the model: the list of "Execution role permissions" of CreateModel
    # in SageMaker's documentation.
    "SageMaker": [
        ("ecr:GetAuthorizationToken", "*", {}),
        *((f"ecr:{action}", _STOCK, {}) for action in (
            "BatchCheckLayerAvailability", "GetDownloadUrlForLayer", "BatchGetImage")),
        ("cloudwatch:PutMetricData", "*", {}),
        ("cloudwatch:DescribeAlarms", f"arn:aws:cloudwatch:{_PLACE}:alarm:peagle-pair-5xx", {}),
        ("logs:CreateLogGroup", _LOG, {}),
        *((f"logs:{action}", f"{_LOG}:log-stream:AllTraffic/i-1", {}) for action in (
            "CreateLogStream", "PutLogEvents")),
        ("logs:DescribeLogStreams", _LOG, {}),
        ("s3:ListBucket", "arn:aws:s3:::peagle-models", {}),
        ("s3:GetObject", "arn:aws:s3:::peagle-models/pair/target/config.json", {}),
        ("kms:Decrypt", f"arn:aws:kms:{_PLACE}:key/1", _S3),
        # Data capture, to a bucket that may be encrypted.
        ("s3:PutObject", "arn:aws:s3:::peagle-captured/peagle-pair/AllTraffic/1.jsonl", {}),
        ("kms:GenerateDataKey", f"arn:aws:kms:{_PLACE}:key/1", _S3),
    ],
    # The same list: "If you specify a VPC".
    "SageMaker in a VPC": [(action, "*", {}) for action in ROLE_ACTIONS],
    # SageMaker, with the role of a training job: "Execution role permissions" of CreateTrainingJob.
    "SageMaker trains": [
        ("ecr:GetAuthorizationToken", "*", {}),
        *((f"ecr:{action}", _STOCK, {}) for action in (
            "BatchCheckLayerAvailability", "GetDownloadUrlForLayer", "BatchGetImage")),
        ("cloudwatch:PutMetricData", "*", {}),
        ("logs:CreateLogGroup", _LOG_OF_JOBS, {}),
        *((f"logs:{action}", f"{_LOG_OF_JOBS}:log-stream:job/algo-1-1", {}) for action in (
            "CreateLogStream", "PutLogEvents")),
        ("logs:DescribeLogStreams", _LOG_OF_JOBS, {}),
        ("s3:ListBucket", "arn:aws:s3:::peagle-models", {}),
        ("s3:GetObject", "arn:aws:s3:::peagle-models/peagle-train/run/data/train.jsonl", {}),
        ("s3:GetObject", "arn:aws:s3:::peagle-models/pair/target/config.json", {}),
        *((f"s3:{action}", "arn:aws:s3:::peagle-models/peagle-train/run/checkpoints/1", {})
          for action in ("PutObject", "AbortMultipartUpload")),
        *((f"kms:{action}", f"arn:aws:kms:{_PLACE}:key/1", _S3) for action in (
            "Decrypt", "GenerateDataKey")),
    ],
    # A person with the aws command line, as "Auto scaling" in SageMaker's documentation lists it.
    "scaling": [
        *((f"application-autoscaling:{action}", _TARGET, _SCALING) for action in (
            "RegisterScalableTarget", "DeregisterScalableTarget", "PutScalingPolicy",
            "DeleteScalingPolicy")),
        ("application-autoscaling:DescribeScalableTargets", "*", {}),
        ("application-autoscaling:DescribeScalingPolicies", "*", {}),
        ("cloudwatch:DescribeAlarms", "*", {}),
        *((f"cloudwatch:{action}", alarm, {}) for alarm in (_ALARM, _ALARM_OF_COPIES)
          for action in ("PutMetricAlarm", "DeleteAlarms")),
        ("sagemaker:UpdateEndpointWeightsAndCapacities", _ENDPOINT,
         {"aws:ResourceTag/peagle:deployment": "peagle-pair"}),
        ("iam:CreateServiceLinkedRole",
         "arn:aws:iam::123456789012:role/aws-service-role/"
         "sagemaker.application-autoscaling.amazonaws.com/"
         "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint",
         {"iam:AWSServiceName": "sagemaker.application-autoscaling.amazonaws.com"}),
    ],
}  # fmt: skip
"""What other programs do with these policies: action, resource, condition keys."""
