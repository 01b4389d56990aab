"""The toolkit as a library: a Session does what the commands do, without questions and output."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from peagle.deploy.records import deployment_lock, deployment_regions, load_record
from peagle.errors import NotFound, NotProved
from peagle.library.measurer import Measurer, Say, silent
from peagle.library.planner import refuse_errors

if TYPE_CHECKING:
    from peagle.deploy.context import Observer, Progress
    from peagle.deploy.invoke import InvokeResult
    from peagle.deploy.state import Deployment, Resource
    from peagle.engine.usage import Usage
    from peagle.planning.plan import Plan


class Session(Measurer):
    """A catalogue, a region, and an account or the sandbox: what every method works with.

    Making one reads no file and sends nothing. Every error that a caller can do something about is
    a ``PeagleError``, with ``code``, ``message``, ``fix`` and ``exit_code``; other exceptions are
    bugs.

    Parameters:
        region: where to deploy and to look. By default ``AWS_REGION`` or ``AWS_DEFAULT_REGION``,
            else us-east-1; a plan has its own.
        profile: an AWS profile. By default boto3's chain of credentials.
        sandbox: use the AWS sandbox of this machine instead of an account; ``deploy`` starts it.
        catalog: a folder with targets of your own, which are added to the bundled ones.
    """

    def deploy(
        self,
        plan: Plan,
        *,
        role: str | None = None,
        bucket: str | None = None,
        wait: bool = True,
        keep_unproved: bool = False,
        keep_failed: bool = False,
        accept_unknown_price: bool = False,
        say: Say | None = None,
    ) -> Deployment:
        """Deploy a plan and prove that its drafts are accepted; it costs the plan's price from then
        on. The same plan again changes nothing, or continues what was interrupted; another plan of
        the same name is an update. Nothing is asked: look at ``plan.price_per_hour_usd`` before.

        Parameters:
            plan: what to deploy, in its own region.
            role: the execution role, ARN or name; by default one is found.
            bucket: the S3 bucket for local weights; by default one of the toolkit's.
            wait: until it serves and is proved; else return once the endpoint is requested.
            keep_unproved: keep an update in service whose proof fails.
            keep_failed: keep a new endpoint whose engine can never serve, to look at it.
            accept_unknown_price: also deploy if the price is unknown.
            say: gets a line for every new state.

        Returns:
            The deployment; ``serving.proof`` is what was measured.

        Raises:
            Refused: a check of plan or account failed; nothing was created.
            NotProved: its drafts are not accepted; an update has returned to what served before.
            CloudError: AWS failed or rejected a request; what exists is on record for ``destroy``.
            EngineError: the engine cannot serve; a new endpoint was removed.
            UserError: no credentials or role, or the sandbox has no engine.
        """
        from peagle.deploy.apply import deploy
        from peagle.deploy.preflight import preflight
        from peagle.deploy.removal import remove_failed_start
        from peagle.deploy.status import require_known_price
        from peagle.deploy.wait import WillNotServe
        from peagle.sandbox.client import check_sandbox_engine

        refuse_errors(plan.findings)
        account, observe = self._account(), _observer(say)
        if account.sandbox:
            check_sandbox_engine()
        started, aws = account.start_and_connect(plan.region)
        with deployment_lock(aws.scope, plan.region, plan.name):
            with account.stopped_on_error(started):
                found = preflight(aws, plan, self.catalog.instances, role, bucket)
                refuse_errors(found.findings)
                require_known_price(found.desired.plan, accept_unknown_price)
            try:
                return deploy(aws, found, observe, wait, keep_unproved=keep_unproved)
            except WillNotServe as error:
                record = load_record(aws.scope, aws.region, plan.name)
                if record and not keep_failed and found.change == "create":
                    remove_failed_start(aws, record, error, observe)
                raise

    def invoke(
        self,
        name: str,
        prompt: str,
        *,
        chat: bool | None = None,
        max_tokens: int = 256,
        temperature: float = 0.0,
        on_text: Say | None = None,
    ) -> InvokeResult:
        """Send a prompt to an endpoint.

        Parameters:
            name: the endpoint.
            prompt: the text.
            chat: as a chat or as a completion; by default what the target is made for.
            max_tokens: the longest answer.
            temperature: 0 is greedy decoding.
            on_text: gets the answer piece by piece as it arrives.

        Returns:
            The answer, its tokens and times in seconds, and where known the acceptance length.

        Raises:
            NotFound: there is no such endpoint.
            UserError: the engine rejects the prompt, such as one that is too long.
            CloudError: AWS failed or rejected the request.
        """
        from peagle.deploy.invoke import InvokeRequest, invoke

        record, aws = self._find(name, served=True)
        request = InvokeRequest(prompt, chat, max_tokens, temperature)
        return invoke(aws, name, record, request, on_text or silent)

    def status(self, name: str) -> dict[str, Any]:
        """Describe a deployment.

        Parameters:
            name: the deployment.

        Returns:
            The document of ``peagle status --json``: state, acceptance, address, price, resources.

        Raises:
            NotFound: there is no such deployment.
            CloudError: AWS failed or rejected a request.
        """
        from peagle.deploy.status import deployment_status

        record, aws = self._find(name, complete=True)
        assert record is not None
        return deployment_status(aws, record)

    def deployments(self) -> list[dict[str, Any]]:
        """List the deployments of the account, whichever machine or template made them.

        Returns:
            The rows of ``peagle list --json``, of the session's region and of those that this
            machine has deployed to; of the given region only, if the session has one.

        Raises:
            AccessDenied: the deployments of a region may not be listed.
            UserError: no credentials.

        A damaged record or tag is a warning and hides no other deployment.
        """
        from peagle.account import default_region
        from peagle.deploy.status import list_deployments

        account = self._account()
        if not account.is_available:
            return []
        aws = account.connect(self.region or default_region())
        known = () if self.region else deployment_regions(aws.scope)
        regions = sorted({aws.region, *known})
        found = list_deployments(aws, regions, lambda: self.catalog.instances)
        for unknown in found.unknown:
            raise unknown
        for damaged in found.damaged:
            warnings.warn(str(damaged), stacklevel=2)
        return list(found.rows)

    def usage(self, name: str, window_seconds: float = 300.0) -> Usage:
        """Measure the use of a deployment.

        Parameters:
            name: the deployment.
            window_seconds: over how long, until now.

        Returns:
            Requests, errors, times in seconds, tokens, acceptance and cost; ``None`` is unknown.

        Raises:
            NotFound: there is no such deployment.
            CloudError: AWS failed or rejected a request.
        """
        from peagle.deploy.usage import usage_of_endpoint

        record, aws = self._find(name)
        assert record is not None
        return usage_of_endpoint(aws, record, window_seconds)

    def rollback(self, name: str, *, say: Say | None = None) -> Deployment:
        """Return a deployment to its previous revision, and prove that again.

        Parameters:
            name: the deployment.
            say: gets a line for every new state.

        Returns:
            The deployment, of which the revision that served is now the previous one.

        Raises:
            NotFound: there is no such deployment.
            Refused: it has no previous revision, or its weights have changed.
            NotProved: the previous revision serves again, and its drafts are not accepted.
            CloudError: AWS failed or rejected a request; the same call continues.
        """
        from peagle.deploy.rollback import end_rollback, rollback

        record, _ = self._find(name)
        assert record is not None
        with deployment_lock(*record.key):
            record, aws = self._find(name, complete=True)
            assert record is not None
            try:
                record = rollback(aws, record, self.catalog, _observer(say))
            except NotProved:
                end_rollback(load_record(*record.key) or record)
                raise
            end_rollback(record)
        return record

    def destroy(
        self, name: str, *, missing_ok: bool = False, say: Say | None = None
    ) -> tuple[Resource, ...]:
        """Remove everything that was created for a deployment; the log stays.

        Parameters:
            name: the deployment.
            missing_ok: an unknown name is not an error; nothing is removed then.
            say: gets a line for every new state.

        Returns:
            What was removed.

        Raises:
            NotFound: there is no such deployment.
            Refused: a template or another program owns it.
            CloudError: AWS failed or rejected a request; repeat it for the rest.
        """
        from peagle.deploy.removal import destroy, find_leftovers, remove_leftover
        from peagle.deploy.revisions import require_own

        try:
            record, aws = self._find(name, complete=True)
        except NotFound:
            if missing_ok:
                return ()
            raise
        assert record is not None
        require_own(record)
        with deployment_lock(*record.key):
            left = [one for one in find_leftovers(aws, name) if one.goes_with_endpoint]
            for one in left:
                if one.kind == "ScalableTarget":  # with one, SageMaker deletes no endpoint
                    remove_leftover(aws, one)
            removed, _ = destroy(aws, record, _observer(say))
            for one in left:
                if one.kind != "ScalableTarget":
                    remove_leftover(aws, one)
        return removed


def _observer(say: Say | None) -> Observer:
    """An observer of a deployment that says each new state once."""
    last: list[str] = []

    def observe(progress: Progress) -> None:
        line = " | ".join(part for part in (progress.state, progress.line) if part)
        if say is not None and last != [line]:
            last[:] = [line]
            say(line)

    return observe
