"""A K that follows the batch size, which costs more than it gains.

vLLM accepts num_speculative_tokens_per_batch_size with P-EAGLE and switches to slower CUDA graphs;
only one log line reports it.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle_serve.contract import K_SCHEDULE

RULE = Rule("dynamic-k", about="version", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.is_eagle and case.speculative_settings.get(K_SCHEDULE) is not None:
        yield from RULE.by_version(case, "k", K_SCHEDULE)
