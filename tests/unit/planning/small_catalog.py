"""A catalogue of three targets and five instance types, small enough to calculate with by hand."""

from dataclasses import replace
from datetime import date
from typing import Any

from peagle.catalog.loading import load_catalog
from peagle.catalog.schema import (
    Architecture,
    AttentionGroup,
    Catalog,
    Drafter,
    EngineSetting,
    KnownProblem,
    ProofPrompts,
    Target,
)
from peagle.catalog.tables import Instance, InstanceTable, Price, Runtime, RuntimeTable
from peagle.data import data_folder
from peagle.findings import Finding
from peagle.planning import Options, Plan, make_plan
from peagle.planning.plan import Reason

GB = 1_000_000_000
TODAY = date(2026, 7, 1)
SHAPE = Architecture(
    class_name="LlamaForCausalLM",
    hidden_size=1024,
    layers=16,
    query_heads=16,
    attention=(AttentionGroup(kind="full", layers=16, kv_heads=8, head_dim=64),),
    vocab_size=32000,
    intermediate_size=4096,
    max_positions=8192,
)
P_EAGLE = Drafter(
    name="p-eagle",
    title="P-EAGLE head for Chat",
    method="eagle3",
    parallel_drafting=True,
    weights="acme/chat-p-eagle",
    revision="abc123",
    licence="apache-2.0",
    min_vllm="0.18.0",
    k_trained=8,
    k_recommended=5,
    hidden_layers=4,
    weight_bytes=1 * GB,
    max_positions=4096,
    acceptance_floor=1.5,
    engine_arguments=(
        EngineSetting(
            name="no-enable-prefix-caching", value=True, because="its model card sets it"
        ),
    ),
    problems=(
        KnownProblem(
            code="old-bug",
            level="warning",
            summary="it fails",
            vllm="<0.20.0",
            fix="use a later vLLM",
            source="issue 1",
        ),
    ),
    source="its card",
)
EAGLE3 = Drafter(
    name="eagle3", title="EAGLE-3 head for Chat", method="eagle3", weights="acme/chat-eagle3",
    revision="def456", min_vllm="0.16.0", k_recommended=3, hidden_layers=1, weight_bytes=GB // 2,
    source="its card",
)  # fmt: skip
NGRAM = Drafter(
    name="ngram",
    title="n-gram lookup",
    method="ngram",
    min_vllm="0.16.0",
    k_recommended=4,
    speculative_settings={"prompt_lookup_max": 4},
    source="vLLM's documentation",
)
CHAT = Target(
    id="acme/chat",
    short_name="chat",
    title="Chat",
    weights="acme/chat",
    revision="0123456",
    licence="apache-2.0",
    weight_bytes=16 * GB,
    parameters=8 * GB,
    min_vllm="0.16.0",
    default_max_model_len=4096,
    architecture=SHAPE,
    engine_arguments=(
        EngineSetting(
            name="kv-cache-dtype", value="fp8", because="Blackwell", gpu_architectures=("sm_100",)
        ),
        EngineSetting(name="old-flag", value=True, because="old", vllm="<0.20.0"),
    ),
    default_drafter="p-eagle",
    drafters=(P_EAGLE, EAGLE3, NGRAM),
    proof=ProofPrompts(prompts=("Hello?",)),
    source="its card",
)
SECRET = CHAT.model_copy(
    update={
        "id": "acme/secret",
        "short_name": "secret",
        "title": "Secret",
        "weights": "acme/secret",
        "drafters": (
            P_EAGLE.model_copy(
                update={
                    "title": "P-EAGLE head for Secret",
                    "public": False,
                    "weights": None,
                    "revision": None,
                    "fallback": "eagle3",
                }
            ),
            EAGLE3.model_copy(update={"weights": "acme/secret-eagle3"}),
        ),
    }
)
SMALL = CHAT.model_copy(
    update={
        "id": "acme/small",
        "short_name": "small",
        "title": "Small",
        "weights": "./small/target",
        "weight_bytes": 2_000_000,
        "drafters": (P_EAGLE.model_copy(update={"weights": "./small/head", "revision": None}),),
    }
)


def instance(
    type: str, gpus: int, gib: float, architecture: str, price: float | None, region: str
) -> Instance:
    prices: tuple[Price, ...] = ()
    if price is not None:
        prices = (Price(usd_per_hour=price, region=region, date=TODAY, source="a list"),)
    return Instance(
        type=type,
        gpu=f"GPU-{architecture}",
        gpu_count=gpus,
        gpu_memory_mib=int(gib * 1024),
        gpu_architecture=architecture,
        vcpus=4,
        memory_gib=16,
        prices=prices,
    )


INSTANCES = InstanceTable(
    checked=TODAY,
    source="here",
    instances=(
        instance("ml.g4dn.xlarge", 1, 64, "sm_75", 0.5, "us-east-1"),
        instance("ml.g5.xlarge", 1, 16, "sm_86", 1.0, "us-east-1"),
        instance("ml.g5.12xlarge", 4, 16, "sm_86", 4.0, "us-east-1"),
        instance("ml.g6e.xlarge", 1, 48, "sm_89", 3.0, "eu-west-1"),
        instance("ml.p6-b200.48xlarge", 8, 180, "sm_100", None, "us-east-1"),
        instance("ml.g7e.2xlarge", 1, 96, "sm_120", 4.2, "us-east-1"),
    ),
)


def runtime(vllm: str, regions: tuple[str, ...] = ()) -> Runtime:
    return Runtime(
        vllm=vllm, repository="vllm", tag=f"{vllm}-gpu-cu130", cuda="13.0", ami="the-ami",
        regions=regions,
    )  # fmt: skip


RUNTIMES = RuntimeTable(
    default="0.28.0",
    checked=TODAY,
    source="here",
    accounts={"us-east-1": "111111111111", "eu-west-1": "222222222222", "ap-east-1": "3" * 12},
    ami_families=("g4dn", "g5", "g6e"),
    runtimes=(runtime("0.17.1"), runtime("0.19.0"), runtime("0.28.0", ("us-east-1", "eu-west-1"))),
)
_TARGETS = (CHAT, SECRET, SMALL)
CATALOG = Catalog(
    targets={target.id: target for target in _TARGETS},
    runtimes=RUNTIMES,
    instances=INSTANCES,
    origins={t.id: str(data_folder("model_catalog") / f"{t.id}.yaml") for t in _TARGETS},
    speed_model=load_catalog().speed_model,
)


def with_target(target: Target) -> Catalog:
    """The catalogue with this target replacing the one with the same id."""
    return replace(CATALOG, targets={**CATALOG.targets, target.id: target})


def plan(pair: str = "chat", catalog: Catalog = CATALOG, **options: Any) -> Plan:
    """A plan from the small catalogue."""
    return make_plan(Options(pair=pair, **options), catalog)


def codes(plan: Plan, level: str | None = None) -> list[str]:
    """The codes of a plan's findings, of one level or of all."""
    return [f.code for f in plan.findings if level in (None, f.level)]


def finding_of(plan: Plan, name: str) -> Finding:
    """The only finding with this code or level."""
    (match,) = [finding for finding in plan.findings if name in (finding.code, finding.level)]
    return match


def reason_of(plan: Plan, what: str) -> Reason | None:
    """The reason for a choice, or ``None`` when the user made it."""
    return next((reason for reason in plan.reasons if reason.what == what), None)


def because(plan: Plan, what: str) -> str | None:
    """The code of the reason for a choice, or ``None`` when the user made it."""
    reason = reason_of(plan, what)
    return reason.code if reason else None
