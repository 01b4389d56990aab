"""Run a Plan on this machine, as a process: no AWS, no Docker."""

from toolkit.local.engine import Engine, find_engine, installed_engines
from toolkit.local.install import install_engine
from toolkit.local.records import LocalEngine, listing
from toolkit.local.running import down, up

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
