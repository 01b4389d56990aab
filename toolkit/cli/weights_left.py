"""What a `peagle weights sync` that ends early leaves, and how to go on."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from toolkit.aws.weights import Moment, Place
from toolkit.cli.console import say
from toolkit.cli.weights_words import size_words
from toolkit.errors import PeagleError, Refused


@dataclass
class Left:
    """Used as a context around a sync: an interrupt, and once it ``copies`` an error too, ends
    with what is left. ``last`` is how far it was.

    ``go_on`` is the command as it was given, ``back`` the one that takes it all back.
    """

    place: Place
    go_on: str
    back: str
    copies: bool = False
    last: Moment | None = None

    def __enter__(self) -> Left:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = self.copies and isinstance(error, PeagleError) and not isinstance(error, Refused)
        if failed or isinstance(error, KeyboardInterrupt):
            self._say()

    def _say(self) -> None:
        if self.last is None:
            say(f"No file was copied to {self.place.uri} by this run. Go on: {self.go_on}")
            return
        done, total = size_words(self.last.done), size_words(self.last.total)
        say(f"Left at {self.place.uri}: {done} of {total}. Parts that are there are kept, and cost "
            "as storage does.")  # fmt: skip
        say(f"Go on where it stopped: {self.go_on}")
        say(f"Remove it: {self.back}")
