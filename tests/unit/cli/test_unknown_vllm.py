"""A vLLM version that the catalogue does not have: fixes name options that the command has, and
plan and check agree about the user's own image."""

from __future__ import annotations

import re

import click
import pytest

from peagle.cli.main import cli
from tests.support import in_process

IMAGE = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/vllm@sha256:{'0' * 64}"

LINES = {
    "bench sweep": ("tiny", "--sweep", "k=1,2"),
    "check": ("tiny",),
    "deploy": ("tiny", "--sandbox", "--yes"),
    "image build": ("tiny",),
    "local up": ("tiny",),
    "plan": ("tiny",),
    "render": ("terraform", "tiny", "--output", "rendered"),
    "verdict": ("tiny", "--gpu", "L4"),
    "warm": ("tiny",),
}
"""The commands that need an image, or know the times of one, with their arguments."""


def options_of(name: str) -> set[str]:
    group: click.Command = cli
    for word in name.split():
        assert isinstance(group, click.Group)
        below = group.get_command(click.Context(cli), word)
        assert below is not None
        group = below
    return {option for parameter in group.params for option in parameter.opts}


@pytest.mark.parametrize("name", LINES)
def test_the_fix_names_options_of_the_command(name: str) -> None:
    done = in_process(*name.split(), *LINES[name], "--vllm", "0.99.0")
    shown = done.out if name == "check" else done.error
    assert "the catalogue has no image with vLLM 0.99.0" in shown
    (fix,) = re.findall(r"use (--vllm [^)\n]+)", shown)
    assert {*re.findall(r"--[a-z-]+", fix)} <= options_of(name)
    near = fix.split(",")[0].split()
    accepted = in_process("check", "tiny", *near).out
    assert "runtime-unknown" not in accepted


@pytest.mark.parametrize("command", ["check", "plan"])
def test_an_own_image_with_a_newer_version_has_a_note(command: str) -> None:
    def notes(version: str) -> list[str]:
        done = in_process(command, "tiny", "--vllm", version, "--image", IMAGE, "--json")
        findings = done.document["findings"]
        return [finding["code"] for finding in findings if finding["where"] == "vllm"]

    assert notes("0.99.0") == ["vllm-newer-than-catalogue"]
    assert notes("0.28.0") == []
