"""What the user sets in place of the plan: ``--set``, ``--env``, ``--ami`` and the two timeouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.case import family_of
from peagle.catalog import load_catalog
from peagle.errors import Refused
from peagle.planning import Options, Plan, make_plan
from peagle.render import plan_bytes, plan_document, read_plan
from peagle.render.plan_file import recreate_fix
from peagle.render.requests import plan_arguments, requests
from tests.unit.planning.small_catalog import because, codes, finding_of, plan


def test_an_argument_and_a_variable_reach_the_container_and_say_who_set_them() -> None:
    made = plan(
        settings={"enforce-eager": "true", "generation-config": "vllm"},
        environment={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    assert made.environment["SM_VLLM_ENFORCE_EAGER"] == "true"
    assert made.environment["SM_VLLM_GENERATION_CONFIG"] == "vllm"
    assert made.environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "--enforce-eager" in made.engine_arguments
    assert made.overrides.settings == {"enforce-eager": "true", "generation-config": "vllm"}
    assert because(made, "--enforce-eager") is None
    assert requests(made)[0].parameters["PrimaryContainer"]["Environment"] == made.environment


@pytest.mark.parametrize("name", ["enable-prefix-caching", "no-enable-prefix-caching"])
@pytest.mark.parametrize("value", ["", "true", "false"])
def test_a_setting_of_the_catalogue_is_replaced_in_both_of_its_spellings(
    name: str, value: str
) -> None:
    made = plan(settings={name: value})
    expected = {"": [], "true": [f"--{name}"], "false": [f"--no-{name}"]}[value]
    assert [word for word in made.engine_arguments if "prefix-caching" in word] == expected
    assert because(made, "--no-enable-prefix-caching") is None


def test_an_empty_value_leaves_a_variable_of_the_plan_out() -> None:
    name = "PROCESS_AUTO_RECOVERY"
    assert name in plan().environment
    assert name not in plan(environment={name: ""}).environment


def test_what_uses_memory_counts_in_the_choice_of_the_instance() -> None:
    def cache(**settings: str) -> int:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return plan(instance_type="ml.g6e.xlarge", settings=given).fit.kv_cache_tokens

    assert cache(gpu_memory_utilization="0.5") < cache() < cache(gpu_memory_utilization="0.95")
    assert cache(kv_cache_dtype="fp8") > 1.9 * cache()


@pytest.mark.parametrize(
    "given",
    [
        {"environment": {"HF_TOKEN": "abcdefgh"}},
        {"environment": {"AWS_SECRET_ACCESS_KEY": "abcdefgh"}},
        {"environment": {"HEADER": "Bearer abcdefghij"}},
        {"settings": {"api-key": "abcdefgh"}},
        {"settings": {"hf-token": "abcdefgh"}},
    ],
)
def test_a_secret_makes_no_plan_and_is_not_repeated(given: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        plan(**given)
    assert refused.value.code == "secret-in-environment"
    assert "abcdefgh" not in refused.value.message + refused.value.fix
    assert plan(environment={"TOKENIZERS_PARALLELISM": "false"}).findings == plan().findings


def test_the_ami_and_the_timeouts_reach_the_request() -> None:
    made = plan(ami="the-other", startup_timeout=1800, model_source="s3://bucket/target/",
                download_timeout=900, copies=1)  # fmt: skip
    (variant,) = requests(made)[1].parameters["ProductionVariants"]
    assert variant["InferenceAmiVersion"] == "the-other"
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == 1800
    assert variant["ModelDataDownloadTimeoutInSeconds"] == 900
    assert because(made, "startup_timeout_seconds") is None
    plain = requests(plan(ami="default", instance_type="ml.g5.12xlarge"))[1].parameters
    assert "InferenceAmiVersion" not in plain["ProductionVariants"][0]


def test_a_timeout_below_a_slow_start_is_a_note_and_stays() -> None:
    made = plan(startup_timeout=120)
    assert made.startup_timeout_seconds == 120
    assert finding_of(made, "timeout-short").level == "note"
    assert "timeout-short" not in codes(plan(startup_timeout=3600))


@pytest.mark.thorough
def test_weights_too_large_for_sagemakers_longest_timeout_are_a_finding() -> None:
    catalog = load_catalog()
    hub = make_plan(Options(pair="gpt-oss-120b"), catalog)
    mounted = make_plan(
        Options(pair="gpt-oss-120b", model_source="s3://bucket/target/", speculation=False), catalog
    )
    large = {"weight_bytes": 200_000_000_000}
    target = catalog.targets["openai/gpt-oss-120b"].model_copy(update=large)
    larger = replace(catalog, targets={**catalog.targets, target.id: target})
    found = {
        f.where: f for f in make_plan(Options(pair="gpt-oss-120b"), larger).findings
        if f.code == "timeout-at-maximum"
    }  # fmt: skip
    assert "timeout-at-maximum" not in codes(hub) + codes(mounted)
    assert "from the Hub at 50 MB/s" in found["startup_timeout_seconds"].message
    assert "--model-source" in found["startup_timeout_seconds"].fix


EVERYTHING = Options(
    pair="chat",
    settings={"seed": "7", "enable-prefix-caching": "true", "async-scheduling": "false"},
    environment={"VLLM_LOGGING_LEVEL": "DEBUG", "PROCESS_AUTO_RECOVERY": ""},
    ami="the-ami",
    startup_timeout=1800,
    download_timeout=1200,
)


@pytest.mark.thorough
def test_a_plan_file_keeps_them_and_the_printed_command_repeats_them(tmp_path: Path) -> None:
    made = plan(**EVERYTHING.model_dump(exclude_unset=True))
    file = tmp_path / "plan.json"
    file.write_bytes(plan_bytes(made))
    assert read_plan(file) == made
    assert made.overrides == EVERYTHING.overrides
    words = " ".join(plan_arguments(made))
    for expected in (
        "--set seed=7 --set enable-prefix-caching=true --set async-scheduling=false",
        "--env VLLM_LOGGING_LEVEL=DEBUG --env PROCESS_AUTO_RECOVERY=",
        "--ami the-ami",
    ):
        assert expected in words
        assert expected in " ".join(recreate_fix(plan_document(made), "F").command)


def bundled(pair: str, instance_type: str, **options: Any) -> Plan:
    return make_plan(Options(pair=pair, instance_type=instance_type, **options), load_catalog())


@pytest.mark.thorough
def test_downloads_of_the_hub_go_to_the_instances_nvme() -> None:
    nvme = "/tmp/huggingface"
    made = bundled("gpt-oss-20b", "ml.g7e.2xlarge")
    assert made.environment["HF_HOME"] == nvme
    assert because(made, "HF_HOME") is not None
    mounted = bundled("gpt-oss-20b", "ml.g7e.2xlarge", model_source="s3://bucket/a/target/",
                      drafter="s3://bucket/a/drafter/")  # fmt: skip
    assert "HF_HOME" not in mounted.environment
    half = bundled("gpt-oss-20b", "ml.g7e.2xlarge", model_source="s3://bucket/a/target/")
    assert half.environment["HF_HOME"] == nvme, "the head comes from the hub"
    own = bundled("gpt-oss-20b", "ml.g7e.2xlarge", environment={"HF_HOME": "/opt/hf"})
    assert own.environment["HF_HOME"] == "/opt/hf"
    assert because(own, "HF_HOME") is None
    assert "HF_HOME" not in bundled("tiny", "ml.g6.xlarge").environment


def test_every_gpu_family_has_a_rule_a_report_or_a_finding() -> None:
    catalog = load_catalog()
    known = {ami.name for ami in catalog.runtimes.amis}
    reports = catalog.runtimes.ami_reports
    assert {report.ami for report in reports} - {None} <= known
    reported = {family for report in reports for family in report.families}
    assert reported.isdisjoint(catalog.runtimes.ami_families)
    families = {family_of(instance.type) for instance in catalog.instances.instances}
    assert families - reported - set(catalog.runtimes.ami_families) == {"p6-b300"}
