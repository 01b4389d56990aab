"""What can be known to be wrong before a GPU is paid for: one rule per file. Pure."""

from peagle.case import Case
from peagle.checks.registry import About, Rule, check, rules_found

__all__ = ["About", "Case", "Rule", "check", "rules_found"]
