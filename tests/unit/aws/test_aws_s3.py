"""S3: uploads of local weights and checkpoints that are read in parts, with moto and with a server
that fails as S3 and compatible services do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws
from moto.server import ThreadedMotoServer

from peagle.aws import s3
from peagle.aws.client import Aws, Keys, connect
from peagle.aws.s3 import S3Source, Upload
from peagle.checkpoints import Checkpoint, read_checkpoint
from peagle.checkpoints.contents import files_below
from peagle.errors import CheckpointError, PeagleError
from peagle.weights.bucket import Bucket
from tests.support import raises_code
from tests.unit.aws.conftest import moto_connection
from tests.unit.checkpoints.files import CONFIG, ONE, index_of, weights
from tests.unit.checkpoints.web import MEGABYTE, Reply, Web, WebRequest, serve

BUCKET = "peagle-sagemaker-eu-west-1-123456789012"
PREFIX = "peagle-toolkit/name/drafter/"
KEYS = Keys("AKIDEXAMPLE", "a-secret")
MODELS = "my-models"
INDEX = "model.safetensors.index.json"
FILES = {
    "config.json": CONFIG,
    "a.safetensors": ONE,
    "b.safetensors": weights({"w": ("U8", (2 * MEGABYTE,))}),
    INDEX: index_of(fc__weight="a.safetensors", w="b.safetensors"),
    "tokenizer.json": b'{"model": {"vocab": {"a": 0}}}',
}
BESIDE = (
    "big/model/", "big/model", "big/model/original/model.safetensors", "big/model/config.json/x",
    "big/model-2/config.json", "deep/er/config.json",
)  # fmt: skip


@pytest.fixture
def west() -> Iterator[Aws]:
    with mock_aws():
        yield moto_connection("eu-west-1")


@pytest.fixture
def upload(head: Path, west: Aws) -> Upload:
    s3.create_bucket(west, BUCKET)
    return Upload(BUCKET, PREFIX, files_below(head), "hash")


def stored_keys(aws: Aws) -> set[str]:
    return set(Bucket(aws, BUCKET).sizes(""))


def send(aws: Aws, upload: Upload) -> tuple[int, int]:
    """The bytes that were sent, and those of files that were there."""
    sent: list[int] = []
    present: list[int] = []
    s3.upload_missing(aws, upload, sent.append, present.append)
    return sum(sent), sum(present)


def test_a_bucket_is_created_in_its_region_tagged_as_ours_and_deleted_when_empty(west: Aws) -> None:
    assert not s3.bucket_exists(west, BUCKET)
    s3.create_bucket(west, BUCKET)
    s3.create_bucket(west, BUCKET)
    assert s3.bucket_exists(west, BUCKET)
    assert s3.is_our_bucket(west, BUCKET)
    assert s3.default_bucket("123456789012", "eu-west-1") == BUCKET
    assert s3.delete_bucket(west, BUCKET)
    assert not s3.bucket_exists(west, BUCKET)
    place = {"LocationConstraint": "eu-west-1"}
    west.call("s3", "create_bucket", Bucket="users-own", CreateBucketConfiguration=place)
    assert s3.bucket_exists(west, "users-own")
    assert not s3.is_our_bucket(west, "users-own")


def test_only_changed_files_are_uploaded_again(west: Aws, upload: Upload, head: Path) -> None:
    assert send(west, upload) == (upload.size, 0) == (7002, 0)
    assert stored_keys(west) == {f"{PREFIX}config.json", f"{PREFIX}model.safetensors"}
    assert send(west, upload) == (0, upload.size)
    (head / "config.json").write_text("[1]")
    assert send(west, Upload(BUCKET, PREFIX, files_below(head), "hash")) == (3, 7000)


def test_only_the_named_objects_and_their_unfinished_uploads_are_deleted(
    west: Aws, upload: Upload
) -> None:
    send(west, upload)
    west.call("s3", "put_object", Bucket=BUCKET, Key=f"{PREFIX}theirs", Body=b"x")
    for key in (upload.keys[0], "theirs"):
        west.call("s3", "create_multipart_upload", Bucket=BUCKET, Key=key)
    for _ in range(2):
        s3.delete_objects(west, BUCKET, upload.keys)
    assert stored_keys(west) == {f"{PREFIX}theirs"}
    left = west.items("s3", "list_multipart_uploads", "Uploads", Bucket=BUCKET)
    assert [entry["Key"] for entry in left] == ["theirs"]
    assert not s3.delete_bucket(west, BUCKET)


@pytest.fixture(scope="module")
def moto() -> Iterator[Aws]:
    """An S3 with a model, a file beside it, and a bucket in another region."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    aws = connect("us-east-1", endpoint_url=f"http://{host}:{port}", keys=KEYS)
    client = aws.client("s3")
    client.create_bucket(Bucket=MODELS)
    for name, content in FILES.items():
        client.put_object(Bucket=MODELS, Key=f"big/model/{name}", Body=content)
        client.put_object(Bucket=MODELS, Key=name, Body=content)
    for key in BESIDE:
        client.put_object(Bucket=MODELS, Key=key, Body=b"")
    yield aws
    server.stop()


@pytest.fixture(scope="module")
def other() -> Iterator[tuple[Web, Aws]]:
    """A server in place of S3, and a connection without retries to it."""
    with pytest.MonkeyPatch.context() as patch, serve(Web()) as web:
        patch.setattr("peagle.aws.client._TIMEOUTS", (1, 10, 60))
        aws = connect("us-east-1", endpoint_url=web.url, keys=KEYS)
        aws.client("s3")
        yield web, aws


@pytest.fixture
def web(other: tuple[Web, Aws]) -> Iterator[Web]:
    """That server, reset."""
    other[0].forget()
    yield other[0]
    other[0].forget()


@pytest.fixture
def aws(other: tuple[Web, Aws]) -> Aws:
    """The connection to that server."""
    return other[1]


def read(aws: Aws, uri: str = f"s3://{MODELS}/big/model") -> Checkpoint:
    return read_checkpoint(S3Source(aws, uri))


def refusal(aws: Aws, kind: type[PeagleError]) -> PeagleError:
    with pytest.raises(kind) as refused:
        read(aws)
    assert refused.value.fix
    return refused.value


def refused(status: int, code: str, expected: str = "Of S3") -> Reply:
    """An error response of S3."""
    text = f"<Error><Code>{code}</Code><Message>{expected}</Message></Error>"
    return Reply(status, text.encode(), {"Content-Type": "application/xml"})


def listing(**sizes: int) -> Reply:
    """A listing of ``big/model/``; double underscores in a name are dots."""
    entries = "".join(
        f"<Contents><Key>big/model/{name.replace('__', '.')}</Key><Size>{size}</Size></Contents>"
        for name, size in sizes.items()
    )
    text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    return Reply(200, text.encode(), {"Content-Type": "application/xml"})


def is_listing(request: WebRequest) -> bool:
    return "list-type=2" in request.path


@pytest.mark.thorough
@pytest.mark.parametrize(
    "uri", [f"s3://{MODELS}/big/model", f"s3://{MODELS}/big/model/", f"s3://{MODELS}"]
)
def test_a_sharded_model_is_read_in_parts(uri: str, moto: Aws) -> None:
    checkpoint = read(moto, uri)
    assert checkpoint.location == "s3" + uri[2:].rstrip("/")
    assert checkpoint.tensors is not None
    assert checkpoint.tensors["w"].size == 2 * MEGABYTE
    assert set(checkpoint.tensors) == {"fc.weight", "w"}
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.vocab_size == 1
    assert checkpoint.bytes_read < 100_000


@pytest.mark.parametrize(("uri", "code"), [
    ("s3://no-such-bucket/x", "no-bucket"),
    (f"s3://{MODELS}/nowhere", "no-objects"),
    (f"s3://{MODELS}/deep", "no-objects"),
    (f"s3://{MODELS}/parts2", "config-missing"),
])  # fmt: skip
def test_an_empty_prefix_is_an_error_about_the_uri(uri: str, code: str, moto: Aws) -> None:
    moto.client("s3").put_object(Bucket=MODELS, Key="parts2/readme", Body=b"")
    with raises_code(code, CheckpointError) as refused:
        read(moto, uri)
    assert refused.value.exit_code == 2


def test_an_object_that_is_gone_is_an_error(web: Web, aws: Aws) -> None:
    web.answer = lambda request: (
        listing(config__json=9) if is_listing(request) else refused(404, "NoSuchKey")
    )
    assert "config.json is gone" in refusal(aws, CheckpointError).message
