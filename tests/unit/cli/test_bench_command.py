"""``peagle bench`` against a simulated server: results, failures in the middle."""

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.load import SenderMissing, find_sender, sender_installation
from peagle.bench.targets import OpenAiServer
from peagle.engine.machine import MARKER
from tests.support import Peagle
from tests.unit.bench.installed import install_mini
from tests.unit.bench.simulated import SimulatedTiming, simulated_server

FAST = SimulatedTiming(ttft=0.01, itl=0.002)
SMALL = ("--prompt-tokens", "32", "--output-tokens", "16", "--requests", "4")


@pytest.fixture(autouse=True)
def _sender(own_home: Path) -> None:
    install_mini(own_home)


@pytest.mark.thorough
def test_the_document_has_all_that_was_measured(peagle: Peagle) -> None:
    with simulated_server(FAST) as server:
        done = peagle("bench", server.base_url, "--concurrency", "2", *SMALL, "--json",
                      "--price-per-hour", "3.6")  # fmt: skip
    document = json.loads(done.stdout)
    (row,) = document["rows"]
    assert document["server"]["model"] == "simulated"
    assert document["sender"] == ["aiperf", "0.13.0"]
    assert document["incomplete"] == ""
    assert len(row["repetitions"]) == 3
    # Nominal: eight outputs of two tokens, 10 ms to the first and 2 ms between them.
    assert row["ttft"]["p50"] >= 0.01
    assert row["itl"]["p50"] == pytest.approx(0.002, abs=0.002)
    cost = 3.6 / 3600 / row["tokens_per_second"]["value"] * 1e6
    assert row["usd_per_million_tokens"] == pytest.approx(cost)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fails_with", "message"), [(500, "EngineCore died"), (0, "requests failed")]
)
def test_a_server_that_fails_in_the_load_keeps_what_was_measured(
    peagle: Peagle, fails_with: int, message: str
) -> None:
    # Three requests of the probe, two of the warm-up, four of the first repetition.
    timing = SimulatedTiming(ttft=0.01, itl=0.002, fails_after=9, fails_with=fails_with)
    with simulated_server(timing) as server:
        done = peagle("bench", server.base_url, "--concurrency", "2,4", *SMALL, "--json")
    assert done.returncode == 4
    document = json.loads(done.stdout)
    (row,) = document["rows"]  # the second load is not tried
    assert len(row["repetitions"]) == 1
    assert "1 of 3 repetitions are complete" in row["incomplete"]
    assert message in done.stderr


@pytest.mark.parametrize(("timing", "exit_code", "message"), [
    (SimulatedTiming(fails_after=0), 4, "EngineCore died"),
    (SimulatedTiming(ttft=0.01, itl=0.002, fails_after=3), 4, "no request of the load"),
    (SimulatedTiming(streams=False), 2, "sends no streams"),
])  # fmt: skip
def test_a_server_that_cannot_be_measured_is_one_error(
    peagle: Peagle, timing: SimulatedTiming, exit_code: int, message: str
) -> None:
    with simulated_server(timing) as server:
        done = peagle("bench", server.base_url, *SMALL)
    assert done.returncode == exit_code
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("arguments", "message"), [
    (("http://127.0.0.1:9",), "does not respond"),
    (("http://user@host",), "is not the URL of a server"),
    (("local",), "no engine of this machine is running"),
    (("http://h", "--workload", "nothing"), "there is no workload and no file nothing"),
    (("http://h", "--concurrency", "0"), "is no list of numbers"),
    (("http://h", "--repetitions", "0"), "needs a number of at least 1 and at most 50"),
    (("http://h", "--turns", "3"), "short-prompt has single prompts"),
    (("http://h", "--workload", "chat", "--requests", "4"), "one per stream"),
    (("http://h", "--workload", "chat", "--turns", "17"), "too short for 17 turns"),
])  # fmt: skip
def test_bad_input_is_one_error(peagle: Peagle, arguments: tuple[str, ...], message: str) -> None:
    done = peagle("bench", *arguments)
    assert done.returncode in (2, 4)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_the_key_reaches_the_server_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """``mini_aiperf`` checks that the configuration does not have it."""
    body: dict[str, Any] = {"messages": [{"content": "a"}], "max_tokens": 4, "stream": True}
    with simulated_server(FAST) as simulated:
        server = OpenAiServer(simulated.base_url, "simulated", key="a-secret-key")
        sent = find_sender().send(server, [[body], [body, body]], 2)
    assert [request.repetition for request in sent.requests] == [0, 1, 1]
    assert simulated.keys == {"Bearer a-secret-key"}


def test_without_the_sender_the_fix_installs_it(peagle: Peagle, own_home: Path) -> None:
    (sender_installation().folder / MARKER).unlink()
    with simulated_server(FAST) as server:
        done = peagle("bench", server.base_url)
    assert done.returncode == 2
    assert "peagle bench install" in done.stderr
    assert json.loads(peagle("bench", "status", "--json").stdout)["version"] is None
    with pytest.raises(SenderMissing):
        find_sender()
