"""Choose, prove, price and reproduce P-EAGLE speculative decoding on Amazon SageMaker.

``Session`` does what the commands do; ``docs/library.md`` shows it. A pair from the catalogue
becomes a Plan, and everything else reads the Plan. Names are imported when they are used, so that
``import peagle`` loads neither boto3 nor pydantic.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes a while, in which Ctrl-C would show a traceback
__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from peagle.checks.report import CheckReport as CheckReport
    from peagle.deploy.diff import PlanComparison as PlanComparison
    from peagle.deploy.invoke import InvokeResult as InvokeResult
    from peagle.deploy.state import Deployment as Deployment
    from peagle.engine.usage import Usage as Usage
    from peagle.errors import CatalogError as CatalogError
    from peagle.errors import CloudError as CloudError
    from peagle.errors import EngineError as EngineError
    from peagle.errors import NotFound as NotFound
    from peagle.errors import NotProved as NotProved
    from peagle.errors import PeagleError as PeagleError
    from peagle.errors import PlanFileError as PlanFileError
    from peagle.errors import Refused as Refused
    from peagle.errors import Unsupported as Unsupported
    from peagle.errors import UserError as UserError
    from peagle.findings import Finding as Finding
    from peagle.fit.report import FitReport as FitReport
    from peagle.options import Options as Options
    from peagle.planning.plan import Plan as Plan
    from peagle.proof import Proof as Proof
    from peagle.render.files import RenderedFile as RenderedFile
    from peagle.session import Session as Session
    from peagle.speed.verdict import Verdict as Verdict

_NAMES = {
    "peagle.checks.report": ("CheckReport",),
    "peagle.deploy.diff": ("PlanComparison",),
    "peagle.deploy.invoke": ("InvokeResult",),
    "peagle.deploy.state": ("Deployment",),
    "peagle.engine.usage": ("Usage",),
    "peagle.errors": (
        "CatalogError", "CloudError", "EngineError", "NotFound", "NotProved", "PeagleError",
        "PlanFileError", "Refused", "Unsupported", "UserError",
    ),
    "peagle.findings": ("Finding",),
    "peagle.fit.report": ("FitReport",),
    "peagle.session": ("Session",),
    "peagle.options": ("Options",),
    "peagle.planning.plan": ("Plan",),
    "peagle.proof": ("Proof",),
    "peagle.render.files": ("RenderedFile",),
    "peagle.speed.verdict": ("Verdict",),
}  # fmt: skip
"""Module -> its public names."""

_SOURCES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_SOURCES)


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_SOURCES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
