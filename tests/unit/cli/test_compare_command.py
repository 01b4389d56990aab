"""``peagle compare``, ``promote`` and ``drop`` as a user types them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import with_keys
from tests.unit.cli.commands import FIRST, NAME, Terminal, find_price, without_record

WITH = ("compare", NAME, "--with", "tiny --no-speculation")


@pytest.fixture
def empty(terminal: Terminal) -> Terminal:
    """An account with room for two variants, and nothing in it."""
    for name in ("ml.g5.xlarge", "ml.g5.12xlarge"):
        terminal.cloud.quotas[f"{name} for endpoint usage"] = 8
    return terminal


@pytest.fixture
def roomy(deployed: Terminal) -> Terminal:
    """The quota is enough for two variants beside the endpoint."""
    deployed.cloud.quotas["ml.g5.xlarge for endpoint usage"] = 8
    return deployed


@pytest.fixture
def comparing(roomy: Terminal) -> Terminal:
    """A comparison with the target alone runs."""
    roomy.succeeds(*WITH, "--share", "50%", "--yes")
    return roomy


@pytest.mark.thorough
def test_what_is_served_beside_is_shown_with_its_price_and_asked(roomy: Terminal) -> None:
    before = roomy.cloud.endpoints[NAME].endpoint_config_name
    done = roomy.run(*WITH, answers="n\n")
    price = find_price()
    assert price is not None
    assert done.code == 2
    assert "not compared" in done.error
    assert "1 x ml.g5.xlarge more" in done.err
    assert f"another ${price:,.2f} per hour" in done.err
    assert "10.0% of the requests" in done.err
    assert "K 7 -> no speculation" in done.err
    assert roomy.cloud.endpoints[NAME].endpoint_config_name == before
    assert len(roomy.cloud.models) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("words", [
    (*FIRST, "--k", "3", "--yes"),
    ("rollback", NAME, "--yes"),
    ("scale", NAME, "--to", "2", "--yes"),
])  # fmt: skip
def test_other_changes_name_the_command_that_ends_the_comparison(
    comparing: Terminal, words: tuple[str, ...]
) -> None:
    done = comparing.run(*words)
    assert done.code == 3
    assert f"peagle drop {NAME}" in done.error
    assert "serve alone with promote" in done.error


def write_statistics(terminal: Terminal, times: int = 1, at: float | None = None) -> None:
    """Log the statistics of both variants' engines, of which the second does not speculate, and
    have CloudWatch's metrics of their requests."""
    cloud = terminal.cloud
    for number, name in enumerate(("AllTraffic", "Candidate")):
        for _ in range(times):
            cloud.now = cloud.now if at is None else at
            for line in cloud.engine.statistics():
                if number == 0 or "SpecDecoding" not in line:
                    cloud.write_log(line, f"{name}/i-1")
    cloud.metrics = {
        ("Invocations", "Sum"): 40.0, ("ModelLatency", "Sum"): 20e6,
        ("ModelLatency", "SampleCount"): 40.0, ("FirstChunkLatency", "Sum"): 4e6,
        ("FirstChunkLatency", "SampleCount"): 40.0,
    }  # fmt: skip


@pytest.mark.thorough
def test_the_report_has_both_variants(comparing: Terminal) -> None:
    cloud = comparing.cloud
    begun = (cloud.now + 150) // 60 * 60
    write_statistics(comparing, 6, begun + 30)
    done = comparing.run("compare", NAME, "--json")
    assert done.document["variants"][0]["output_tokens"] is None  # this minute has not ended
    cloud.metric_time = begun
    cloud.now = begun + 61
    first, second = comparing.run("compare", NAME, "--json").document["variants"]
    assert (first["variant"], second["variant"]) == ("AllTraffic", "Candidate")
    assert (first["k"], second["k"]) == (7, 0)
    assert first["output_tokens"] == second["output_tokens"] == round(6 * 12.8 * 10)
    assert first["ttft_seconds"]["value"] == pytest.approx(0.1)
    assert first["itl_seconds"]["value"] == pytest.approx(16 / (768 - 40))
    assert first["acceptance_length"]["value"] == pytest.approx(3.0)
    assert second["acceptance_length"] is None
    expected = (find_price() or 0) / 60 / 768 * 1e6
    assert second["usd_per_million_tokens"]["value"] == pytest.approx(expected)
    text = comparing.run("compare", NAME).out
    assert "Which one is faster is unknown" in text, "one minute has no spread"


@pytest.mark.parametrize(("words", "code", "message"), [
    (("compare", NAME, "--with", "tiny", "--share", "0%"), 2, "between 0.1% and 99.9%"),
    (("compare", NAME, "--with", "tiny", "--share", "many"), 2, "such as 10%"),
    (("compare", NAME, "--with", "tiny --name other"), 2, "is for other"),
    (("compare", NAME, "--with", "tiny --verbose"), 2, "--verbose cannot be used"),
    (("compare", NAME, "--with", "tiny", "--last", "1h"), 2, "--last"),
    (("compare", NAME, "--with", "tiny", "--yes"), 3, "serves this plan already"),
    (("compare", NAME), 3, "has no comparison"),
    (("compare", NAME, "--share", "20%"), 3, "has no comparison"),
    (("promote", NAME), 3, "has no comparison"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    roomy: Terminal, words: tuple[str, ...], code: int, message: str
) -> None:
    done = roomy.run(*words)
    assert (done.code, message in done.error) == (code, True), done.error


STATED = (
    *("--name", NAME, "--tag", "team=ml", "--tag", "stage=live"),
    *("--max-model-len", "1024", "--concurrency", "3", "--instance-count", "2"),
    *("--set", "block-size=32", "--env", "VLLM_LOGGING_LEVEL=DEBUG"),
    *("--ami", "al2023-ami-sagemaker-inference-gpu-4-1", "--ttl", "8h"),
)
KEYS = {
    "name_prefix": "acme-", "kms_key": "alias/models", "network_isolation": True,
    "startup_timeout": "20m",
}  # fmt: skip


def served(terminal: Terminal, config: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The container's variables, and everything else that the configuration asks for; each without
    names and times."""
    made = terminal.cloud.configs[config]
    (variant,) = made["ProductionVariants"]
    model = dict(terminal.cloud.models[variant["ModelName"]])
    container = dict(model.pop("PrimaryContainer"))
    rest = {**variant, **container, **model, "key": made.get("KmsKeyId")}
    rest = {key: value for key, value in rest.items() if key not in ("ModelName", "Tags")}
    return container["Environment"], {k: v for k, v in rest.items() if k != "Environment"}


@pytest.mark.thorough
def test_the_compared_plan_differs_in_what_was_asked_only(empty: Terminal, tmp_path: Path) -> None:
    empty.succeeds(*with_keys(tmp_path, FIRST, **KEYS), *STATED, "--yes")
    (row,) = empty.run("list", "--json").document["deployments"]
    asked = "tiny --k 3 --tag stage=trial --env A=1"
    empty.succeeds("compare", row["name"], "--with", asked, "--yes")
    first, second, _ = empty.cloud.configs
    (before, rest), (after, same) = served(empty, first), served(empty, second)
    assert rest == same
    assert rest["EnableNetworkIsolation"] is True
    assert (rest["key"], rest["InitialInstanceCount"]) == ("alias/models", 2)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"A", "SM_VLLM_SPECULATIVE_CONFIG"}
    tags = [empty.cloud.tags[arn] for arn in empty.cloud.tags if arn.endswith(f"/{second}")]
    assert {(tag["team"], tag["stage"]) for tag in tags} == {("ml", "trial")}
    (still,) = empty.run("list", "--json").document["deployments"]
    assert still["ends_at"] == row["ends_at"], "the end is the deployment's"


@pytest.mark.thorough
@pytest.mark.parametrize(("deployed", "asked", "k"), [
    (("--no-speculation",), "tiny --k 5", 5),
    (("--no-speculation",), "tiny+p-eagle", 7),
    (("--k", "3"), "tiny --env A=1", 3),
    (("--k", "3"), "tiny+p-eagle --env A=1", 3),
])  # fmt: skip
def test_the_drafter_and_k_are_the_deployed_ones_unless_stated(
    empty: Terminal, deployed: tuple[str, ...], asked: str, k: int
) -> None:
    assert empty.run(*FIRST, "--name", NAME, *deployed, "--yes").code == 0
    done = empty.run("compare", NAME, "--with", asked, answers="n\n")
    assert f"K={k};" in done.err, done.err


@pytest.mark.thorough
def test_copies_name_the_command_that_serves_the_other_plan(empty: Terminal) -> None:
    types = ("--instance-type", "ml.g5.12xlarge")
    assert empty.run("deploy", "tiny", *types, "--copies", "2", "--yes").code == 0
    done = empty.run("compare", NAME, "--with", "tiny --k 3", "--yes")
    assert done.code == 3
    assert "with another --name" in done.error


def test_options_of_another_machines_plan_are_unknown(empty: Terminal) -> None:
    assert empty.run(*FIRST, "--yes").code == 0
    without_record(empty)
    done = empty.run("compare", NAME, "--with", "tiny --k 3", "--yes")
    assert done.code == 2
    assert "name a plan file" in done.error
