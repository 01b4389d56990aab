"""What can be known to be wrong before a GPU is paid for: one rule per file. Pure."""

from toolkit.checks.cases import make_case
from toolkit.checks.models import Case
from toolkit.checks.running import Rule, check, rules_found

__all__ = ["Case", "Rule", "check", "make_case", "rules_found"]
