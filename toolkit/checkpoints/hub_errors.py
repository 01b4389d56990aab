"""What the hub's refusals mean for who asked: which licence to accept, or which token to set."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPResponse

from toolkit.errors import CheckpointError, HubFailed

_SET_TOKEN = "set HF_TOKEN, or run `hf auth login`"


@dataclass(frozen=True)
class Refusal:
    """Of which repository and revision; ``token_from`` is empty when no token was sent."""

    repo: str
    revision: str | None
    endpoint: str
    token_from: str

    def of(self, answer: HTTPResponse) -> CheckpointError:
        """The user's error for the hub's answer, which carries the reason in ``X-Error-Code``;
        HubFailed where it is none of the user's."""
        reason, status = answer.headers.get("X-Error-Code", ""), answer.status
        if reason == "GatedRepo":
            return self._gated()
        if answer.headers.get("X-Error-Message") == "Access to this resource is disabled.":
            return CheckpointError(f"the hub has disabled {self.repo}", "choose another model")
        if reason == "RevisionNotFound":
            return CheckpointError(
                f"{self.repo} has no revision {self.revision or 'main'}",
                f"see {self.endpoint}/{self.repo}/commits for branches and commits",
            )
        if reason == "EntryNotFound":
            return CheckpointError(
                f"{self.repo} no longer has a file that its listing names",
                "somebody changes it just now: repeat it",
            )
        if reason == "RepoNotFound" or status in (401, 404):
            return self._unknown(status)
        return self._by_status(status, answer.headers.get("Retry-After", ""))

    def _gated(self) -> CheckpointError:
        page = f"{self.endpoint}/{self.repo}"
        if not self.token_from:
            return CheckpointError(
                f"{self.repo} is gated, and no token was sent",
                f"accept its licence at {page}, then set HF_TOKEN to a token of that account",
            )
        return CheckpointError(
            f"{self.repo} is gated, and {self.token_from} does not open it",
            f"accept its licence at {page} with the account of that token; a fine-grained token "
            "also needs the right to read public gated repositories",
        )

    def _unknown(self, status: int) -> CheckpointError:
        """The hub says the same of what is not there and of what is private."""
        if status == 401 and self.token_from:
            return CheckpointError(
                f"the hub does not accept {self.token_from}, asked for {self.repo}",
                "it may have expired: make another one at "
                f"{self.endpoint}/settings/tokens, or unset it for a public model",
            )
        if self.token_from:
            return CheckpointError(
                f"the hub has no {self.repo}, or {self.token_from} may not see it",
                "check the spelling, and that the token has the right to read it",
            )
        return CheckpointError(
            f"the hub has no {self.repo}, or it is private",
            f"check the spelling; for a private model, {_SET_TOKEN}",
        )

    def _by_status(self, status: int, retry_after: str) -> CheckpointError:
        if status == 403:
            who = self.token_from or "a caller without a token"
            return CheckpointError(
                f"the hub does not let {who} read {self.repo}",
                "give the token the right to read the contents of that repository"
                if self.token_from
                else _SET_TOKEN,
            )
        if status == 429:
            wait = f"{retry_after} seconds" if retry_after.isdigit() else "some minutes"
            more = "" if self.token_from else f"; to be allowed more, {_SET_TOKEN}"
            return HubFailed(
                f"{self.repo}: the hub has been asked too often from here",
                f"repeat it in {wait}{more}",
            )
        return HubFailed(
            f"{self.repo}: {self.endpoint} answers with an error ({status})", "repeat it later"
        )
