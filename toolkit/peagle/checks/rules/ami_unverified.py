"""An instance family for which AWS's SDK has no rule about the host AMI.

Too old a driver shows only when the endpoint starts: vLLM finds no GPU.
"""

from peagle.case import Case, family_of
from peagle.catalog.tables import ami_report
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules.ami_driver import ami_of, cuda_version
from peagle.errors import Fix

RULE = Rule("ami-unverified", about="hardware", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.instance is None or case.on_cpu or not case.runtimes.amis:
        return
    family, amis = family_of(case.instance.type), case.runtimes.amis
    if family in case.runtimes.ami_families:
        return
    newest = max(amis, key=lambda ami: cuda_version(ami.driver)).name
    report, ami = ami_report(case.runtimes, family), ami_of(case)
    other = "--ami default" if ami is not None and ami.name == newest else f"--ami {newest}"
    fix = Fix(f"if vLLM finds no GPU, try {other}", options=tuple(other.split()))
    if report is None:
        yield RULE.warning("ami", f"nothing is known about the AMI that {family} needs", fix)
        return
    message = f"{family}: {report.says} ({report.source})"
    if report.driver is None:
        yield RULE.note("ami", message, fix)
        return
    needed = cuda_version(report.driver)
    if ami is None or cuda_version(ami.driver) < needed:
        enough = [one.name for one in amis if cuda_version(one.driver) >= needed]
        fix = Fix("use another instance family; no known AMI has that driver")
        if enough:
            sentence = " or ".join(f"use --ami {name}" for name in enough)
            fix = Fix(sentence, options=("--ami", enough[0]))
        yield RULE.warning("ami", f"{message}: {report.driver}", fix)
