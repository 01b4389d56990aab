"""Image names that are valid for Docker and ECR, those that are not, and the file with an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.errors import UserError
from peagle.render.image import (
    has_host,
    parse_tag,
    read_image_address,
    split_image,
    without_tag,
)
from tests.support import raises_code

DIGEST = "sha256:" + "a" * 64

ADDRESS = f"111122223333.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "name", "digest"),
    [
        ("debian", "debian", None),
        ("debian:bookworm-slim", "debian:bookworm-slim", None),
        ("a/b__c/d.e-f:V1", "a/b__c/d.e-f:V1", None),
        ("localhost:5000/x", "localhost:5000/x", None),
        (f"1.dkr.ecr.us-east-1.example.com/vllm:1@{DIGEST}",
         "1.dkr.ecr.us-east-1.example.com/vllm:1", DIGEST),
    ],
)  # fmt: skip
def test_the_name_and_the_digest_of_an_image(text: str, name: str, digest: str | None) -> None:
    assert split_image(text) == (name, digest)


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:", ":a", "a b", "a\n", "A:1", "a//b", "/a", "a/", "-a", "a@b", "http://x/y",
     "a:" + "x" * 129, "a" * 600, "ä", "a:1:2", f"a@{DIGEST}0"],
)  # fmt: skip
def test_an_invalid_image_name_is_refused(text: str) -> None:
    with raises_code("invalid-image-name", UserError) as refused:
        split_image(text)
    assert "debian:bookworm-slim" in refused.value.fix


@pytest.mark.parametrize("text", ["peagle-tiny:1", "team/my.repo:V1_x", "a1:" + "x" * 128])
def test_a_tag_is_name_and_tag(text: str) -> None:
    assert ":".join(parse_tag(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "myrepo",
        "team/repo",
        "r:",
        ":x",
        "r:x",  # ECR requires two characters
        "UPPER:1",
        "Bad:Tag:1",
        "a__b:1",  # valid for Docker, not for ECR
        "ab:1\n",
        DIGEST,
        "host:5000/r",
    ],
)
def test_a_tag_that_docker_or_ecr_would_refuse_is_refused_with_an_example(text: str) -> None:
    with raises_code("invalid-image-name", UserError) as refused:
        parse_tag(text)
    assert "peagle-tiny:1" in refused.value.fix


@pytest.mark.parametrize(
    "text",
    ["host:5000/r:1", "localhost/r:1", "1.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:1"],
)
def test_a_tag_with_a_registry_host_names_the_option_that_takes_it(text: str) -> None:
    with raises_code("invalid-image-name", UserError) as refused:
        parse_tag(text)
    assert repr(text) in refused.value.message
    assert "--registry" in refused.value.fix


def test_hosts_and_tags() -> None:
    assert has_host("localhost/a")
    assert has_host("a:5000/b")
    assert not has_host("team/b:1")
    assert not has_host("b:1")
    assert without_tag("a:5000/b:1") == "a:5000/b"
    assert without_tag("a:5000/b") == "a:5000/b"


def test_the_address_is_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "image.txt"
    file.write_text(f"{ADDRESS}\n")

    assert read_image_address(file) == ADDRESS


def test_without_the_file_the_fix_is_the_command_that_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "image.txt"

    with pytest.raises(UserError) as missing:
        read_image_address(file)

    assert missing.value.command[-2:] == ("--address-file", str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ADDRESS.partition("@")[0], "has no digest"),
        ("", "is not an image name"),
        ("x" * 2000, "image.txt"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "image.txt"
    file.write_text(text)

    with pytest.raises(UserError) as wrong:
        read_image_address(file)

    assert message in wrong.value.message
