"""The lossless check of a sweep: every setting is compared with the target, each asked once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.lossless import SweepLossless, sweep_lossless
from peagle.bench.result import BenchSetting
from peagle.catalog import load_catalog
from peagle.errors import UserError
from tests.support import raises_code
from tests.unit.bench.drafting import prompts_of, target_of

ALONE, ONE, THREE = (BenchSetting(drafter, k) for drafter, k in ((None, 0), ("h", 1), ("h", 3)))
IMPOSED = BenchSetting("h", 3, (0.7, 0.5, 0.3))


class Engines:
    """Engines that write ``A``; the one with K=3 writes ``B``."""

    def __init__(self, check: SweepLossless) -> None:
        self.check = check
        self.opened: list[BenchSetting] = []

    @contextmanager
    def open(self, setting: BenchSetting) -> Iterator[None]:
        self.opened.append(setting)
        token = 66 if setting.k == 3 else 65

        def ask(body: dict[str, Any]) -> dict[str, Any]:
            best = {"top_logprobs": [{f"token_id:{token}": -0.1, "token_id:1": -5.0}]}
            logprobs = best if "logprobs" in body else None
            return {"choices": [{"text": chr(token), "token_ids": [token], "logprobs": logprobs}]}

        self.check.ask(setting, target_of(ask, chat=False))
        yield


@pytest.fixture
def engines() -> Engines:
    return Engines(SweepLossless(prompts_of("a", "b")))


def test_each_setting_is_compared_with_the_target_alone(engines: Engines) -> None:
    for setting in (ALONE, ONE, THREE):
        with engines.open(setting):
            pass
    engines.check.complete((ALONE, ONE, THREE), engines.open)

    one, three = engines.check.results
    assert (one.server, one.against, one.prompts, one.passed) == (
        "h K=1", "no speculation", 2, True,
    )  # fmt: skip
    assert (three.server, three.passed, len(three.unexplained)) == ("h K=3", False, 2)
    assert engines.opened == [ALONE, ONE, THREE], "each once"


def test_engines_whose_rows_were_measured_earlier_are_started(engines: Engines) -> None:
    with engines.open(THREE):
        pass
    engines.check.complete((ONE, THREE), engines.open)

    assert engines.opened == [THREE, ONE, ALONE]
    assert len(engines.check.results) == 2


def test_imposed_acceptance_changes_answers_and_is_not_checked(engines: Engines) -> None:
    with engines.open(IMPOSED):
        pass
    engines.check.complete((IMPOSED,), engines.open)

    assert engines.check.results == ()
    assert engines.opened == [IMPOSED]


def test_the_prompts_are_those_of_the_workload_or_the_catalogue(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"prompt": "Hi"}))
    catalog = load_catalog()

    own = sweep_lossless(catalog, "peagle/tiny+p-eagle", ("short-prompt", str(file)))
    default = sweep_lossless(catalog, "peagle/tiny+p-eagle", ("short-prompt",))

    assert own.prompts.file == str(file)
    assert len(default.prompts.prompts) == len(catalog.targets["peagle/tiny"].proof.prompts)
    with raises_code("prompts", UserError):
        sweep_lossless(catalog, "peagle/tiny", (str(tmp_path),))
