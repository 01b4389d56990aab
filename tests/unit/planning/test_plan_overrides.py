"""What the user sets in place of the plan: ``--set``, ``--env``, ``--ami`` and the two timeouts."""

import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.case import parse_family
from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.errors import Refused
from peagle.findings import Finding
from peagle.planning import Options, Plan, make_plan
from peagle.render import plan_bytes, plan_document, read_plan
from peagle.render.plan_file import recreate_fix
from peagle.render.requests import plan_arguments, requests
from peagle.workload import Slo, parse_slo
from tests.unit.planning.small_catalog import CATALOG as SMALL
from tests.unit.planning.small_catalog import because, plan
from tests.unit.planning.speeds import measured, run


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
def test_setting_of_catalogue_is_replaced_in_both_of_its_spellings(name: str, value: str) -> None:
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
        arguments = {name.replace("_", "-"): value for name, value in settings.items()}
        return plan(instance_type="ml.g6e.xlarge", settings=arguments).fit.kv_cache_tokens

    assert cache(gpu_memory_utilization="0.5") < cache() < cache(gpu_memory_utilization="0.95")
    assert cache(kv_cache_dtype="fp8") > 1.9 * cache()


@pytest.mark.parametrize("options", [
    {"environment": {"HF_TOKEN": "abcdefgh"}},
    {"environment": {"AWS_SECRET_ACCESS_KEY": "abcdefgh"}},
    {"environment": {"HEADER": "Bearer abcdefghij"}},
    {"settings": {"api-key": "abcdefgh"}},
    {"settings": {"hf-token": "abcdefgh"}},
])  # fmt: skip
def test_a_secret_makes_no_plan_and_is_not_repeated(options: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        plan(**options)
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
    elsewhere = bundled("gpt-oss-20b", "ml.g7e.2xlarge", environment={"HF_HOME": "/opt/hf"})
    assert elsewhere.environment["HF_HOME"] == "/opt/hf"
    assert because(elsewhere, "HF_HOME") is None
    assert "HF_HOME" not in bundled("tiny", "ml.g6.xlarge").environment


def test_every_gpu_family_has_a_rule_a_report_or_a_finding() -> None:
    catalog = load_catalog()
    amis = {ami.name for ami in catalog.runtimes.amis}
    reports = catalog.runtimes.ami_reports
    assert {report.ami for report in reports} - {None} <= amis
    reported = {family for report in reports for family in report.families}
    assert reported.isdisjoint(catalog.runtimes.ami_families)
    families = {parse_family(instance.type) for instance in catalog.instances.instances}
    assert families - reported - set(catalog.runtimes.ami_families) == {"p6-b300"}


# Every option that a printed fix proposes removes the finding.
CATALOG = load_catalog()
MEASURED = measured(run())
NUMBER = r"[0-9][0-9,]*"
VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "instance-type": (r"ml\.[a-z0-9-]+\.[0-9]*[a-z]+", str), "instance-count": (NUMBER, int),
    "k": (NUMBER, int), "max-model-len": (NUMBER, int), "concurrency": (NUMBER, int),
    "prompt-tokens": (NUMBER, int), "output-tokens": (NUMBER, int),
    "min-tokens-per-second": (NUMBER, float), "max-price-per-hour": (r"[0-9]+\.[0-9]+", float),
    "slo": (r"[a-z]+=[0-9.]+(?:,[a-z]+=[0-9.]+)?", parse_slo),
    "vllm": (r"[0-9]+\.[0-9]+\.[0-9]+", str),
}  # fmt: skip
"""Option -> how its values look in a fix, and their type."""
Corpus = tuple[Catalog, str, tuple[dict[str, Any], ...]]


def _products(**values: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """All combinations; ``None`` leaves an option out."""
    products = (
        dict(zip(values, some, strict=True)) for some in itertools.product(*values.values())
    )
    return tuple({k: v for k, v in options.items() if v is not None} for options in products)


CORPUS: dict[str, Corpus] = {
    "small instances": (SMALL, "chat", _products(
        instance_type=("ml.g5.xlarge", "ml.g5.12xlarge", "ml.g7e.2xlarge"),
        concurrency=(None, 500, 3000),
        instance_count=(None, 1),
        max_model_len=(None, 8192),
    )),
    "requirements": (MEASURED, "chat", _products(
        instance_type=(None, "ml.g7e.2xlarge"),
        instance_count=(None, 1, 3),
        k=(None, 7),
        min_tokens_per_second=(850, 950, 5000),
    )),
    "times and prices": (MEASURED, "chat+p-eagle", _products(
        instance_type=(None, "ml.g7e.2xlarge"),
        slo=(None, Slo(ttft=0.05), Slo(ttft=0.2, itl=0.01)),
        max_price_per_hour=(None, 3.5, 8.0),
        instance_count=(None, 2),
    )),
    "requests": (SMALL, "chat", _products(
        prompt_tokens=(1000, 4000, 9000), output_tokens=(None, 200), max_model_len=(None, 4096)
    )),
    "named drafters": (MEASURED, "chat+eagle3", _products(
        concurrency=(8, 32), instance_type=("ml.g7e.2xlarge",), k=(None, 3)
    )),
    "gpt-oss-20b": (CATALOG, "gpt-oss-20b", _products(
        instance_type=("ml.g4dn.xlarge", "ml.g5.xlarge", "ml.g6e.xlarge"),
        concurrency=(None, 400),
        k=(None, 11),
    )),
    "gpt-oss-120b": (CATALOG, "gpt-oss-120b", _products(
        max_price_per_hour=(None, 3.0, 15.0), slo=(None, Slo(itl=0.002)), concurrency=(8, 300)
    )),
}  # fmt: skip


def proposed(fix: str) -> Iterator[dict[str, Any]]:
    """The options with values in a fix, one by one; and ``--no-speculation``."""
    for option, (pattern, of) in VALUES.items():
        for match in re.finditer(rf"--{option}(?: to)? ({pattern})(?=[\s,;)]|$)", fix):
            yield {
                option.replace("-", "_"): of(match[1].replace(",", "") if of is int else match[1])
            }
    if "--no-speculation" in fix:
        yield {"speculation": False}


def urgent(made: Plan) -> list[Finding]:
    return [finding for finding in made.findings if finding.level != "note"]


@cache
def _findings(name: str) -> tuple[tuple[Options, Finding], ...]:
    catalog, pair, corpus = CORPUS[name]
    made = [(options := Options(pair=pair, **row), make_plan(options, catalog)) for row in corpus]
    return tuple((options, finding) for options, plan in made for finding in urgent(plan))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CORPUS)
def test_each_printed_fix_removes_its_finding(name: str) -> None:
    catalog, applied = CORPUS[name][0], 0
    for options, finding in _findings(name):
        for change in proposed(finding.fix):
            if change == {"speculation": False}:
                change |= {"k": None, "drafter": None, "pair": options.pair.partition("+")[0]}
            fixed = make_plan(options.model_copy(update=change), catalog)
            remaining = [other.code for other in urgent(fixed)]
            assert finding.code not in remaining, (options, finding, change)
            applied += 1
    assert applied >= 2


# Stating a default changes nothing; the load decides, not whether an option was given.
TARGETS = [target.short_name for target in CATALOG.targets.values()]
DEFAULTS = (
    "name", "region", "instance_type", "instance_count", "max_model_len", "concurrency",
    "prompt_tokens", "output_tokens", "vllm", "image", "weights_by", "startup_timeout",
    "download_timeout",
)  # fmt: skip
"""Options of which the plan shows the default."""
NOT_DECIDED = ("findings", "reasons", "alternatives", "without_speculation", "overrides")
"""What explains or compares."""


def default_of(made: Plan, option: str) -> Any:
    if option == "vllm":
        return made.runtime.vllm
    if option == "image":
        return made.runtime.image
    if option == "weights_by":
        return "mount"
    if option.endswith("_timeout"):
        return getattr(made, f"{option}_seconds")
    return getattr(made, option)


def decided(made: Plan) -> dict[str, Any]:
    return made.model_dump(exclude={*NOT_DECIDED, "options"})


@pytest.mark.thorough
@pytest.mark.parametrize("pair", TARGETS)
def test_stating_all_defaults_does_not_change_the_plan(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    stated = {option: default_of(made, option) for option in DEFAULTS}
    assert decided(make_plan(Options(pair=pair, **stated), CATALOG)) == decided(made)


@pytest.mark.thorough
@pytest.mark.parametrize("pair", TARGETS)
def test_naming_what_the_plan_chose_does_not_change_it(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    if made.speculation is None or made.drafter is None:
        named: dict[str, Any] = {"speculation": False}
    else:
        named = {"drafter": made.drafter.name, "k": made.speculation.k}
    again = make_plan(Options(pair=pair, **named), CATALOG)
    assert decided(again) | {"name": made.name} == decided(made)


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "drafter"), [
    ({}, "p-eagle"),
    ({"max_model_len": 32768}, "p-eagle"),
    ({"max_model_len": 65536}, "p-eagle-long"),
    ({"prompt_tokens": 9000}, "p-eagle"),
    ({"prompt_tokens": 12000}, "p-eagle-long"),
    ({"prompt_tokens": 60000}, "p-eagle-long"),
])  # fmt: skip
def test_a_long_context_gets_the_head_that_was_trained_for_it(
    options: dict[str, Any], drafter: str
) -> None:
    asked = Options(pair="gpt-oss-20b", k=3, **options)
    made = make_plan(asked, CATALOG)
    assert made.drafter is not None
    assert made.drafter.name == drafter
    default = 65536 if options.get("prompt_tokens") == 60000 else 32768
    assert made.max_model_len == options.get("max_model_len", default)
    named = make_plan(asked.model_copy(update={"drafter": "p-eagle"}), CATALOG)
    assert named.drafter is not None
    assert named.drafter.name == "p-eagle", "the user decides"


@pytest.mark.parametrize(("pair", "options", "context"), [
    ("gpt-oss-20b", {"workload": "agent"}, 65536),
    ("gpt-oss-20b", {"workload": "chat"}, 32768),
    ("qwen3-8b", {"workload": "agent"}, 40960),  # the most that it supports
    ("gpt-oss-20b", {"workload": "agent", "prompt_tokens": 60000}, 131072),
])  # fmt: skip
def test_the_context_of_a_conversation_has_room_for_further_turns(
    pair: str, options: dict[str, Any], context: int
) -> None:
    assert make_plan(Options(pair=pair, **options), CATALOG).max_model_len == context


def test_a_default_context_that_does_not_fit_is_shortened_with_a_warning() -> None:
    asked = Options(pair="qwen3-8b", instance_type="ml.g6.xlarge")
    made = make_plan(asked, CATALOG)
    assert (made.fit.fits, made.max_model_len) == (True, 16384)
    assert "context-shortened" in [f.code for f in made.findings]
    confirmed = make_plan(asked.model_copy(update={"max_model_len": 16384}), CATALOG)
    assert "context-shortened" not in [f.code for f in confirmed.findings]


@pytest.mark.thorough
def test_requests_above_the_context_are_an_error_with_a_fix_that_works() -> None:
    made = plan(prompt_tokens=4000, output_tokens=200, max_model_len=4096)
    (finding,) = [f for f in made.findings if f.code == "requests-above-context"]
    assert finding.fix.startswith("use --max-model-len 4200")
    fixed = plan(prompt_tokens=4000, output_tokens=200, max_model_len=4200)
    assert "requests-above-context" not in [f.code for f in fixed.findings]
    assert plan(prompt_tokens=4000, output_tokens=200).max_model_len == 8192
    (finding,) = plan(output_tokens=4096, max_model_len=4096).findings[:1]
    assert finding.where == "output_tokens"
    assert finding.fix.startswith("use --max-model-len 6144, or lower --output-tokens")
    assert plan(output_tokens=4096, max_model_len=6144).prompt_tokens == 2048
    beyond = plan(prompt_tokens=9000)
    assert [f.code for f in beyond.findings if f.level == "error"] == ["requests-above-context"]
