"""Reading from the Hub, a server on loopback: requests, token, redirects, refusals."""

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.checkpoints import Checkpoint, read_checkpoint
from peagle.checkpoints.hub import Hub, HubSource
from peagle.errors import CheckpointError, HubFailed
from tests.support import raises_code
from tests.unit.checkpoints.fake_hub import REPO, SIGNED, FakeHub, refused, running
from tests.unit.checkpoints.files import CONFIG, ONE, OTHER, head_of, index_of
from tests.unit.checkpoints.web import MEGABYTE, Reply

TOKEN = "hf_a-secret"
LARGE = 300 * MEGABYTE
INDEX = "model.safetensors.index.json"
TOKENIZER = b'{"model": {"vocab": {"a": 0}}}' + b" " * 2000


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A sharded model; one shard claims to have 300 MB."""
    hub = FakeHub()
    large = head_of({"w": ("U8", (LARGE,))})
    hub.files = {
        "config.json": CONFIG,
        INDEX: index_of(fc__weight="a.safetensors", w="b.safetensors"),
        "a.safetensors": ONE,
        "b.safetensors": large,
        "tokenizer.json": TOKENIZER,
        "model.safetensors": OTHER,
    }
    hub.sizes = {"b.safetensors": len(large) + LARGE}
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        yield hub


def read(revision: str | None = None, seconds: float = 30, repo: str = REPO) -> Checkpoint:
    return read_checkpoint(HubSource(repo, revision), seconds=seconds)


def refusal(revision: str | None = None, seconds: float = 30) -> CheckpointError:
    with pytest.raises(CheckpointError) as refused:
        read(revision, seconds)
    assert REPO in refused.value.message
    assert TOKEN not in str(refused.value)
    assert SIGNED not in str(refused.value)
    assert refused.value.fix
    return refused.value


@pytest.mark.thorough
def test_a_sharded_model_is_read_in_parts(hub: FakeHub) -> None:
    checkpoint = read()
    assert checkpoint.location == REPO
    assert checkpoint.tensors is not None
    assert {*checkpoint.tensors} == {"fc.weight", "w"}
    assert checkpoint.tensors["w"].size == LARGE
    assert hub.sent < MEGABYTE
    assert not [request for request in hub.requests if request.path.endswith("/model.safetensors")]


def test_digests_are_those_of_the_listing(hub: FakeHub) -> None:
    source = HubSource(REPO)
    assert source.names()["tokenizer.json"] == len(TOKENIZER)
    assert source.digests("tokenizer.json") == {"sha256": hashlib.sha256(TOKENIZER).hexdigest()}


@pytest.mark.parametrize("where", ["HF_TOKEN", "login"])
def test_the_token_goes_to_the_hub_and_never_to_the_store(
    where: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.token = TOKEN
    if where == "login":
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "token").write_text(f"{TOKEN}\n")
    else:
        monkeypatch.setenv(where, TOKEN)
    assert read().tensors is not None
    assert all(
        request.headers["Authorization"] == f"Bearer {TOKEN}" for request in hub.hub.requests
    )
    assert hub.store.requests
    assert not [request for request in hub.store.requests if "Authorization" in request.headers]
    assert TOKEN not in repr(Hub.of_environment())


@pytest.mark.parametrize("entry", [
    {"type": "file", "path": 3, "size": 1}, {"type": "file", "path": "a", "size": "many"},
    {"path": "a", "size": 1}, "config.json", 7,
])  # fmt: skip
def test_another_listing_than_the_hubs_is_refused(hub: FakeHub, entry: object) -> None:
    hub.refusal = Reply(200, json.dumps([entry]).encode())
    with raises_code("hub-endpoint", CheckpointError):
        HubSource(REPO).names()


def test_only_files_of_the_top_level_are_listed(hub: FakeHub) -> None:
    entries = [
        {"type": "directory", "path": "original", "size": 0},
        {"type": "file", "path": "original/config.json", "size": 2},
        {"type": "file", "path": "config.json", "size": 2},
        {"type": "file", "path": "damaged", "size": -2},
    ]
    hub.refusal = Reply(200, json.dumps(entries).encode())
    assert HubSource(REPO).names() == {"config.json": 2, "damaged": 0}


@pytest.mark.parametrize("token", ["hf_a-secret\nX-Other: 1", "hf_\u20ac-secret"])
def test_an_invalid_token_is_neither_sent_nor_shown(
    token: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    error = refusal()
    assert "secret" not in str(error)
    assert hub.requests == []


@pytest.mark.parametrize(("reply", "token", "code"), [
    (refused(401, "GatedRepo"), None, "hub-gated"),
    (refused(403, "GatedRepo"), TOKEN, "hub-gated"),
    (refused(401, "RepoNotFound"), None, "hub-not-found"),
    (refused(401), None, "hub-not-found"),
    (refused(401), TOKEN, "hub-not-found"),
    (refused(404, "RepoNotFound"), TOKEN, "hub-not-found"),
    (refused(403), TOKEN, "hub-not-found"),
    (refused(404, "EntryNotFound"), None, "hub-failed"),
    (refused(429), TOKEN, "hub-failed"),
    (refused(503), None, "hub-failed"),
])  # fmt: skip
@pytest.mark.parametrize("part", ["listing", "files"])
def test_a_refusal_has_the_code_of_its_cause(
    part: str, reply: Reply, token: str | None, code: str, hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    if part == "listing":
        hub.refusal = reply
    else:
        hub.refused_files = reply
    error = refusal()
    assert error.code == code
    signs_in = code == "hub-not-found" and not token
    assert tuple(error.command) == (("hf", "auth", "login") if signs_in else ())
    later = code == "hub-failed"
    assert error.exit_code == (4 if later else 2), "4: may succeed later"
    if code == "hub-gated":
        assert f"{hub.hub.url}/{REPO}" in error.fix


def test_an_unknown_revision_is_reported(hub: FakeHub) -> None:
    assert refusal("no-such-branch").code == "hub-no-revision"


def test_the_response_of_another_server_is_refused(hub: FakeHub) -> None:
    for body in (b"<html>", b'[{"type": "file"}]'):
        hub.refusal = Reply(200, body)
        with raises_code("hub-endpoint", CheckpointError) as refused:
            read()
        assert "HF_ENDPOINT" in refused.value.fix


@pytest.mark.parametrize("location", [None, "ftp://x/y", "file:///etc/passwd", "http://[::1"])
def test_a_redirect_must_have_an_http_url(location: str | None, hub: FakeHub) -> None:
    hub.refusal = Reply(302, b"", {"Location": location} if location else {})
    assert refusal().code == "hub-failed"


def test_offline_mode_sends_nothing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            error = refusal()
            assert (error.code, name in error.message) == ("hub-offline", True)
    assert hub.requests == []


@pytest.mark.parametrize("endpoint", ["huggingface.co", "http://", "https://me:secret@mirror"])
def test_an_endpoint_must_be_a_url(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with raises_code("hub-endpoint", CheckpointError) as refused:
        HubSource(REPO)
    assert "HF_ENDPOINT" in refused.value.message
    assert "https://" in refused.value.fix
    assert "secret" not in str(refused.value)


def test_a_refused_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    error = refusal()
    assert "cannot be reached" in error.message
    assert error.exit_code == 4, "not the user's mistake"


@pytest.mark.thorough
def test_a_silent_hub_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = Hub(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.2)
        with raises_code("hub-failed", HubFailed) as refused:
            read_checkpoint(HubSource(REPO, hub=hub))
    assert "within 0.2 s" in refused.value.message


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["listing", "header"])
def test_a_trickling_response_times_out(where: str, hub: FakeHub) -> None:
    if where == "listing":
        hub.refusal = Reply(200, hub.hub.trickle(), length=MEGABYTE)
    else:
        hub.store.answer = lambda request: Reply(206, hub.store.trickle(), length=MEGABYTE)
    begin = time.monotonic()
    assert "could not be read within 0.5 s" in refusal(seconds=0.5).message
    assert time.monotonic() - begin < 10


def test_no_file_is_downloaded_from_a_server_without_ranges(hub: FakeHub) -> None:
    hub.honours_ranges = False
    checkpoint = read()
    assert checkpoint.tensors is not None
    # The bytes in the buffers of the two sockets were sent but not read.
    assert hub.sent < LARGE / 10
    assert checkpoint.bytes_read < MEGABYTE
