"""Run a Plan on this machine, as a process: no AWS, no Docker."""

from peagle.engine.install import install_engine
from peagle.engine.installed import Engine, find_engine, installed_engines
from peagle.engine.local import start_local, stop_local
from peagle.engine.state import LocalEngine, local_engines

__all__ = [
    "Engine",
    "LocalEngine",
    "find_engine",
    "install_engine",
    "installed_engines",
    "local_engines",
    "start_local",
    "stop_local",
]
