"""24 seconds of ``tests.soak``: nothing breaks, and a killed request gets an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak import __main__ as soak

pytestmark = [pytest.mark.sandbox, pytest.mark.exhaustive]


def test_streams_survive_updates_and_drains_and_kills_are_errors(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soak, "ACTS_APART", (0.5, 1.5))
        code = soak.main(["--minutes", "0.4", "--clients", "4", "--json", str(report)])
    sandbox, container = json.loads(report.read_text())["targets"]
    assert (sandbox["missed"], container["missed"]) == ({}, {}), (sandbox, container)
    assert code == 0
    for document in (sandbox, container):
        assert document["streams"]["complete"] > 20, document
        assert document["acts"], document
