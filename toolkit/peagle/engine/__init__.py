"""Run a Plan on this machine, as a process: no AWS, no Docker."""

from peagle.engine.install import install_engine
from peagle.engine.installed import Engine, find_engine, installed_engines
from peagle.engine.local import down, up
from peagle.engine.state import LocalEngine, listing

__all__ = [
    "Engine",
    "LocalEngine",
    "down",
    "find_engine",
    "install_engine",
    "installed_engines",
    "listing",
    "up",
]
