"""Output of ``docker`` in another form than Docker documents: errors with a fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from peagle.errors import EngineError, PeagleError
from peagle.images.context import digests_of
from peagle.images.docker import Docker, docker_info
from peagle.images.inspect import list_images, show_image

IMAGE: dict[str, Any] = {
    "Id": "sha256:1", "Created": "2026", "Size": 7, "RepoDigests": [], "RootFS": {"Layers": []},
    "Config": {"User": "", "Labels": {"peagle.pair": "tiny", "peagle.runtime": "cpu"}},
}  # fmt: skip

OUTPUTS: dict[str, str] = {
    "nothing": "", "no JSON": "Error", "cut short": '[{"Id": "sha', "null": "null", "text": '"x"',
    "a number": "7", "an empty list": "[]", "a list of null": "[null]", "a list of text": '["x"]',
    "deep": "[" * 100_000, "endless digits": "9" * 5_000, "no UTF-8": "\udcff",
    **{
        f"{key} is {json.dumps(value)[:20]}": json.dumps([IMAGE | {key: value}])
        for key in IMAGE
        for value in (None, 7, "x", ["x"], [7], {"Labels": 7}, {"Labels": ["x"]}, {"Layers": 7})
    },
}  # fmt: skip

READERS: dict[str, Callable[[Docker], Any]] = {
    "image": lambda docker: show_image(docker, "chat"),
    "images": list_images,
    "info": docker_info,
    "digests": lambda docker: digests_of(docker.inspect("image", "chat") or {}, "chat"),
}


@pytest.mark.parametrize("reader", READERS)
def test_any_output_is_read_or_one_error(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, str] = {}
    for name, output in OUTPUTS.items():
        monkeypatch.setattr(Docker, "run", lambda *_, output=output, **__: output)
        try:
            READERS[reader](Docker())
        except PeagleError as error:
            text = str(error)
            if "\n" in text or len(text) >= 1_000:
                wrong[name] = text
        except Exception as error:
            wrong[name] = repr(error)
    assert wrong == {}


def test_output_that_is_not_json_is_an_error_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "run", lambda *_, **__: "Error")

    with pytest.raises(EngineError) as raised:
        show_image(Docker(), "chat")
    assert raised.value.fix == "update Docker"
