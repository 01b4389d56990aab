"""``peagle bench --sweep`` and ``bench report``, with simulated servers in place of engines."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from peagle.bench.acceptance import AcceptanceRequest, measure_acceptance
from peagle.bench.evidence import read_result
from peagle.engine import local
from peagle.engine.process import EngineProcess
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError
from peagle.planning import Plan
from peagle.text import plain
from tests.support import Peagle
from tests.unit.bench.drafting import Drafting, prompts_of
from tests.unit.bench.installed import install_mini
from tests.unit.bench.made import RESULT
from tests.unit.bench.simulated import SimulatedServer, SimulatedTiming, simulated_server

FAST = SimulatedTiming(ttft=0.005, itl=0.001)
SWEEP = ("bench", "tiny", "--sweep", "k=none,3", "--concurrency", "1,2", "--prompt-tokens", "16",
         "--output-tokens", "8", "--requests", "2")  # fmt: skip


class Engines:
    """Starts a simulated server instead of an engine. ``error`` is raised by the second start."""

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server
        self.started: list[Plan] = []
        self.stopped: list[str] = []
        self.error: BaseException | None = None

    def start(self, plan: Plan, **_: object) -> LocalEngine:
        self.started.append(plan)
        if self.error and len(self.started) == 2:
            raise self.error
        port = urlsplit(self.server.base_url).port
        assert port
        return LocalEngine(
            name=plan.name, pair=plan.pair, served_as="simulated", vllm=plan.runtime.vllm,
            environment={}, notes=(), started_at=0.0, ready=True,
            process=EngineProcess(pid=0, started=0, port=port, log=""),
        )  # fmt: skip

    def stop(self, name: str, now: bool = False) -> None:
        assert now
        self.stopped.append(name)


@pytest.fixture
def engines(own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Engines]:
    install_mini(own_home)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peagle.engine.runner.find_engine", lambda vllm, gpu: None)
    with simulated_server(FAST) as server:
        engines = Engines(server)
        monkeypatch.setattr(local, "start_local", engines.start)
        monkeypatch.setattr(local, "stop_local", engines.stop)
        yield engines


@pytest.mark.thorough
def test_a_sweep_prints_a_table_and_writes_everything(peagle: Peagle, engines: Engines) -> None:
    done = peagle(*SWEEP, "--slo", "ttft=5", "--save", "mine", "--report", "r.html")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["requests", "no", "speculation", "p-eagle", "K=3"]
    assert "Within ttft=5 (mean times in seconds):" in done.stdout
    assert "Result:   bench-peagle-tiny.json" in done.stdout
    command = "peagle --catalog mine plan peagle/tiny+p-eagle --concurrency 2 --prompt-tokens"
    assert command in done.stdout
    assert [plan.speculation and plan.speculation.k for plan in engines.started] == [None, 3]
    assert all(plan.name == "peagle-tiny-bench" for plan in engines.started)
    assert engines.started[1].speculation
    assert engines.started[1].speculation.acceptance_floor is None
    assert len(engines.stopped) == 2
    assert Path("r.html").read_text().startswith("<!doctype html>")
    (evidence,) = Path("mine/evidence").iterdir()
    assert len(json.loads(evidence.read_text())["speeds"]) == 4
    again = peagle(*SWEEP, "--save", "mine", "--json")
    assert json.loads(again.stdout)["file"] == "bench-peagle-tiny.json"
    assert len(engines.started) == 2
    assert [evidence] == list(Path("mine/evidence").iterdir())


@pytest.mark.thorough
def test_an_imposed_acceptance_is_that_of_the_engines_and_of_the_evidence(
    peagle: Peagle, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of("chat 1", "chat 2")
    measured = measure_acceptance(Drafting().target(), prompts, AcceptanceRequest())
    Path("a.json").write_text(json.dumps(plain(measured)))
    monkeypatch.setattr("peagle.cli.bench.local_image", lambda *_: None)
    imposed = (*SWEEP, "--impose-acceptance", "a.json", "--engine", "docker", "--gpus")
    done = peagle(*imposed, "--save", "mine", "--report", "r.html", "--json")
    assert done.returncode == 0, done.stderr
    rates = list(measured.total.acceptance.per_position)
    alone, drafting = engines.started
    assert alone.speculation is None
    assert drafting.speculation
    assert drafting.speculation.settings["synthetic_acceptance_rates"] == pytest.approx(rates)
    imposed_rates = [row["setting"]["imposed_rates"] for row in json.loads(done.stdout)["rows"]]
    assert imposed_rates == [[], [], pytest.approx(rates), pytest.approx(rates)]
    (evidence,) = Path("mine/evidence").iterdir()
    assert json.loads(evidence.read_text())["synthetic"] is True
    assert "Acceptance was imposed" in Path("r.html").read_text()


@pytest.mark.thorough
def test_a_failed_write_hides_no_measurement(
    peagle: Peagle, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peagle.cli.bench.save_evidence", full)
    for shown in ((), ("--json",)):
        done = peagle(*SWEEP, "--save", "mine", "--report", "new/r.html", *shown)
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert "bench-peagle-tiny.json" in done.stdout
        assert Path("new/r.html").exists()
    assert json.loads(done.stdout)["evidence"] is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("error", "exit_code"), [(EngineError("the engine died"), 4), (KeyboardInterrupt(), 130)]
)
def test_what_ends_a_sweep_keeps_its_rows_and_says_how_to_continue(
    peagle: Peagle, engines: Engines, error: BaseException, exit_code: int
) -> None:
    engines.error = error
    done = peagle(*SWEEP)
    assert done.returncode == exit_code
    assert "2 of 4 rows are in bench-peagle-tiny.json. To continue: peagle bench sweep tiny" in (
        done.stderr
    )
    assert len(read_result(Path("bench-peagle-tiny.json")).rows) == 2
    engines.error = None
    assert peagle(*SWEEP).returncode == 0
    assert len(engines.started) == 3


@pytest.mark.parametrize(("arguments", "message"), [
    (("bench", "tiny", "--sweep", "k=zero"), "'zero' is not a value of k"),
    (("bench", "tiny", "--sweep=k=1", "--concurrency", "0"), "is no list of numbers"),
    (("bench", "tiny", "--sweep", "k=1", "--slo", "e2e=1"), "--slo"),
    (("bench", "tiny", "--sweep", "k=1", "--gpus"), "--gpus needs --engine docker"),
    (("bench", "tiny", "--sweep", "k=1", "--workload", "x"), "no workload and no file x"),
    (("bench", "tiny", "--sweep", "k=1", "--domain", "x"), "--domain requires"),
    (("bench", "tiny", "--sweep", "k=1", "--impose-acceptance", "a.json"), "cannot impose"),
    (("bench", "tiny", "--sweep", "k=none,1", "--dummy-weights"), "accepts no draft"),
    (("bench", "plan.json", "--sweep", "k=1"), "plan.json"),
    (("bench", "tinny", "--sweep", "k=1"), "tinny"),
    (("bench", "report", "missing.json"), "missing.json"),
])  # fmt: skip
def test_bad_input_is_one_error(
    peagle: Peagle, engines: Engines, arguments: tuple[str, ...], message: str
) -> None:
    done = peagle(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert engines.started == []


def test_a_report_has_the_price(peagle: Peagle, tmp_path: Path) -> None:
    html, result = tmp_path / "r.html", tmp_path / "result.json"
    result.write_text(json.dumps(plain(RESULT)))
    done = peagle(
        "bench", "report", str(result), "-o", str(html), "--price-per-hour", "5", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == str(html)
    assert "$5.00 per hour" in html.read_text()
