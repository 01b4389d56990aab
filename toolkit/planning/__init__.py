"""Options and catalogue become a Plan. Pure: no network, no clock, no files."""

from toolkit.planning.models import Finding, Options, Plan
from toolkit.planning.planner import errors, make_plan

__all__ = ["Finding", "Options", "Plan", "errors", "make_plan"]
