"""`peagle bench` with aiperf and real vLLM: the tiny pair on this machine's CPU."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.bench.load import sender_installation
from peagle.engine.machine import Engine
from tests.support import Peagle
from tests.unit.bench.installed import install_mini

pytestmark = [pytest.mark.engine, pytest.mark.install]
NAME = "bench-test"


@pytest.fixture(scope="module", autouse=True)
def installed(
    peagle: Peagle, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """aiperf and a running engine in a home of their own. Where the user has installed this aiperf,
    it is not installed again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PEAGLE_HOME")
        present = sender_installation()
        home = tmp_path_factory.mktemp("bench")
        patch.setenv("PEAGLE_HOME", str(home))
        if present.is_complete():
            (home / "engines").mkdir()
            (home / "engines" / present.folder.name).symlink_to(present.folder)
        done = peagle("bench", "install", "--json")
        assert done.returncode == 0, done.stderr
        done = peagle("local", "up", "tiny", "--name", NAME)
        assert done.returncode == 0, done.stderr
        yield
        peagle("local", "down", "--all")


def test_a_local_engine_is_measured(peagle: Peagle) -> None:
    done = peagle("bench", NAME, "--concurrency", "2", "--prompt-tokens", "48",
                  "--output-tokens", "32", "--requests", "8", "--repetitions", "1",
                  "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (row,) = document["rows"]
    assert document["server"]["pair"] == "peagle/tiny+p-eagle"
    assert row["setting"] == {"drafter": "p-eagle", "k": 7, "imposed_rates": [], "is_known": True}
    assert row["incomplete"] == ""
    # Eight answers of exactly 32 tokens, by the server's count.
    assert [repetition["output_tokens"] for repetition in row["repetitions"]] == [8 * 32]
    assert row["output_tokens"] == 32
    assert row["prompt_tokens"] == pytest.approx(48, abs=12)
    # A step gives as many tokens as the acceptance length, so fewer outputs than tokens.
    assert row["itl"]["count"] < 8 * 31
    assert row["tpot"]["mean"] < row["itl"]["mean"]
    assert 1 < row["acceptance"]["length"] <= 8
    assert len(row["acceptance"]["per_position"]) == 7


@pytest.fixture(scope="module")
def mini(installed: None) -> None:
    """From here on a small load generator in place of aiperf, whose start takes 17 s of a CPU."""
    home = Path(os.environ["PEAGLE_HOME"])
    (home / "engines").rename(home / "aiperf")
    install_mini(home)


@pytest.mark.usefixtures("mini")
def test_its_url_gives_the_same_counters(peagle: Peagle) -> None:
    (engine,) = json.loads(peagle("local", "list", "--json").stdout)["engines"]
    assert engine["name"] == NAME
    done = peagle("bench", engine["openai_base_url"], "--concurrency", "1", "--prompt-tokens",
                  "48", "--output-tokens", "8", "--requests", "2", "--repetitions", "2",
                  "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["setting"] == {"drafter": None, "k": 7, "imposed_rates": [], "is_known": True}
    assert [repetition["output_tokens"] for repetition in row["repetitions"]] == [2 * 8] * 2
    assert row["acceptance"]["drafts"] > 0


@pytest.mark.usefixtures("mini")
def test_a_sweep_measures_each_setting_and_saves_evidence(peagle: Peagle, tmp_path: Path) -> None:
    result, html, catalog = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "mine"
    sweep = ("bench", "tiny", "--sweep", "k=none,5", "--concurrency", "1,2", "--prompt-tokens",
             "48", "--output-tokens", "24", "--repetitions", "1", "-o", str(result))  # fmt: skip
    done = peagle(*sweep, "--save", str(catalog), "--report", str(html), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    settings = [(row["setting"]["k"], row["load"]["concurrency"]) for row in document["rows"]]
    assert settings == [(0, 1), (0, 2), (5, 1), (5, 2)]
    assert all(row["tokens_per_second"]["value"] > 0 for row in document["rows"])
    assert document["rows"][0]["acceptance"] is None
    assert 1 < document["rows"][2]["acceptance"]["length"] <= 6
    assert "<svg" in html.read_text()
    assert peagle("--catalog", str(catalog), "catalog", "check").returncode == 0
    # The same command measures nothing again; no engine of the sweep is left.
    again = peagle(*sweep, "--json")
    assert json.loads(again.stdout)["rows"] == document["rows"]
    engines = json.loads(peagle("local", "list", "--json").stdout)["engines"]
    assert [engine["name"] for engine in engines] == [NAME]
