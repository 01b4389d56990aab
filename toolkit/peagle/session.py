"""The verbs of the toolkit: a Session does what the commands do, without questions and output.

Modules that load boto3 are imported when they are used, since most plans send nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from peagle.account import Account, Say, observer_of, read_path, remove_with_leftovers, silent
from peagle.catalog import find_pair
from peagle.checks.report import check
from peagle.deploy.diff import compare_plans
from peagle.deploy.records import load_record
from peagle.errors import NotFound, OptionMissing, UserError, nearest
from peagle.findings import Finding, errors, refused
from peagle.fit.report import fit
from peagle.options import Options
from peagle.planning.runtime import DEFAULT_REGION
from peagle.planning.verdict import make_verdict, sizes_of_requests
from peagle.proof import pair_in_catalogue, require_passed
from peagle.render import plan_bytes, read_plan, render
from peagle.render.files import write_folder
from peagle.speed.models import parse_slo
from peagle.store import write_output
from peagle.text import sanitize
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import (
    head_reader,
    is_on_hub,
    is_own_target,
    plan_pair,
    target_not_read,
    with_own_target,
)
from peagle_serve.contract import is_s3_uri

if TYPE_CHECKING:
    from peagle.aws.client import Aws
    from peagle.catalog.schema import Catalog
    from peagle.checkpoints.models import Checkpoint
    from peagle.checks.report import CheckReport
    from peagle.deploy.diff import PlanComparison
    from peagle.deploy.invoke import InvokeResult
    from peagle.deploy.state import Deployment, Resource
    from peagle.engine.usage import Usage
    from peagle.fit.report import FitReport
    from peagle.planning.plan import Plan
    from peagle.proof import Proof
    from peagle.render.files import RenderedFile
    from peagle.speed.verdict import Verdict
    from peagle.weights.layout import AwsOf


SIZE_OPTIONS = (
    "workload", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "shared_prompt_tokens",
)  # fmt: skip
"""The options of a verdict that are the size of its requests."""


class Session(Account):
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

    def plan(
        self, pair: str, *, online: bool = False, verdict: str | Path | None = None, **options: Any
    ) -> Plan:
        """Plan a deployment: drafter, K, instances, price, arguments, and the reasons.

        Parameters:
            pair: ``TARGET`` or ``TARGET+DRAFTER`` of the catalogue, a folder with a model, or with
                ``online`` an ``s3://`` prefix or an id on the Hub.
            online: query AWS for prices, quotas and weights, and the Hub for models.
            verdict: a file of ``peagle verdict``, which then chooses drafter and K.
            options: fields of ``peagle.Options``, such as ``concurrency=10``, ``ttl=3600``
                (seconds), ``slo="ttft=0.5"`` or ``speculation=False``.
        Returns: the plan. Its ``findings`` may have errors, with which ``deploy`` refuses it.
        Raises: NotFound: an unknown pair or drafter; UserError: an option is unknown, impossible,
            or contradicts another.
        """
        region = options.get("region") or self.region
        fields = _validate_options({"pair": pair, **options, "region": region}, Options, "plan")
        del fields["pair"]
        if isinstance(fields.get("slo"), str):
            fields["slo"] = parse_slo(fields["slo"])
        catalog, checkpoint = with_own_target(self.catalog, pair, self._reader(online))
        fields["target_checkpoint"] = checkpoint
        reader = head_reader(catalog, pair, lambda: self.connect(region)) if online else None
        file = read_path(verdict, "the verdict") if verdict is not None else None
        if not online:
            return plan_pair(pair, fields, catalog, reader, file)
        self.start()
        return plan_pair_online(self, pair, fields, catalog, reader, file)

    def read_plan(self, path: str | Path) -> Plan:
        """Read a plan file.

        Parameters:
            path: a file of ``save_plan`` or ``peagle plan -o``.
        Returns: the plan, as it was saved.
        Raises: PlanFileError: the file is missing, damaged, or was edited.
        """
        return read_plan(read_path(path, "the plan file"))

    def save_plan(self, plan: Plan, path: str | Path) -> None:
        """Write a plan file, for ``read_plan``, ``peagle deploy`` and ``peagle render``.

        Parameters:
            plan: the plan.
            path: the file, which is replaced atomically.
        Raises: Refused: the plan has an error; UserError: the file cannot be written.
        """
        refuse_errors(plan.findings)
        write_output(read_path(path, "the plan file"), plan_bytes(plan))

    def compare(self, first: Plan, second: Plan) -> PlanComparison:
        """Compare two plans.

        Parameters:
            first: a plan.
            second: the other one.
        Returns: their results side by side, and the settings that differ.
        """
        return compare_plans(first, second)

    def verdict(
        self, pair: str, *, concurrency: Sequence[int] | int | None = None, **options: Any
    ) -> Verdict:
        """Compare speculation by load: the fastest drafter and K, and where it stops paying.

        Parameters:
            pair: a target, or a target and the one drafter to compare.
            concurrency: numbers of requests at a time; by default 1, 2, 4 ... 256.
            options: options of ``peagle verdict``, with ``gpu="H200"`` or ``instance_type``.
        Returns: the verdict, with an entry for each size and load.
        Raises: NotFound: an unknown pair, GPU or instance type; UserError: neither GPU nor instance
            type, or only one number of tokens; Refused: not even the target alone fits.
        """
        from peagle.planning.verdict import LOADS, VerdictRequest

        if options.get("gpu") is None and options.get("instance_type") is None:
            raise OptionMissing(
                "a verdict needs a GPU", "name a gpu such as H200, or an instance_type"
            )
        loads = LOADS if concurrency is None else concurrency
        if not isinstance(loads, Sequence):
            loads = (loads,)
        if not all(type(load) is int and load > 0 for load in loads):
            raise UserError(
                f"concurrency of verdict cannot be {sanitize(repr(concurrency), 60)}",
                "use whole numbers from 1 on",
            )
        sizes = {name: options.pop(name, None) for name in SIZE_OPTIONS}
        _validate_options(sizes, Options, "verdict")
        fields = _validate_options(
            {"pair": pair, "loads": tuple(loads), "region": self.region, **options},
            VerdictRequest,
            "verdict",
        )
        workloads = sizes_of_requests(**sizes)
        return make_verdict(VerdictRequest(workloads=workloads, **fields), self.catalog)

    def check(
        self, pair: str, *, target: str | None = None, drafter: str | None = None, **options: Any
    ) -> CheckReport:
        """Check a pair: config.json, the headers of its weights, versions, image and instance.

        Parameters:
            pair: a pair of the catalogue, or the location of a model.
            target: where the target's files are: a folder, ``s3://...``, a Hub id, or ``hf`` for
                the catalogue's own repository.
            drafter: where the head's files are, in the same way.
            options: options of ``peagle check``, such as ``k``, ``instance_type`` or ``vllm``.
        Returns: the report; ``findings`` of the level ``error`` are what ``deploy`` would refuse.
        Raises: NotFound: an unknown pair or location; CheckpointError: unreadable or damaged files;
            UserError: an unknown option.
        """
        from peagle.checks.report import HUB, CheckRequest

        named = {"pair": pair, "target": target, "drafter": drafter}
        fields = _validate_options({**named, **options}, CheckRequest, "check")
        read = self._reader(online=True)
        at = target if target not in (None, HUB) else None
        catalog, model = with_own_target(self.catalog, pair, lambda location: read(at or location))
        if model is not None and at is None:
            fields["target"] = model.location
        return check(CheckRequest(**fields), catalog, read)

    def fit(self, pair: str | None = None, **options: Any) -> FitReport:
        """Estimate GPU memory and concurrent capacity.

        Parameters:
            pair: a pair of the catalogue, or a folder with a config.json.
            options: options of ``peagle fit``, such as ``instance_type`` or ``max_model_len``.
        Returns: the report; ``refusal`` says why it does not fit, and ``advice`` what would.
        Raises: NotFound: an unknown pair or instance type; CheckpointError: unreadable files;
            UserError: an option is unknown, or contradicts another.
        """
        from peagle.fit.report import FitRequest

        fields = _validate_options({"pair": pair, **options}, FitRequest, "fit")
        read, catalog = self._reader(online=True), self.catalog
        if pair is not None and "target" not in fields and is_own_target(catalog, pair):
            catalog, model = with_own_target(catalog, pair, read)
            fields["target"] = model.location if model else None
            fields["pair"] = pair if find_pair(catalog, pair).target.drafters else None
        return fit(FitRequest(**fields), catalog, read)

    def render(
        self, format: str, plan: Plan, folder: str | Path | None = None
    ) -> tuple[RenderedFile, ...]:
        """Express a plan in another tool's format.

        Parameters:
            format: such as ``terraform`` or ``cloudformation``; an unknown name lists all.
            plan: the plan.
            folder: write the files into this folder, which must be empty or missing.
        Returns: the files: path below the folder, and content.
        Raises: NotFound: an unknown format; Unsupported: the format cannot express the plan;
            Refused: the plan has an error; UserError: the folder is not empty or not writable.
        """
        from peagle.images.build import findings_of_format

        refuse_errors(findings_of_format(plan, format))
        files = render(format, plan, self.catalog)
        if folder is not None:
            write_folder(Path(folder), files)
        return files

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
        Returns: the proof, which passed.
        Raises: NotProved: an instance drafts nothing, or is below the floor; NotFound: there is no
            such endpoint; CloudError: AWS failed or rejected a request.
        """
        from peagle.deploy.proving import prove, request_of_revision

        record, aws = self.find_served(name)
        proof: Proof = prove(
            aws, name, self.catalog, record, floor=floor, min_drafts=min_drafts, say=say or silent
        )
        pair = request_of_revision(record.current, self.catalog).pair if record else ""
        require_passed(proof, pair, name)
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
        Returns: the proof, which passed.
        Raises: NotProved: an engine drafts nothing, is below the floor, or is missing; EngineError:
            an engine does not answer; UserError: the URL, the key or the model is wrong.
        """
        from peagle.bench.url_proof import prove_url

        proof = prove_url(
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
        pair = pair_in_catalogue(plan.target, plan.drafter) if plan else ""
        require_passed(proof, pair, url, ("peagle", "prove", "--url", url))
        return proof

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
        Returns: the deployment; ``serving.proof`` is what was measured.
        Raises: Refused: a check of plan or account failed, and nothing was created; NotProved: its
            drafts are not accepted, and an update is undone; CloudError: AWS failed or rejected a
            request, and ``destroy`` removes what exists; EngineError: the engine cannot serve, and
            a new endpoint was removed; UserError: no credentials or role.
        """
        from peagle.deploy.apply import deploy
        from peagle.deploy.context import DeploymentContext, WillNotServe
        from peagle.deploy.preflight import preflight as run_preflight
        from peagle.deploy.removal import remove_failed_start
        from peagle.deploy.status import require_known_price
        from peagle.sandbox.client import check_sandbox_engine

        refuse_errors(plan.findings)
        observe = observer_of(say)
        if self.sandbox:
            check_sandbox_engine()
        with self.starting(plan.region, plan.name) as aws:
            preflight = run_preflight(aws, plan, self.catalog.instances, role, bucket)
            refuse_errors(preflight.findings)
            require_known_price(preflight.desired.plan, accept_unknown_price)
            try:
                return deploy(aws, preflight, observe, wait, keep_unproved=keep_unproved)
            except WillNotServe:
                record = load_record(aws.scope, aws.region, plan.name)
                if record and not keep_failed and preflight.change == "create":
                    remove_failed_start(DeploymentContext(aws, record, observe))
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
        Returns: the answer, its tokens, times in seconds, and where known the acceptance length.
        Raises: NotFound: there is no such endpoint; UserError: the engine rejects the prompt;
            CloudError: AWS failed or rejected the request.
        """
        from peagle.deploy.invoke import InvokeRequest, invoke

        record, aws = self.find_served(name)
        request = InvokeRequest(prompt, chat, max_tokens, temperature)
        return invoke(aws, name, record, request, on_text or silent)

    def status(self, name: str) -> dict[str, Any]:
        """Describe a deployment.

        Parameters:
            name: the deployment.
        Returns: what ``peagle status --json`` prints: state, acceptance, address, price, resources.
        Raises: NotFound: there is no such deployment; CloudError: AWS failed or rejected a request.
        """
        from peagle.deploy.status import deployment_status

        record, aws = self.find(name, complete=True)
        return deployment_status(aws, record)

    def deployments(self) -> list[dict[str, Any]]:
        """List the deployments of the account, whichever machine or template made them; a damaged
        record or tag is a warning.

        Returns: the rows of ``peagle list --json``: of the session's region, or of the default one
            and those that this machine has deployed to.
        Raises: AccessDenied: a region's deployments may not be listed; UserError: no credentials.
        """
        if not self.is_available:
            return []
        listing = self.listing()
        for unknown in listing.unknown:
            raise unknown
        for damaged in listing.damaged:
            warnings.warn(str(damaged), stacklevel=2)
        return list(listing.rows)

    def usage(self, name: str, window_seconds: float = 300.0) -> Usage:
        """Measure the use of a deployment.

        Parameters:
            name: the deployment.
            window_seconds: over how long, until now.
        Returns: requests, errors, times in seconds, tokens, acceptance, cost; ``None`` is unknown.
        Raises: NotFound: there is no such deployment; CloudError: AWS failed or rejected a request.
        """
        from peagle.deploy.status import usage_of_endpoint

        record, aws = self.find(name)
        return usage_of_endpoint(aws, record, window_seconds)

    def rollback(self, name: str, *, say: Say | None = None) -> Deployment:
        """Return a deployment to its previous revision, and prove that again.

        Parameters:
            name: the deployment.
            say: gets a line for every new state.
        Returns: the deployment, of which the revision that served is now the previous one.
        Raises: NotFound: there is no such deployment; Refused: no previous revision, or its weights
            have changed; NotProved: the previous revision serves again, and its drafts are not
            accepted; CloudError: AWS failed or rejected a request; the same call continues.
        """
        from peagle.deploy.apply import rollback
        from peagle.deploy.context import DeploymentContext

        with self.changing(name) as change:
            context = DeploymentContext(change.aws, change.record, observer_of(say))
            return rollback(context, self.catalog)

    def destroy(
        self, name: str, *, missing_ok: bool = False, say: Say | None = None
    ) -> tuple[Resource, ...]:
        """Remove everything that was created for a deployment; the log stays.

        Parameters:
            name: the deployment.
            missing_ok: an unknown name is not an error; nothing is removed then.
            say: gets a line for every new state.
        Returns: what was removed.
        Raises: NotFound: there is no such deployment; Refused: a template owns it; CloudError: AWS
            failed or rejected a request; repeat it for the rest.
        """
        from peagle.deploy.context import DeploymentContext
        from peagle.deploy.removal import find_leftovers
        from peagle.deploy.revisions import require_own

        try:
            with self.changing(name) as change:
                require_own(change.record)
                leftovers = [
                    leftover
                    for leftover in find_leftovers(change.aws, name)
                    if leftover.goes_with_endpoint
                ]
                context = DeploymentContext(change.aws, change.record, observer_of(say))
                removed, _ = remove_with_leftovers(context, leftovers)
                return removed
        except NotFound:
            if missing_ok:
                return ()
            raise

    def connect(self, region: str | None = None) -> Aws:
        """Connect to the account or the sandbox, which is started if it does not run.

        Parameters:
            region: by default the session's.
        Returns: a connection, which sends nothing yet.
        Raises: UserError: a wrong profile, or one together with the sandbox; EngineError: the
            sandbox cannot be started.
        """
        self.start()
        return self.aws(region)

    def _reader(self, online: bool) -> Callable[[str], Checkpoint]:
        """What reads the files of a model: with ``online`` also from S3 and the Hub."""

        @cache
        def read(location: str) -> Checkpoint:
            if not online and (is_s3_uri(location) or is_on_hub(location)):
                unread = target_not_read(location, (), self.catalog)
                raise NotFound(
                    unread.message, "add online=True to read it from there", code=unread.code
                )
            return checkpoint_at(location, self.connect)

        return read


def _validate_options(options: Mapping[str, Any], kind: type, of: str) -> dict[str, Any]:
    """The options of the model or dataclass ``kind`` that are not ``None``, lists as tuples. Raises
    UserError for a name that ``of`` does not have, and for a value of another type."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    types = get_type_hints(kind, include_extras=True)
    names = types.keys() - {"target_checkpoint", "drafter_checkpoint"}
    names -= {"chosen_by", "fitting_length"}
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in names:
            raise UserError(
                f"{of} has no option {name!r}", nearest(name, names), code="unknown-option"
            )
        if value is None and name != "pair":
            continue
        values[name] = tuple(value) if isinstance(value, list) else value
        if name == "slo" and isinstance(value, str):  # parsed later
            continue
        config = ConfigDict(strict=True, arbitrary_types_allowed=True)
        try:
            TypeAdapter(types[name], config=config).validate_python(values[name])
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise UserError(
                f"{name} of {of} cannot be {sanitize(repr(value), 60)}",
                problem.replace("Input should be", "use"),
            ) from None
    return values


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise Refused with the first error."""
    for finding in errors(findings)[:1]:
        raise refused(finding)


def plan_pair_online(
    account: Account,
    pair: str,
    fields: Mapping[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
    verdict: Path | None = None,
) -> Plan:
    """``plan_pair`` with today's price, the Hub's commits, and findings about quota and weights.

    ``account`` has been started. Raises what ``plan_pair`` and reading raise; where AWS does not
    answer about prices and quotas, the catalogue's prices count, with a warning.
    """
    from peagle.deploy.preflight import plan_with_live_prices
    from peagle.weights.mounted import pin_revisions

    aws = account.aws(fields.get("region") or DEFAULT_REGION)
    pinned, drafter, reasons, findings = pin_revisions(
        catalog, plan_pair(pair, fields, catalog, aws_of, verdict)
    )
    if drafter:
        fields = {**fields, "drafter": drafter}

    def planned(catalog: Catalog, reads_head: bool) -> Plan:
        reader = (lambda: aws) if reads_head else aws_of
        return plan_pair(pair, fields, catalog, reader, verdict)

    head_in_s3 = is_s3_uri(fields.get("drafter") or "")
    plan = plan_with_live_prices(_for_optional_queries(account, aws), pinned, planned, head_in_s3)
    more = {"reasons": (*plan.reasons, *reasons), "findings": (*plan.findings, *findings)}
    return plan.model_copy(update=more)


def plan_file_online(account: Account, plan: Plan, catalog: Catalog) -> Plan:
    """The plan of a file with today's price, the same findings and missing pins; nothing else
    changes."""
    from peagle.deploy.preflight import live_price_of_plan

    aws = _for_optional_queries(account, account.aws(plan.region))
    return live_price_of_plan(aws, catalog, plan)


def _for_optional_queries(account: Account, aws: Aws) -> Aws:
    """Prices and quotas are optional, so AWS must answer soon; the sandbox may still be loading."""
    return aws if account.sandbox else aws.best_effort()
