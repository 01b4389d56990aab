"""Rules that find problems before you pay for a GPU: one file per subject. Pure."""

from peagle.case import Case
from peagle.checks.registry import About, Rule, check, list_rules

__all__ = ["About", "Case", "Rule", "check", "list_rules"]
