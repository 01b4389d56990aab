"""Options and catalogue become a Plan. Pure: no network, no clock, no files."""

from toolkit.planning.models import Options, Plan
from toolkit.planning.planner import errors, make_plan

__all__ = ["Options", "Plan", "errors", "make_plan"]
