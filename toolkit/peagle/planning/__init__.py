"""Options and catalogue become a Plan. Pure: no network, no clock, no files."""

from peagle.options import Options
from peagle.planning.plan import Plan
from peagle.planning.planner import make_plan

__all__ = ["Options", "Plan", "make_plan"]
