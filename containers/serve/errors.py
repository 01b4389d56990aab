"""The one error of the entrypoint."""

from __future__ import annotations


class WrongEnvironment(Exception):
    """The environment cannot be served. ``fix`` says how to mend it; both are one line."""

    def __init__(self, message: str, fix: str) -> None:
        self.message = " ".join(message.split())
        self.fix = " ".join(fix.split())
        super().__init__(f"{self.message} ({self.fix})")
