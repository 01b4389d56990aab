"""AWS's image with the engine's statistics off: deploy cannot prove that drafts are accepted.

That image exposes no counters, so the proof reads vLLM's lines of statistics in the endpoint's log.
"""

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import is_aws_image
from peagle.checks.registry import Findings, Rule

RULE = Rule("log-stats-off", about="hardware", vllm_notices="never")

LONGEST_INTERVAL = 30.0
"""Seconds between two lines that a proof waits for."""


def check(case: Case) -> Findings:
    if case.drafter is None or not is_aws_image(case.image, case.runtimes):
        return
    for where, setting in _switched_off(case):
        message = (
            f"{setting} keeps vLLM's statistics out of the log, from which deploy proves that "
            "drafts are accepted: AWS's image exposes no counters"
        )
        yield RULE.error(where, message, f"leave {setting} out, or use --image with an own image")


def _switched_off(case: Case) -> Iterator[tuple[str, str]]:
    """The settings that do so, each with where it is."""
    if case.settings.get("disable-log-stats") is True:
        yield "vllm", "--disable-log-stats"
    environment = case.environment
    if environment.get("VLLM_LOGGING_LEVEL", "INFO").upper() not in ("DEBUG", "INFO"):
        yield "environment", f"VLLM_LOGGING_LEVEL={environment['VLLM_LOGGING_LEVEL']}"
    if environment.get("VLLM_CONFIGURE_LOGGING", "1").strip() == "0":
        yield "environment", "VLLM_CONFIGURE_LOGGING=0"
    interval = environment.get("VLLM_LOG_STATS_INTERVAL", "")
    try:
        if float(interval or 0) > LONGEST_INTERVAL:
            yield "environment", f"VLLM_LOG_STATS_INTERVAL={interval}"
    except ValueError:
        return  # vLLM refuses it
