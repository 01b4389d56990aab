"""What a program does with the toolkit before anything is deployed: choose, check, reproduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from peagle import api
from peagle.errors import NotFound, OptionMissing, UserError, nearest
from peagle.findings import Finding, errors, refused
from peagle.store import write_output
from peagle.text import sanitize
from peagle_serve.contract import is_s3_uri

if TYPE_CHECKING:
    from peagle.account import Account
    from peagle.aws.client import Aws
    from peagle.catalog.schema import Catalog
    from peagle.checkpoints.models import Checkpoint
    from peagle.checks.report import CheckReport
    from peagle.deploy.diff import PlanComparison
    from peagle.fit.report import FitReport
    from peagle.planning.plan import Plan
    from peagle.render.files import RenderedFile
    from peagle.speed.models import WorkloadName
    from peagle.speed.verdict import Verdict


class Planner:
    """The part of a Session that creates nothing. Nothing is sent, unless ``online`` or the
    location of a model says so."""

    def __init__(
        self,
        region: str | None = None,
        profile: str | None = None,
        *,
        sandbox: bool = False,
        catalog: str | Path | None = None,
    ) -> None:
        self.region, self.profile, self.sandbox = region, profile, sandbox
        self._folder = _path(catalog, "the catalogue") if catalog is not None else None

    def __repr__(self) -> str:
        where = "sandbox" if self.sandbox else self.profile or "default credentials"
        return f"<Session: {where}, {self.region or 'default region'}>"

    @cached_property
    def catalog(self) -> Catalog:
        """The bundled catalogue, with the targets of your own folder.

        Raises:
            CatalogError: a table of the catalogue is wrong.
        """
        return api.load_catalog(self._folder)

    def plan(
        self,
        pair: str,
        *,
        online: bool = False,
        verdict: str | Path | None = None,
        **options: Any,
    ) -> Plan:
        """Plan a deployment: drafter, K, instances, price, arguments, and the reasons.

        Parameters:
            pair: ``TARGET`` or ``TARGET+DRAFTER`` of the catalogue, a folder with a model, or with
                ``online`` an ``s3://`` prefix or an id on the Hub.
            online: query AWS for prices, quotas and weights, and the Hub for models.
            verdict: a file of ``peagle verdict``, which then chooses drafter and K.
            options: the options of ``peagle plan`` with underscores, such as ``concurrency=10``,
                ``max_model_len=8192``, ``slo="ttft=0.5"``, ``ttl=3600`` (seconds), or
                ``speculation=False``; ``peagle.Options`` has all of them with their types.

        Returns:
            The plan. Its ``findings`` may have errors, with which ``deploy`` refuses it.

        Raises:
            NotFound: the catalogue does not have the pair or the drafter.
            UserError: an option is unknown, impossible, or contradicts another.
        """
        from peagle.planning.options import Options

        region = options.get("region") or self.region
        given = _known({"pair": pair, **options, "region": region}, Options, "plan")
        del given["pair"]
        if isinstance(given.get("slo"), str):
            given["slo"] = api.parse_slo(given["slo"])
        own = api.with_own_target(self.catalog, pair, self._reader(online))
        given["target_checkpoint"] = own.checkpoint
        needs_head = online and not api.find_pair(own.catalog, pair).target.drafters
        region = given.get("region")
        reader = (lambda: self.connect(region)) if needs_head else None
        file = _path(verdict, "the verdict") if verdict is not None else None
        if not online:
            return api.plan_pair(pair, given, own.catalog, reader, file)
        account = self._account()
        account.start()
        return api.plan_pair_online(account, pair, given, own.catalog, reader, file)

    def read_plan(self, path: str | Path) -> Plan:
        """Read a plan file.

        Parameters:
            path: a file of ``save_plan`` or ``peagle plan -o``.

        Returns:
            The plan, as it was saved.

        Raises:
            PlanFileError: the file is missing, damaged, or was edited.
        """
        return api.read_plan(_path(path, "the plan file"))

    def save_plan(self, plan: Plan, path: str | Path) -> None:
        """Write a plan file, for ``read_plan``, ``peagle deploy`` and ``peagle render``.

        Parameters:
            plan: the plan.
            path: the file, which is replaced at once if it exists: readers see one or the other.

        Raises:
            Refused: the plan has an error; its code is that of the finding.
            UserError: the file cannot be written.
        """
        refuse_errors(plan.findings)
        write_output(_path(path, "the plan file"), api.plan_bytes(plan))

    def compare(self, first: Plan, second: Plan) -> PlanComparison:
        """Compare two plans.

        Parameters:
            first: a plan.
            second: the other one.

        Returns:
            Their results side by side, and the settings that differ.
        """
        return api.compare_plans(first, second)

    def verdict(
        self,
        pair: str,
        *,
        gpu: str | None = None,
        instance_type: str | None = None,
        concurrency: Sequence[int] | int | None = None,
        workload: WorkloadName | None = None,
        prompt_tokens: int | None = None,
        cached_prompt_tokens: int | None = None,
        shared_prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        vllm: str | None = None,
    ) -> Verdict:
        """Compare speculation by load: the fastest drafter and K, and where it stops paying.

        Parameters:
            pair: a target, or a target and the one drafter to compare.
            gpu: a GPU such as ``H200``; this or ``instance_type`` is needed.
            instance_type: a SageMaker instance type.
            concurrency: numbers of requests at a time; by default 1, 2, 4 ... 256.
            workload: a preset of the size of requests: chat, agent, rag or batch.
            prompt_tokens: tokens of each prompt, with ``output_tokens``; by default three sizes.
            cached_prompt_tokens: tokens of the prompt that are in the prefix cache.
            shared_prompt_tokens: of these, the tokens with which all prompts begin.
            output_tokens: tokens of each answer.
            vllm: a version of vLLM; by default the catalogue's.

        Returns:
            The verdict, with an entry for each size and load.

        Raises:
            NotFound: an unknown pair, GPU or instance type.
            UserError: neither GPU nor instance type, or only one number of tokens.
            Refused: not even the target alone fits.
        """
        from peagle.planning.options import Options
        from peagle.planning.verdict import LOADS, VerdictRequest

        if gpu is None and instance_type is None:
            raise OptionMissing(
                "a verdict needs a GPU", "name a gpu such as H200, or an instance_type"
            )
        loads = concurrency if isinstance(concurrency, Sequence) else (concurrency,)
        if concurrency is None:
            loads = LOADS
        if not all(type(load) is int and load > 0 for load in loads):
            raise UserError(
                f"concurrency of verdict cannot be {sanitize(repr(concurrency), 60)}",
                "use whole numbers from 1 on",
            )
        engine = {"gpu": gpu, "instance_type": instance_type, "loads": tuple(loads)}
        given = _known({"pair": pair, **engine}, VerdictRequest, "verdict")
        size = {
            "workload": workload,
            "prompt_tokens": prompt_tokens,
            "cached_prompt_tokens": cached_prompt_tokens,
            "shared_prompt_tokens": shared_prompt_tokens,
            "output_tokens": output_tokens,
            "vllm": vllm,
        }
        _known(size, Options, "verdict")
        sizes = api.sizes_of_requests(
            workload, prompt_tokens, cached_prompt_tokens, output_tokens, shared_prompt_tokens
        )
        request = VerdictRequest(workloads=sizes, vllm=vllm, region=self.region, **given)
        return api.make_verdict(request, self.catalog)

    def check(
        self, pair: str, *, target: str | None = None, drafter: str | None = None, **options: Any
    ) -> CheckReport:
        """Check a pair: config.json, the headers of its weights, versions, image and instance.

        Parameters:
            pair: a pair of the catalogue, or the location of a model.
            target: where the target's files are: a folder, ``s3://...``, a Hub id, or ``hf`` for
                the catalogue's own repository.
            drafter: where the head's files are, in the same way.
            options: fields of ``peagle check``, such as ``k``, ``max_model_len``,
                ``instance_type`` or ``vllm``.

        Returns:
            The report; ``findings`` of the level ``error`` are what ``deploy`` would refuse.

        Raises:
            NotFound: an unknown pair or location.
            CheckpointError: files that cannot be read, or are damaged.
            UserError: an unknown option.
        """
        from peagle.checks.report import HUB, CheckRequest

        named = {"pair": pair, "target": target, "drafter": drafter}
        given = _known({**named, **options}, CheckRequest, "check")
        read = self._reader(online=True)
        at = target if target not in (None, HUB) else None
        own = api.with_own_target(self.catalog, pair, lambda location: read(at or location))
        if own.checkpoint is not None and at is None:
            target = own.checkpoint.location
        request = CheckRequest(**{**given, "target": target})
        return api.check(request, own.catalog, read)

    def fit(self, pair: str | None = None, **options: Any) -> FitReport:
        """Estimate GPU memory and concurrent capacity.

        Parameters:
            pair: a pair of the catalogue, or a folder with a config.json.
            options: the options of ``peagle fit`` with underscores: ``gpu_memory_gib`` or
                ``instance_type``, ``max_model_len``, ``max_num_seqs``, ``k`` ...

        Returns:
            The report; ``refusal`` says why it does not fit, and ``advice`` what would.

        Raises:
            NotFound: an unknown pair or instance type.
            CheckpointError: files that cannot be read.
            UserError: an option is unknown, or contradicts another.
        """
        from peagle.fit.report import FitRequest

        given = _known({"pair": pair, **options}, FitRequest, "fit")
        given.pop("pair", None)
        if pair is not None and "target" not in given and api.is_own_target(self.catalog, pair):
            own = api.with_own_target(self.catalog, pair, self._reader(online=True))
            given["target"] = own.checkpoint.location if own.checkpoint else None
            pair = pair if api.find_pair(own.catalog, pair).target.drafters else None
            return api.fit(FitRequest(pair, **given), own.catalog, self._reader(online=True))
        return api.fit(FitRequest(pair, **given), self.catalog, self._reader(online=True))

    def render(
        self, format: str, plan: Plan, folder: str | Path | None = None
    ) -> tuple[RenderedFile, ...]:
        """Express a plan in another tool's format.

        Parameters:
            format: such as ``terraform`` or ``cloudformation``; an unknown name lists all.
            plan: the plan.
            folder: write the files here, which must be empty or missing. By default nothing is
                written.

        Returns:
            The files: path below the folder, and content.

        Raises:
            NotFound: an unknown format.
            Unsupported: the format cannot express the plan; the fix names one that can.
            Refused: the plan has an error; its code is that of the finding.
            UserError: the folder is not empty, or cannot be written.
        """
        refuse_errors(api.findings_of_format(plan, format))
        files = api.render(format, plan, self.catalog)
        if folder is not None:
            api.write_folder(Path(folder), files)
        return files

    def connect(self, region: str | None = None) -> Aws:
        """Connect to the account or the sandbox, which is started if it does not run.

        Parameters:
            region: by default the session's.

        Returns:
            A connection, which sends nothing yet.

        Raises:
            UserError: a wrong profile, or one together with the sandbox.
            EngineError: the sandbox cannot be started.
        """
        account = self._account()
        account.start()
        return account.connect(region or self.region or api.default_region())

    def _account(self) -> Account:
        """The account or the sandbox, which is not started. Raises UserError for both."""
        own = (lambda: self.catalog.instances.instances) if self._folder else tuple
        return api.choose_account(self.profile, self.sandbox, own_instances=own)

    def _reader(self, online: bool) -> Callable[[str], Checkpoint]:
        """What reads the files of a model: with ``online`` also from S3 and the Hub."""

        def read(location: str) -> Checkpoint:
            if not online and (is_s3_uri(location) or api.is_on_hub(location)):
                unread = api.target_not_read(location, (), self.catalog)
                raise NotFound(
                    unread.message, "add online=True to read it from there", code=unread.code
                )
            return api.checkpoint_at(location, self.connect)

        return read


def _known(options: Mapping[str, Any], kind: type, of: str) -> dict[str, Any]:
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


def _path(value: Any, what: str) -> Path:
    try:
        return Path(value)
    except TypeError:
        message = f"{what} cannot be {sanitize(repr(value), 60)}"
        raise UserError(message, "use the path of a file or a folder") from None


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise Refused with the first error."""
    for finding in errors(findings)[:1]:
        raise refused(finding)
