"""The project file ``peagle.yaml``, and the options that commands take from it."""

from functools import cache
from pathlib import Path

import click

from peagle.cli.main import cli
from peagle.cli.project import file_options
from peagle.errors import PeagleError
from peagle.project import (
    Project,
    ProjectFileError,
    choose_endpoint,
    list_environments,
    list_project_endpoints,
    parse_project,
)
from tests.fuzz.parser import Parser, quietly
from tests.fuzz.parsers.catalog import MORE
from tests.fuzz.parsers.files import written

GOOD = """\
defaults: {region: us-east-1, tag: {team: search, cost: 12}, instance_type: ml.g5.xlarge}
environments:
  staging: {ttl: 8h, tag: {team: null, stage: a b}, budget: $15, max_instances: 4}
endpoints:
  chat:
    pair: tiny
    max_model_len: 1k
    slo: ttft=0.5,itl=0.02
    set: {gpu-memory-utilization: 0.90}
    subnets: [subnet-0a1b2c3d]
    security_groups: sg-0a1b2c3d
    environments:
      staging: {k: 3, gates: {prove: {floor: 2.1}}}
gates: {bench: {concurrency: [1, 8]}}
"""


@cache
def _commands() -> tuple[click.Context, click.Command]:
    root = click.Context(cli)
    plan = cli.get_command(root, "plan")
    assert plan is not None
    return root, plan


def _project(text: str) -> Project:
    project = parse_project(text, Path("peagle.yaml"), file_options(cli))
    for endpoint in list_project_endpoints(project):
        for environment in (None, *list_environments(project)):
            try:
                choice = choose_endpoint(project, endpoint, environment)
                choice.deployment_name("")
                assert choice.pair
            except ProjectFileError:
                continue
    return project


def _options(text: str) -> None:
    project = _project(text)
    file = str(written("project/peagle.yaml", text))
    root, plan = _commands()
    for endpoint in list_project_endpoints(project)[:2]:
        for environment in list_environments(project)[:2] or [""]:
            words = [endpoint, "--project", file]
            words += ["--environment", environment] if environment else []
            plan.make_context("plan", words, parent=root)


PARSERS = (
    Parser("project-file", quietly(_options), [GOOD, *MORE], (PeagleError, click.ClickException)),
)
