"""What can be known to be wrong before a GPU is paid for: one rule per file. Pure."""

from peagle.case import Case, make_case
from peagle.checks.registry import Rule, check, rules_found

__all__ = ["Case", "Rule", "check", "make_case", "rules_found"]
