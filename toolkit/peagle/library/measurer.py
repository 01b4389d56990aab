"""What a program proves: that an endpoint, or any vLLM behind a URL, speculates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from peagle import api
from peagle.library.planner import Planner

if TYPE_CHECKING:
    from peagle.aws.client import Aws
    from peagle.deploy.state import Deployment
    from peagle.planning.plan import Plan
    from peagle.proof import Proof

Say = Callable[[str], object]


def silent(line: str) -> None:
    """Say nothing."""


class Measurer(Planner):
    """The part of a Session that measures what serves, and changes nothing."""

    def prove(
        self,
        name: str,
        *,
        floor: float | None = None,
        min_drafts: int = 100,
        say: Say | None = None,
    ) -> Proof:
        """Prove again that an endpoint speculates, also one of a template or another machine.

        Parameters:
            name: the endpoint.
            floor: the least acceptance length of every instance; by default the pair's.
            min_drafts: how many drafts each instance must have made.
            say: gets a line for every new state.

        Returns:
            The proof, which passed.

        Raises:
            NotProved: an instance drafts nothing, or is below the floor.
            NotFound: there is no such endpoint.
            CloudError: AWS failed or rejected a request.
        """
        record, aws = self._find(name, served=True)
        proof: Proof = api.prove(
            aws,
            name,
            self.catalog,
            record,
            floor=floor,
            min_drafts=min_drafts,
            say=say or silent,
        )
        pair = api.request_of_revision(record.current, self.catalog).pair if record else ""
        api.require_passed(proof, pair, name)
        return proof

    def prove_url(
        self,
        url: str,
        *,
        plan: Plan | None = None,
        model: str | None = None,
        key: str | None = None,
        floor: float | None = None,
        min_drafts: int = 100,
        instances: int = 1,
        wait_seconds: float = 0.0,
        say: Say | None = None,
    ) -> Proof:
        """Prove that every engine behind a URL speculates: any vLLM with OpenAI's protocol, such as
        on Kubernetes. Nothing of AWS is used.

        Parameters:
            url: the base URL; with HTTP every address of the host is an engine.
            plan: says prompts and floor; by default the catalogue's prompts for the served model,
                and any accepted draft passes.
            model: the served model, by default the only one.
            key: a bearer token.
            floor: the least acceptance length of every engine, in place of the plan's.
            min_drafts: how many drafts each engine must have made.
            instances: how many engines must answer.
            wait_seconds: how long to wait for them.
            say: gets a line for every new state.

        Returns:
            The proof, which passed.

        Raises:
            NotProved: an engine drafts nothing or is below the floor, or engines are missing.
            EngineError: an engine does not answer.
            UserError: the URL, the key or the model is wrong.
        """
        proof = api.prove_url(
            url,
            self.catalog,
            model=model,
            key=key,
            plan=plan,
            floor=floor,
            min_drafts=min_drafts,
            instances=instances,
            wait_seconds=wait_seconds,
            say=say or silent,
        )
        again = ("peagle", "prove", "--url", url)
        pair = api.pair_in_catalogue(plan.target, plan.drafter) if plan else ""
        api.require_passed(proof, pair, url, again)
        return proof

    def _find(
        self, name: str, complete: bool = False, served: bool = False
    ) -> tuple[Deployment | None, Aws]:
        """The deployment, and a connection to where it is; if ``served``, ``None`` for an endpoint
        of something else."""
        account = self._account()

        def prices() -> Any:
            return self.catalog.instances

        if served:
            return api.find_served(account, name, self.region, prices)
        return api.find_deployed(account, name, self.region, prices, complete)
