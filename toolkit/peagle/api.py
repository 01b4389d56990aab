"""The public functions of the toolkit: what ``import peagle`` offers and what the commands call.

A pair from the catalogue becomes a Plan; everything else reads the Plan. Each name is imported
from its package at first use, so that ``peagle --help`` loads neither boto3 nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peagle.aws.images import build_image as build_image
    from peagle.aws.images import build_image_on_aws as build_image_on_aws
    from peagle.aws.images import push_image as push_image
    from peagle.aws.refresh import refresh_tables as refresh_tables
    from peagle.aws.refresh import table_changes as table_changes
    from peagle.catalog import find_pair as find_pair
    from peagle.catalog import load_catalog as load_catalog
    from peagle.catalog.evidence import evidence_for as evidence_for
    from peagle.catalog.evidence import load_evidence as load_evidence
    from peagle.catalog.loading import check_catalog as check_catalog
    from peagle.catalog.loading import check_catalog_file as check_catalog_file
    from peagle.catalog.summary import describe_pair as describe_pair
    from peagle.catalog.summary import summarize_target as summarize_target
    from peagle.catalog.summary import summarize_targets as summarize_targets
    from peagle.catalog.writing import folder_for_tables as folder_for_tables
    from peagle.catalog.writing import new_texts as new_texts
    from peagle.catalog.writing import refuse_unwritable as refuse_unwritable
    from peagle.catalog.writing import write_texts as write_texts
    from peagle.checks.local_weights import check_local_weights as check_local_weights
    from peagle.checks.registry import rules_found as rules_found
    from peagle.checks.report import check as check
    from peagle.checks.report import check_document as check_document
    from peagle.deploy.apply import deploy as deploy
    from peagle.deploy.destroy import destroy as destroy
    from peagle.deploy.invoke import invoke as invoke
    from peagle.deploy.preflight import preflight as preflight
    from peagle.deploy.status import deployment_status as deployment_status
    from peagle.deploy.status import list_deployments as list_deployments
    from peagle.deploy.weights_use import refuse_weights_in_use as refuse_weights_in_use
    from peagle.engine.container import compose_file as compose_file
    from peagle.engine.container import find_image as find_image
    from peagle.engine.doctor import check_environment as check_environment
    from peagle.engine.install import install_engine as install_engine
    from peagle.engine.install import missing_libraries as missing_libraries
    from peagle.engine.installed import find_engine as find_engine
    from peagle.engine.installed import installed_engines as installed_engines
    from peagle.engine.local import start_local as start_local
    from peagle.engine.local import stop_local as stop_local
    from peagle.engine.state import local_engines as local_engines
    from peagle.fit.report import fit as fit
    from peagle.fit.report import fit_document as fit_document
    from peagle.images.inspect import containers_of as containers_of
    from peagle.images.inspect import list_images as list_images
    from peagle.images.inspect import remove_image as remove_image
    from peagle.images.inspect import show_image as show_image
    from peagle.planning import make_plan as make_plan
    from peagle.render import format_files as format_files
    from peagle.render import format_names as format_names
    from peagle.render import plan_bytes as plan_bytes
    from peagle.render import plan_document as plan_document
    from peagle.render import read_plan as read_plan
    from peagle.render import render as render
    from peagle.render.image_names import is_own_image as is_own_image
    from peagle.warm.endpoint import check_writable as check_writable
    from peagle.warm.endpoint import collect_on_aws as collect_on_aws
    from peagle.warm.endpoint import collecting_plan as collecting_plan
    from peagle.warm.endpoint import prefix_of_weights as prefix_of_weights
    from peagle.warm.local import collect_locally as collect_locally
    from peagle.weights.inspect import inspect_weights as inspect_weights
    from peagle.weights.inspect import remove_warm_start as remove_warm_start
    from peagle.weights.inspect import remove_weights as remove_weights
    from peagle.weights.sources import weights_of_pair as weights_of_pair
    from peagle.weights.sync import plan_sync as plan_sync
    from peagle.weights.sync import sync_weights as sync_weights

_HOME = {
    "check_catalog": "peagle.catalog.loading",
    "check_catalog_file": "peagle.catalog.loading",
    "check_local_weights": "peagle.checks.local_weights",
    "describe_pair": "peagle.catalog.summary",
    "evidence_for": "peagle.catalog.evidence",
    "find_pair": "peagle.catalog",
    "load_catalog": "peagle.catalog",
    "load_evidence": "peagle.catalog.evidence",
    "folder_for_tables": "peagle.catalog.writing",
    "new_texts": "peagle.catalog.writing",
    "refresh_tables": "peagle.aws.refresh",
    "refuse_unwritable": "peagle.catalog.writing",
    "table_changes": "peagle.aws.refresh",
    "write_texts": "peagle.catalog.writing",
    "summarize_target": "peagle.catalog.summary",
    "summarize_targets": "peagle.catalog.summary",
    "check": "peagle.checks.report",
    "check_document": "peagle.checks.report",
    "fit": "peagle.fit.report",
    "fit_document": "peagle.fit.report",
    "rules_found": "peagle.checks.registry",
    "make_plan": "peagle.planning",
    "plan_bytes": "peagle.render",
    "plan_document": "peagle.render",
    "read_plan": "peagle.render",
    "format_names": "peagle.render",
    "format_files": "peagle.render",
    "preflight": "peagle.deploy.preflight",
    "deploy": "peagle.deploy.apply",
    "deployment_status": "peagle.deploy.status",
    "list_deployments": "peagle.deploy.status",
    "invoke": "peagle.deploy.invoke",
    "destroy": "peagle.deploy.destroy",
    "render": "peagle.render",
    "is_own_image": "peagle.render.image_names",
    "weights_of_pair": "peagle.weights.sources",
    "plan_sync": "peagle.weights.sync",
    "sync_weights": "peagle.weights.sync",
    "inspect_weights": "peagle.weights.inspect",
    "remove_weights": "peagle.weights.inspect",
    "remove_warm_start": "peagle.weights.inspect",
    "refuse_weights_in_use": "peagle.deploy.weights_use",
    "collecting_plan": "peagle.warm.endpoint",
    "prefix_of_weights": "peagle.warm.endpoint",
    "check_writable": "peagle.warm.endpoint",
    "collect_on_aws": "peagle.warm.endpoint",
    "collect_locally": "peagle.warm.local",
    "build_image": "peagle.aws.images",
    "build_image_on_aws": "peagle.aws.images",
    "push_image": "peagle.aws.images",
    "compose_file": "peagle.engine.container",
    "find_image": "peagle.engine.container",
    "check_environment": "peagle.engine.doctor",
    "install_engine": "peagle.engine.install",
    "missing_libraries": "peagle.engine.install",
    "find_engine": "peagle.engine.installed",
    "installed_engines": "peagle.engine.installed",
    "start_local": "peagle.engine.local",
    "stop_local": "peagle.engine.local",
    "local_engines": "peagle.engine.state",
    "containers_of": "peagle.images.inspect",
    "list_images": "peagle.images.inspect",
    "remove_image": "peagle.images.inspect",
    "show_image": "peagle.images.inspect",
}
"""Name -> the module that defines it. One line per function, grouped as in ``peagle --help``."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """The function of this name, from the package that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
