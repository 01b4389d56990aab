"""The file with the address of a built image."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.errors import UserError
from peagle.render.image_names import read_image_address

ADDRESS = f"111122223333.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:{'0a' * 32}"


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
