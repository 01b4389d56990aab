"""The verbs of the toolkit: a Session does what the commands do, without questions and output.

Modules that load boto3 are imported when they are used, since most plans send nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle.account import Account, Say, silent
from peagle.catalog import find_pair
from peagle.deploy.diff import compare_plans
from peagle.errors import NotFound, OptionMissing, PeagleError, UserError, nearest
from peagle.findings import refuse_errors
from peagle.options import Options, read_keywords
from peagle.planning.runtime import DEFAULT_REGION
from peagle.proof import pair_in_catalogue, require_passed
from peagle.render import plan_bytes, read_plan, render
from peagle.render.files import write_folder
from peagle.render.plan_file import refuse_unpinned_warm
from peagle.store import write_output
from peagle.text import json_object, plain, sanitize
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import (
    head_reader,
    is_on_hub,
    is_own_target,
    plan_pair,
    target_not_read,
    with_own_target,
)
from peagle.workload import parse_slo
from peagle_serve.contract import SPECULATION, is_s3_uri

if TYPE_CHECKING:
    from peagle.catalog.schema import Catalog
    from peagle.checkpoints.models import Checkpoint
    from peagle.checks.report import CheckReport
    from peagle.deploy.diff import PlanComparison
    from peagle.deploy.invoke import InvokeResult
    from peagle.deploy.preflight import Preflight
    from peagle.deploy.removal import Ended, EndedSearch, Reaped
    from peagle.deploy.state import Deployment, Resource
    from peagle.engine.usage import Usage
    from peagle.fit.report import FitReport
    from peagle.planning.plan import Plan
    from peagle.proof import Proof
    from peagle.render.files import RenderedFile
    from peagle.speed.verdict import Verdict
    from peagle.weights.layout import AwsOf


class Session(Account):
    """A catalogue, a region, and an account or the sandbox: what every method works with.

    Making one reads no file and sends nothing. ``region`` is where to deploy and to look: by
    default ``AWS_REGION`` or ``AWS_DEFAULT_REGION``, else us-east-1; a plan has its own.
    ``profile`` is of AWS, by default boto3's chain of credentials. ``sandbox`` is AWS on this
    machine, which ``deploy`` starts. ``catalog`` is a folder with targets of your own beside the
    bundled ones.

    Every error that a caller can do something about is a ``PeagleError``, with ``code``,
    ``message``, ``fix`` and ``exit_code``. ``options`` are those of the command with underscores,
    and ``say`` gets a line for every new state.
    """

    def plan(
        self, pair: str, *, online: bool = False, verdict: str | Path | None = None, **options: Any
    ) -> Plan:
        """Plan a deployment of a pair of the catalogue, a model in a folder, or with ``online`` at
        ``s3://`` or on the Hub. ``online`` queries AWS for prices, quotas and weights. A file of
        ``peagle verdict`` chooses drafter and K. ``options`` are fields of ``peagle.Options``.

        Errors in the plan's ``findings`` make ``deploy`` refuse it. Raises NotFound for an unknown
        pair or drafter, and UserError for an option that is unknown or impossible.
        """
        region = options.get("region") or self.region
        fields = _validate_options({"pair": pair, **options, "region": region}, Options, "plan")
        del fields["pair"]
        catalog, checkpoint = with_own_target(self.catalog, pair, self._reader(online))
        fields["target_checkpoint"] = checkpoint
        reader = head_reader(catalog, pair, lambda: self.connect(region)) if online else None
        file = None if verdict is None else Path(verdict)
        if not online:
            return plan_pair(pair, fields, catalog, reader, file)
        self.start()
        return plan_pair_online(self, pair, fields, catalog, reader, file)

    def read_plan(self, path: str | Path) -> Plan:
        """The plan in a file of ``save_plan`` or ``peagle plan -o``. Raises PlanFileError when it
        is missing, damaged, or was edited."""
        return read_plan(Path(path))

    def save_plan(self, plan: Plan, path: str | Path) -> None:
        """Write a plan file, atomically. Raises Refused for a plan with an error, PlanFileError for
        unpinned warm starts, and UserError when the file cannot be written."""
        refuse_errors(plan.findings)
        refuse_unpinned_warm(plan, str(path))
        write_output(Path(path), plan_bytes(plan))

    def compare(self, first: Plan, second: Plan) -> PlanComparison:
        """The results of two plans side by side, and the settings that differ."""
        return compare_plans(first, second)

    def verdict(
        self, pair: str, *, concurrency: Sequence[int] | int | None = None, **options: Any
    ) -> Verdict:
        """Compare speculation by load: the fastest drafter and K, and where it stops paying, at
        ``concurrency`` requests at a time (by default 1, 2, 4 ... 256), on a ``gpu`` or an
        ``instance_type``.

        Raises NotFound for an unknown pair, GPU or type, UserError when an option is missing, and
        Refused when not even the target alone fits.
        """
        from peagle.planning.verdict import VerdictOptions, make_verdict

        if options.get("gpu") is None and options.get("instance_type") is None:
            raise OptionMissing(
                "a verdict needs a GPU", "name a gpu such as H200, or an instance_type"
            )
        loads = (concurrency,) if isinstance(concurrency, int) else concurrency
        named = {"pair": pair, "loads": loads and list(loads), "region": self.region, **options}
        fields = _validate_options(named, VerdictOptions, "verdict")
        return make_verdict(VerdictOptions(**fields), self.catalog)

    def check(
        self, pair: str, *, target: str | None = None, drafter: str | None = None, **options: Any
    ) -> CheckReport:
        """Check a pair: config.json, the headers of its weights, versions, image and instance. The
        files of ``target`` and ``drafter`` are in a folder, at ``s3://``, on the Hub, or for ``hf``
        in the catalogue's own repository.

        Errors in the report's ``findings`` are what ``deploy`` would refuse. Raises NotFound for an
        unknown pair or location, and CheckpointError for files that cannot be read.
        """
        from peagle.checks.report import HUB, CheckOptions, check

        named = {"pair": pair, "target": target, "drafter": drafter}
        fields = _validate_options({**named, **options}, CheckOptions, "check")
        read = self._reader(online=True)
        at = target if target not in (None, HUB) else None
        catalog, model = with_own_target(self.catalog, pair, lambda location: read(at or location))
        if model is not None and at is None:
            fields["target"] = model.location
        return check(CheckOptions(**fields), catalog, read)

    def fit(
        self, pair: str | None = None, *, no_speculation: bool = False, **options: Any
    ) -> FitReport:
        """Estimate the GPU memory and the concurrent capacity of a pair, or of a model in a folder.

        The report's ``refusal`` says why it does not fit, and ``advice`` what would. Raises
        NotFound for an unknown pair or instance type, and CheckpointError for files that cannot be
        read.
        """
        from peagle.fit.report import FitOptions, fit

        named = {"pair": pair, "speculation": False if no_speculation else None, **options}
        fields = _validate_options(named, FitOptions, "fit")
        read, catalog = self._reader(online=True), self.catalog
        if pair is not None and "target" not in fields and is_own_target(catalog, pair):
            catalog, model = with_own_target(catalog, pair, read)
            fields["target"] = model.location if model else None
            fields["pair"] = pair if find_pair(catalog, pair).target.drafters else ""
        return fit(FitOptions(**fields), catalog, read)

    def render(
        self, format: str, plan: Plan, folder: str | Path | None = None
    ) -> tuple[RenderedFile, ...]:
        """Express a plan in another tool's format, and write the files into an empty or new
        ``folder`` if one is named.

        Raises NotFound for an unknown format, Unsupported when it cannot express the plan, Refused
        when the plan has an error, and UserError when the files cannot be written.
        """
        from peagle.images.build import check_format

        refuse_errors(check_format(plan, format))
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
        report: Callable[[Proof, str], object] = lambda proof, region: None,
    ) -> Proof:
        """Prove again that an endpoint, also of a template or another machine, or a local engine
        speculates: every instance makes ``min_drafts``, and its acceptance length is at least
        ``floor`` (by default the pair's). ``report`` gets the proof, also one that fails, and the
        endpoint's region, "" for a local engine.

        Raises NotProved, NotFound when there is no such endpoint, CloudError and EngineError.
        """
        from peagle.deploy.proving import make_revision_request, prove, record_proof

        if engine := self.local_engine(name):
            plan = None
            k = json_object(engine.environment.get(SPECULATION)).get("num_speculative_tokens")
            with suppress(NotFound):  # a head of one's own: any accepted draft passes
                plan = self.plan(engine.pair, k=k, speculation=k is not None)
            return self.prove_url(
                engine.openai_base_url,
                plan=plan,
                model=engine.served_as,
                floor=floor,
                min_drafts=min_drafts,
                say=say,
                report=lambda proof: report(proof, ""),
            )
        record, aws = self.find_served(name)
        proof, revision = prove(
            aws, name, self.catalog, record, floor=floor, min_drafts=min_drafts, say=say or silent
        )
        report(proof, aws.region)
        if revision:
            with self.changing(name, aws.region) as change:
                change.run(record_proof, revision, continues=False)
        pair = make_revision_request(record.current, self.catalog).pair if record else ""
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
        report: Callable[[Proof], object] = lambda proof: None,
    ) -> Proof:
        """Prove that every engine behind a URL speculates: any vLLM with OpenAI's protocol. With
        HTTP every address of the host is an engine; ``instances`` must answer within
        ``wait_seconds``. Prompts and floor are those of ``plan``, by default the catalogue's
        prompts, and any accepted draft passes. ``model`` is by default the only one, ``key`` a
        bearer token. ``report`` gets the proof, also one that fails.

        Raises NotProved, EngineError when an engine does not answer, and UserError for a wrong URL,
        key or model.
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
        report(proof)
        pair = pair_in_catalogue(plan.target, plan.drafter) if plan else ""
        require_passed(proof, pair, url, ("peagle", "prove", "--url", url))
        return proof

    def deploy(
        self,
        plan: Plan,
        *,
        role: str | None = None,
        bucket: str | None = None,
        fallbacks: Sequence[Plan] = (),
        retry_seconds: float = 0.0,
        wait: bool = True,
        keep_unproved: bool = False,
        keep_failed: bool = False,
        accept_unknown_price: bool = False,
        say: Say | None = None,
    ) -> Deployment:
        """Deploy a plan and prove that its drafts are accepted; it costs the plan's price from then
        on. The same plan again changes nothing, or continues what was interrupted; another plan of
        the same name is an update. Nothing is asked: look at ``plan.price_per_hour_usd`` before.

        ``role`` and ``bucket`` (for local weights) are by default found or made. While AWS has no
        free instance, ``fallbacks``, plans of the same name on other types, are tried in this
        order, and all again for ``retry_seconds``. Without ``wait`` it returns once the endpoint is
        requested. ``keep_unproved`` keeps an update whose proof fails, and ``keep_failed`` a new
        endpoint whose engine can never serve. ``serving.proof`` of the deployment is what was
        measured.

        Raises Refused when a check of plan or account failed, and nothing was created; NotProved,
        and an update is undone; CloudError, and ``destroy`` removes what exists; EngineError when
        the engine cannot serve; UserError without credentials or a role.
        """
        from peagle.deploy.apply import Fallback, deploy_where_possible

        for chosen in (plan, *fallbacks):
            refuse_errors(chosen.findings)
            if (chosen.name, chosen.region) != (plan.name, plan.region):
                message = f"the fallback {chosen.name} in {chosen.region} is another deployment"
                raise UserError(message, f"plan it with name={plan.name!r} in {plan.region}")
        with self.changing(plan.name, plan.region, say, creates=True) as change:

            def prepare(plan: Plan) -> Preflight:
                return change.prepare(plan, role, bucket, accept_unknown_price=accept_unknown_price)

            change.run(
                deploy_where_possible,
                prepare(plan),
                Fallback(prepare, fallbacks, retry_seconds),
                wait,
                keep_unproved=keep_unproved,
                keeps_failed=lambda _: keep_failed,
            )
            return change.record

    def invoke(
        self,
        name: str,
        prompt: str,
        *,
        chat: bool | None = None,
        max_tokens: int = 256,
        temperature: float = 0.0,
        stream: bool = True,
        payload: dict[str, Any] | None = None,
        wake_timeout: float = 30 * 60,
        on_text: Say | None = None,
        say: Say | None = None,
    ) -> InvokeResult:
        """Send a prompt to an endpoint, or to the local engine of that name, as a chat or a
        completion (by default what the target is made for), or a ``payload`` as it is. ``on_text``
        gets the answer piece by piece. An endpoint that scaled to zero is waited for, at most
        ``wake_timeout`` seconds. The result has tokens, times in seconds, and where known the
        acceptance length.

        Raises NotFound, UserError when the engine rejects the prompt, CloudError, and EngineError.
        """
        from peagle.deploy.invoke import InvokeRequest, WakeUpOptions, invoke, invoke_local

        request = InvokeRequest(prompt, chat, max_tokens, temperature, stream, payload)
        if engine := self.local_engine(name):
            return invoke_local(engine, request, on_text or silent)
        record, aws = self.find_served(name)
        wake_up = WakeUpOptions(wake_timeout, say or silent)
        return invoke(aws, name, record, request, on_text or silent, wake_up)

    def status(self, name: str) -> dict[str, Any]:
        """What ``peagle status --json`` prints of a deployment: state, acceptance, address, price,
        resources. Raises NotFound and CloudError."""
        from peagle.deploy.status import deployment_status

        record, aws = self.find(name, complete=True)
        status: dict[str, Any] = plain(deployment_status(aws, record))
        return status

    def deployments(self) -> list[dict[str, Any]]:
        """The rows of ``peagle list --json``: the account's deployments in the session's region, or
        in the default one and those that this machine has deployed to. A damaged record is a
        warning. Raises AccessDenied where they may not be listed, and UserError without
        credentials."""
        if not self.is_available:
            return []
        listing = self.listing()
        for unknown in listing.unknown:
            raise unknown
        for damaged in listing.damaged:
            warnings.warn(str(damaged), stacklevel=2)
        return [plain(row) for row in listing.rows]

    def usage(self, name: str, window_seconds: float = 300.0) -> Usage:
        """The use of a deployment in the last seconds: requests, errors, times in seconds, tokens,
        acceptance, cost; ``None`` is unknown. Raises NotFound and CloudError."""
        from peagle.deploy.status import read_endpoint_usage

        record, aws = self.find(name)
        return read_endpoint_usage(aws, record, window_seconds)

    def rollback(self, name: str, *, say: Say | None = None) -> Deployment:
        """Return a deployment to its previous revision, and prove that again; the revision that
        served is then the previous one.

        Raises NotFound, Refused without a previous revision or its weights, NotProved when it
        serves again without a proof, and CloudError, after which the same call continues.
        """
        from peagle.deploy.apply import rollback

        with self.changing(name, say=say) as change:
            return change.run(rollback, self.catalog)

    def destroy(
        self, name: str, *, missing_ok: bool = False, say: Say | None = None
    ) -> tuple[Resource, ...]:
        """Remove everything that was created for a deployment, and return it; the log stays. With
        ``missing_ok`` an unknown name is no error.

        Raises NotFound, Refused when a template owns it, and CloudError; repeat it for the rest.
        """
        from peagle.deploy.removal import destroy, plan_removal

        try:
            with self.changing(name, say=say) as change:
                removal = plan_removal(change.aws, name, change.record)
                removed, _ = change.run(destroy, removal.leftovers)
                return removed
        except NotFound:
            if missing_ok:
                return ()
            raise

    def find_ended(self, regions: Sequence[str] = ()) -> EndedSearch:
        """The deployments whose end time (``ttl``, ``budget``) has passed, in these regions, or in
        all of SageMaker. Raises CloudError when no region accepts the credentials."""
        from peagle.aws.regions import hosting_regions
        from peagle.deploy.removal import find_ended

        aws = self.aws(regions[0] if regions else None)
        places = regions or hosting_regions(aws.partition)
        return find_ended(aws, sorted({*places}), self.prices)

    def reap(self, ended: Sequence[Ended], *, say: Say | None = None) -> tuple[Reaped, ...]:
        """Remove what remains of these deployments of ``find_ended``, one after the other; one that
        fails, by its ``error``, does not stop the next. One that got another end time meanwhile
        stays."""
        from peagle.deploy.removal import Reaped, destroy
        from peagle.deploy.status import is_past_end

        done: list[Reaped] = []
        for deployment in ended:
            outcome = Reaped(**dict(deployment), error=None)
            try:
                with self.changing(deployment.name, deployment.region, say) as change:
                    if is_past_end(change.record):
                        removed, kept = change.run(destroy, continues=False)
                        outcome = Reaped(**dict(deployment), removed=removed, kept=kept, error=None)
            except PeagleError as error:
                outcome = outcome.model_copy(update={"error": error})
            done.append(outcome)
        return tuple(done)

    def _reader(self, online: bool) -> Callable[[str], Checkpoint]:
        """What reads the files of a model: with ``online`` also from S3 and the Hub."""

        @cache
        def read(location: str) -> Checkpoint:
            if not online and (is_s3_uri(location) or is_on_hub(location)):
                unread = target_not_read(location, (), self.catalog)
                raise NotFound(unread.message, "add online=True to read it", code=unread.code)
            return checkpoint_at(location, self.connect)

        return read


def _validate_options(options: Mapping[str, Any], kind: type[Options], of: str) -> dict[str, Any]:
    """The fields of ``kind`` that the options set, lists as tuples; ``None`` sets none. Raises
    UserError for a name that ``of`` does not have, and for a value of another type."""
    from pydantic import ValidationError

    keywords = read_keywords(kind)
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in keywords:
            raise UserError(
                f"{of} has no option {name!r}", nearest(name, keywords), "unknown-option"
            )
        field = keywords[name]
        if value is None:
            continue
        if field == "slo" and isinstance(value, str):
            value = parse_slo(value)
        if field == "settings" and isinstance(value, Mapping):
            value = {key: _as_text(setting) for key, setting in value.items()}
        values[field] = tuple(value) if isinstance(value, list) else value
    try:
        kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = f"{problem['loc'][0]} of {of} cannot be {sanitize(repr(problem['input']), 60)}"
        raise UserError(message, problem["msg"]) from None
    return values


def _as_text(value: object) -> object:
    """A setting of vLLM as on the command line; ``None`` leaves it out."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool | int | float) else value


def plan_pair_online(
    account: Account,
    pair: str,
    fields: Mapping[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
    verdict: Path | None = None,
) -> Plan:
    """``plan_pair`` with today's price, the Hub's commits, and findings about quota and weights;
    where AWS does not answer, with the catalogue's prices and a warning."""
    from peagle.deploy.preflight import plan_with_live_prices
    from peagle.weights.mounted import pin_revisions

    aws = account.aws(fields.get("region") or DEFAULT_REGION)
    pinned, drafter, reasons, findings = pin_revisions(
        catalog, plan_pair(pair, fields, catalog, aws_of, verdict)
    )
    if drafter:
        fields = {**fields, "drafter": drafter}

    def planned(catalog: Catalog) -> Plan:
        return plan_pair(pair, fields, catalog, lambda: aws, verdict)

    plan = plan_with_live_prices(aws, pinned, planned)
    more = {"reasons": (*plan.reasons, *reasons), "findings": (*plan.findings, *findings)}
    return plan.model_copy(update=more)


def plan_file_online(account: Account, plan: Plan, catalog: Catalog) -> Plan:
    """The plan of a file with today's price, the same findings and missing pins."""
    from peagle.deploy.preflight import plan_with_price_of_today

    return plan_with_price_of_today(account.aws(plan.region), catalog, plan)
