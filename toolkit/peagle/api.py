"""The public functions of the toolkit, which the commands call: ``from peagle import api``.

A pair from the catalogue becomes a Plan; everything else reads the Plan. Each function is imported
from its package when it is used, so that ``peagle --help`` loads neither boto3 nor pydantic. The
imports below are for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peagle.account import choose_account as choose_account
    from peagle.account import default_region as default_region
    from peagle.account import find_deployed as find_deployed
    from peagle.account import find_served as find_served
    from peagle.account import leads_to_sandbox as leads_to_sandbox
    from peagle.aws.ecr import image_resources as image_resources
    from peagle.aws.ecr import remove_image_resources as remove_image_resources
    from peagle.aws.images import build_image as build_image
    from peagle.aws.images import build_image_on_aws as build_image_on_aws
    from peagle.aws.images import image_to_push as image_to_push
    from peagle.aws.images import push_image as push_image
    from peagle.aws.refresh import refresh_tables as refresh_tables
    from peagle.aws.refresh import table_changes as table_changes
    from peagle.aws.regions import hosting_regions as hosting_regions
    from peagle.bench.acceptance import with_text_acceptance as with_text_acceptance
    from peagle.bench.url_proof import prove_url as prove_url
    from peagle.bench.variants import comparison_report as comparison_report
    from peagle.catalog import find_instance as find_instance
    from peagle.catalog import find_pair as find_pair
    from peagle.catalog import load_catalog as load_catalog
    from peagle.catalog.entry_file import entry_text as entry_text
    from peagle.catalog.evidence import evidence_for as evidence_for
    from peagle.catalog.evidence import load_evidence as load_evidence
    from peagle.catalog.find import default_support as default_support
    from peagle.catalog.find import describe_pair as describe_pair
    from peagle.catalog.find import summarize_target as summarize_target
    from peagle.catalog.find import summarize_targets as summarize_targets
    from peagle.catalog.loading import check_catalog as check_catalog
    from peagle.catalog.loading import check_catalog_file as check_catalog_file
    from peagle.catalog.loading import holds_measurements as holds_measurements
    from peagle.catalog.loading import load_storage as load_storage
    from peagle.catalog.schema import kv_bytes as kv_bytes
    from peagle.catalog.writing import new_texts as new_texts
    from peagle.catalog.writing import refuse_unwritable as refuse_unwritable
    from peagle.catalog.writing import write_texts as write_texts
    from peagle.checkpoints.contents import watch_hashing as watch_hashing
    from peagle.checks.registry import rules_found as rules_found
    from peagle.checks.report import check as check
    from peagle.checks.report import check_document as check_document
    from peagle.checks.report import check_local_weights as check_local_weights
    from peagle.deploy.alarms import mixes_drafts as mixes_drafts
    from peagle.deploy.apply import deploy as deploy
    from peagle.deploy.comparison import change_share as change_share
    from peagle.deploy.comparison import drop as drop
    from peagle.deploy.comparison import options_beside as options_beside
    from peagle.deploy.comparison import options_of_served as options_of_served
    from peagle.deploy.comparison import promote as promote
    from peagle.deploy.comparison import require_comparable as require_comparable
    from peagle.deploy.comparison import start_comparison as start_comparison
    from peagle.deploy.diff import compare_plans as compare_plans
    from peagle.deploy.drift import find_drift as find_drift
    from peagle.deploy.drift import find_template_drift as find_template_drift
    from peagle.deploy.drift import served_image as served_image
    from peagle.deploy.fallback import deploy_where_possible as deploy_where_possible
    from peagle.deploy.invoke import WakeUpOptions as WakeUpOptions
    from peagle.deploy.invoke import invoke as invoke
    from peagle.deploy.invoke import invoke_local as invoke_local
    from peagle.deploy.preflight import preflight as preflight
    from peagle.deploy.proving import prove as prove
    from peagle.deploy.proving import request_of_revision as request_of_revision
    from peagle.deploy.records import deployment_lock as deployment_lock
    from peagle.deploy.records import deployment_names as deployment_names
    from peagle.deploy.records import deployment_regions as deployment_regions
    from peagle.deploy.records import find_record as find_record
    from peagle.deploy.records import load_record as load_record
    from peagle.deploy.records import refuse_weights_in_use as refuse_weights_in_use
    from peagle.deploy.records import remove_record as remove_record
    from peagle.deploy.removal import destroy as destroy
    from peagle.deploy.removal import find_ended as find_ended
    from peagle.deploy.removal import find_leftovers as find_leftovers
    from peagle.deploy.removal import possible_saving as possible_saving
    from peagle.deploy.removal import reap as reap
    from peagle.deploy.removal import remove_failed_start as remove_failed_start
    from peagle.deploy.removal import remove_leftover as remove_leftover
    from peagle.deploy.revisions import deploy_command as deploy_command
    from peagle.deploy.revisions import require_own as require_own
    from peagle.deploy.revisions import required_comparison as required_comparison
    from peagle.deploy.rollback import end_rollback as end_rollback
    from peagle.deploy.rollback import preview_rollback as preview_rollback
    from peagle.deploy.rollback import previous_resources as previous_resources
    from peagle.deploy.rollback import remove_previous as remove_previous
    from peagle.deploy.rollback import revision_for_rollback as revision_for_rollback
    from peagle.deploy.rollback import rollback as rollback
    from peagle.deploy.scale import plan_scale as plan_scale
    from peagle.deploy.scale import scale as scale
    from peagle.deploy.scale import scale_request as scale_request
    from peagle.deploy.status import cost_of_remaining as cost_of_remaining
    from peagle.deploy.status import deployment_status as deployment_status
    from peagle.deploy.status import endpoint_created as endpoint_created
    from peagle.deploy.status import list_deployments as list_deployments
    from peagle.deploy.status import require_known_price as require_known_price
    from peagle.deploy.status import stand_in_of as stand_in_of
    from peagle.deploy.usage import age_of_newest_line as age_of_newest_line
    from peagle.deploy.usage import endpoint_log as endpoint_log
    from peagle.deploy.usage import reported_warm_start as reported_warm_start
    from peagle.deploy.usage import usage_of_endpoint as usage_of_endpoint
    from peagle.deploy.wait import limit_seconds as limit_seconds
    from peagle.engine.container import find_image as find_image
    from peagle.engine.install import install_engine as install_engine
    from peagle.engine.install import is_installed as is_installed
    from peagle.engine.install import missing_libraries as missing_libraries
    from peagle.engine.local import start_local as start_local
    from peagle.engine.local import stop_local as stop_local
    from peagle.engine.logs import local_log as local_log
    from peagle.engine.machine import check_environment as check_environment
    from peagle.engine.machine import find_engine as find_engine
    from peagle.engine.machine import installed_engines as installed_engines
    from peagle.engine.process import is_healthy as is_healthy
    from peagle.engine.runner import compose_of_plan as compose_of_plan
    from peagle.engine.state import local_engine_names as local_engine_names
    from peagle.engine.state import local_engines as local_engines
    from peagle.engine.state import read_local_engine as read_local_engine
    from peagle.engine.state import read_warm_start as read_warm_start
    from peagle.engine.state import ready_engine as ready_engine
    from peagle.engine.state import unreadable_records as unreadable_records
    from peagle.engine.state import warm_folder as warm_folder
    from peagle.engine.usage import EngineMeter as EngineMeter
    from peagle.fit.advice import mildest as mildest
    from peagle.fit.report import fit as fit
    from peagle.fit.report import fit_document as fit_document
    from peagle.images.build import findings_for_build as findings_for_build
    from peagle.images.build import findings_of_format as findings_of_format
    from peagle.images.build import findings_on_this_machine as findings_on_this_machine
    from peagle.images.docker import compose_command as compose_command
    from peagle.images.docker import connect_docker as connect_docker
    from peagle.images.inspect import unchecked_image as unchecked_image
    from peagle.planning import make_plan as make_plan
    from peagle.planning.by_verdict import is_covered as is_covered
    from peagle.planning.candidates import batch_at as batch_at
    from peagle.planning.company import check_company as check_company
    from peagle.planning.company import parse_tags as parse_tags
    from peagle.planning.limit import most_usd_per_hour as most_usd_per_hour
    from peagle.planning.overrides import checked_settings as checked_settings
    from peagle.planning.overrides import parse_settings as parse_settings
    from peagle.planning.overrides import parse_variables as parse_variables
    from peagle.planning.verdict import make_verdict as make_verdict
    from peagle.planning.verdict import sizes_of_requests as sizes_of_requests
    from peagle.plans import plan_file_online as plan_file_online
    from peagle.plans import plan_pair as plan_pair
    from peagle.plans import plan_pair_online as plan_pair_online
    from peagle.project.choosing import choose_endpoint as choose_endpoint
    from peagle.project.choosing import endpoints_of as endpoints_of
    from peagle.project.choosing import environments_of as environments_of
    from peagle.project.pipelines import pipeline_files as pipeline_files
    from peagle.project.pipelines import schema_bytes as schema_bytes
    from peagle.project.pipelines import starter_project as starter_project
    from peagle.project.reading import find_project as find_project
    from peagle.project.reading import project_schema as project_schema
    from peagle.project.reading import read_project as read_project
    from peagle.project.toolkit import toolkit_source as toolkit_source
    from peagle.proof import SecondTurn as SecondTurn
    from peagle.proof import floor_text as floor_text
    from peagle.proof import pair_in_catalogue as pair_in_catalogue
    from peagle.proof import proof_findings as proof_findings
    from peagle.proof import require_passed as require_passed
    from peagle.proof import second_turn_text as second_turn_text
    from peagle.protocol import request_body as request_body
    from peagle.render import format_files as format_files
    from peagle.render import format_names as format_names
    from peagle.render import plan_bytes as plan_bytes
    from peagle.render import plan_document as plan_document
    from peagle.render import read_plan as read_plan
    from peagle.render import render as render
    from peagle.render.files import write_folder as write_folder
    from peagle.render.image_names import is_own_image as is_own_image
    from peagle.render.image_names import read_image_address as read_image_address
    from peagle.render.requests import deploy_arguments as deploy_arguments
    from peagle.render.requests import label_arguments as label_arguments
    from peagle.render.requests import pair_arguments as pair_arguments
    from peagle.render.verdict_file import verdict_bytes as verdict_bytes
    from peagle.render.verdict_file import verdict_document as verdict_document
    from peagle.sandbox.client import add_fault as add_fault
    from peagle.sandbox.client import changed_quotas as changed_quotas
    from peagle.sandbox.client import check_sandbox_engine as check_sandbox_engine
    from peagle.sandbox.client import clear_faults as clear_faults
    from peagle.sandbox.client import conflicting_variables as conflicting_variables
    from peagle.sandbox.client import list_faults as list_faults
    from peagle.sandbox.client import running_sandbox as running_sandbox
    from peagle.sandbox.client import sandbox_not_running as sandbox_not_running
    from peagle.sandbox.client import sandbox_status as sandbox_status
    from peagle.sandbox.client import set_quota as set_quota
    from peagle.sandbox.client import set_scaling_speed as set_scaling_speed
    from peagle.sandbox.client import start_sandbox as start_sandbox
    from peagle.sandbox.client import stop_sandbox as stop_sandbox
    from peagle.sandbox.faults import operation_names as operation_names
    from peagle.sandbox.state import engine_version as engine_version
    from peagle.speed.slo import parse_slo as parse_slo
    from peagle.vllm.defaults import schedules_ahead as schedules_ahead
    from peagle.warm.collect import check_writable as check_writable
    from peagle.warm.collect import collect_locally as collect_locally
    from peagle.warm.collect import collect_on_aws as collect_on_aws
    from peagle.warm.collect import collecting_plan as collecting_plan
    from peagle.warm.collect import prefix_of_weights as prefix_of_weights
    from peagle.weights.inspect import inspect_weights as inspect_weights
    from peagle.weights.inspect import remove_warm_start as remove_warm_start
    from peagle.weights.inspect import remove_weights as remove_weights
    from peagle.weights.layout import checkpoint_at as checkpoint_at
    from peagle.weights.layout import weights_at as weights_at
    from peagle.weights.layout import weights_prefix as weights_prefix
    from peagle.weights.new_entry import entry_file as entry_file
    from peagle.weights.new_entry import entry_findings as entry_findings
    from peagle.weights.new_entry import new_entry as new_entry
    from peagle.weights.own_target import is_on_hub as is_on_hub
    from peagle.weights.own_target import is_own_target as is_own_target
    from peagle.weights.own_target import target_not_read as target_not_read
    from peagle.weights.own_target import with_own_target as with_own_target
    from peagle.weights.sources import weights_of_pair as weights_of_pair
    from peagle.weights.sync import plan_sync as plan_sync
    from peagle.weights.sync import sync_weights as sync_weights

    plan = make_plan

_FUNCTIONS = {
    "peagle.account": (
        "choose_account", "default_region", "find_deployed", "find_served", "leads_to_sandbox",
    ),
    "peagle.aws.ecr": ("image_resources", "remove_image_resources"),
    "peagle.aws.images": ("build_image", "build_image_on_aws", "image_to_push", "push_image"),
    "peagle.aws.refresh": ("refresh_tables", "table_changes"),
    "peagle.aws.regions": ("hosting_regions",),
    "peagle.bench.acceptance": ("with_text_acceptance",),
    "peagle.bench.url_proof": ("prove_url",),
    "peagle.bench.variants": ("comparison_report",),
    "peagle.catalog": ("find_instance", "find_pair", "load_catalog"),
    "peagle.catalog.entry_file": ("entry_text",),
    "peagle.catalog.evidence": ("evidence_for", "load_evidence"),
    "peagle.catalog.find": (
        "default_support", "describe_pair", "summarize_target", "summarize_targets",
    ),
    "peagle.catalog.loading": (
        "check_catalog", "check_catalog_file", "holds_measurements", "load_storage",
    ),
    "peagle.catalog.schema": ("kv_bytes",),
    "peagle.catalog.writing": ("new_texts", "refuse_unwritable", "write_texts"),
    "peagle.checkpoints.contents": ("watch_hashing",),
    "peagle.checks.registry": ("rules_found",),
    "peagle.checks.report": ("check", "check_document", "check_local_weights"),
    "peagle.deploy.alarms": ("mixes_drafts",),
    "peagle.deploy.apply": ("deploy",),
    "peagle.deploy.comparison": (
        "options_beside", "options_of_served", "change_share",
        "require_comparable", "start_comparison", "drop", "promote",
    ),
    "peagle.deploy.diff": ("compare_plans",),
    "peagle.deploy.drift": ("find_drift", "find_template_drift", "served_image"),
    "peagle.deploy.fallback": ("deploy_where_possible",),
    "peagle.deploy.invoke": ("invoke", "invoke_local", "WakeUpOptions"),
    "peagle.deploy.preflight": ("preflight",),
    "peagle.deploy.proving": ("prove", "request_of_revision"),
    "peagle.deploy.records": (
        "deployment_lock", "deployment_names", "deployment_regions", "find_record", "load_record",
        "refuse_weights_in_use", "remove_record",
    ),
    "peagle.deploy.removal": (
        "find_leftovers", "remove_leftover", "find_ended", "reap", "destroy", "possible_saving",
        "remove_failed_start",
    ),
    "peagle.deploy.revisions": ("require_own", "deploy_command", "required_comparison"),
    "peagle.deploy.rollback": (
        "end_rollback", "previous_resources", "remove_previous", "revision_for_rollback",
        "rollback", "preview_rollback",
    ),
    "peagle.deploy.scale": ("plan_scale", "scale", "scale_request"),
    "peagle.deploy.status": (
        "require_known_price", "cost_of_remaining", "deployment_status", "endpoint_created",
        "list_deployments", "stand_in_of",
    ),
    "peagle.deploy.usage": (
        "age_of_newest_line", "endpoint_log", "reported_warm_start", "usage_of_endpoint",
    ),
    "peagle.deploy.wait": ("limit_seconds",),
    "peagle.engine.container": ("find_image",),
    "peagle.engine.install": ("install_engine", "is_installed", "missing_libraries"),
    "peagle.engine.local": ("start_local", "stop_local"),
    "peagle.engine.logs": ("local_log",),
    "peagle.engine.machine": ("check_environment", "find_engine", "installed_engines"),
    "peagle.engine.process": ("is_healthy",),
    "peagle.engine.runner": ("compose_of_plan",),
    "peagle.engine.state": (
        "local_engine_names", "local_engines", "read_local_engine", "ready_engine",
        "unreadable_records", "warm_folder", "read_warm_start",
    ),
    "peagle.engine.usage": ("EngineMeter",),
    "peagle.fit.advice": ("mildest",),
    "peagle.fit.report": ("fit", "fit_document"),
    "peagle.images.build": ("findings_for_build", "findings_of_format", "findings_on_this_machine"),
    "peagle.images.docker": ("compose_command", "connect_docker"),
    "peagle.images.inspect": ("unchecked_image",),
    "peagle.planning.by_verdict": ("is_covered",),
    "peagle.planning.candidates": ("batch_at",),
    "peagle.planning.company": ("check_company", "parse_tags"),
    "peagle.planning.limit": ("most_usd_per_hour",),
    "peagle.planning.overrides": ("checked_settings", "parse_settings", "parse_variables"),
    "peagle.planning.verdict": ("make_verdict", "sizes_of_requests"),
    "peagle.plans": ("plan_file_online", "plan_pair", "plan_pair_online"),
    "peagle.project.choosing": ("choose_endpoint", "endpoints_of", "environments_of"),
    "peagle.project.pipelines": ("pipeline_files", "schema_bytes", "starter_project"),
    "peagle.project.reading": ("find_project", "project_schema", "read_project"),
    "peagle.project.toolkit": ("toolkit_source",),
    "peagle.proof": (
        "SecondTurn", "floor_text", "pair_in_catalogue", "proof_findings", "require_passed",
        "second_turn_text",
    ),
    "peagle.protocol": ("request_body",),
    "peagle.render": (
        "format_files", "format_names", "plan_bytes", "plan_document", "read_plan", "render",
    ),
    "peagle.render.files": ("write_folder",),
    "peagle.render.image_names": ("is_own_image", "read_image_address"),
    "peagle.render.requests": (
        "deploy_arguments", "label_arguments", "pair_arguments",
    ),
    "peagle.render.verdict_file": ("verdict_bytes", "verdict_document"),
    "peagle.sandbox.client": (
        "add_fault", "changed_quotas", "check_sandbox_engine", "clear_faults",
        "conflicting_variables", "list_faults", "running_sandbox", "sandbox_not_running",
        "sandbox_status", "set_quota", "set_scaling_speed", "start_sandbox", "stop_sandbox",
    ),
    "peagle.sandbox.faults": ("operation_names",),
    "peagle.sandbox.state": ("engine_version",),
    "peagle.speed.slo": ("parse_slo",),
    "peagle.vllm.defaults": ("schedules_ahead",),
    "peagle.warm.collect": (
        "check_writable", "collect_locally", "collect_on_aws", "collecting_plan",
        "prefix_of_weights",
    ),
    "peagle.weights.inspect": ("inspect_weights", "remove_warm_start", "remove_weights"),
    "peagle.weights.layout": ("checkpoint_at", "weights_at", "weights_prefix"),
    "peagle.weights.new_entry": ("entry_file", "entry_findings", "new_entry"),
    "peagle.weights.own_target": (
        "is_on_hub", "is_own_target", "target_not_read", "with_own_target",
    ),
    "peagle.weights.sources": ("weights_of_pair",),
    "peagle.weights.sync": ("plan_sync", "sync_weights"),
}  # fmt: skip
"""Module -> its public functions."""

_SOURCES = {name: (module, name) for module, names in _FUNCTIONS.items() for name in names}
_SOURCES["plan"] = ("peagle.planning", "make_plan")  # peagle.planning.plan is a module

__all__ = sorted(_SOURCES)


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, function = _SOURCES[name]
    return getattr(import_module(module), function)
