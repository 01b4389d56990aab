"""`peagle bench` with aiperf and real vLLM: the tiny pair on this machine's CPU."""

import json
from collections.abc import Iterator

import pytest

from peagle.bench.load import installed_sender
from peagle.engine.machine import Engine
from tests.support import Peagle

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
        present = installed_sender()
        home = tmp_path_factory.mktemp("bench")
        patch.setenv("PEAGLE_HOME", str(home))
        if present:
            folder = present.program.parents[1]
            (home / "engines").mkdir()
            (home / "engines" / folder.name).symlink_to(folder)
        done = peagle("bench", "install", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["megabytes"] < 400
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
