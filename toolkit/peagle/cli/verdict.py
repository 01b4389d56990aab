"""``peagle verdict``: whether to speculate, with which drafter and K, at which load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.cli.context import PeagleCommand
from peagle.cli.options import (
    cached_option,
    command_catalog,
    complete_gpu,
    complete_instance_type,
    complete_pair,
    complete_region,
    complete_version,
    output_option,
    shared_option,
    workload_option,
)
from peagle.cli.output.console import (
    json_option,
    print_json,
    print_status,
    print_written,
)
from peagle.cli.parameter_types import LOADS, TOKENS, WholeNumber
from peagle.errors import OptionMissing
from peagle.planning.options import WorkloadName
from peagle.planning.runtime import REGION_VARIABLES
from peagle.planning.verdict import VerdictRequest
from peagle.store import write_output


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle verdict gpt-oss-20b --gpu H200
  peagle verdict gpt-oss-20b --gpu H100 --prompt-tokens 8k --output-tokens 500 -o verdict.json
  peagle plan gpt-oss-20b --concurrency 64 --verdict verdict.json
""",
)
@click.argument("pair", shell_complete=complete_pair)
@click.option("--gpu", help="GPU such as H200.", shell_complete=complete_gpu)
@click.option(
    "--instance-type",
    help="SageMaker instance type.  [default: the cheapest with that GPU]",
    shell_complete=complete_instance_type,
)
@click.option(
    "--tp",
    "--tensor-parallel-size",
    "tensor_parallel_size",
    type=WholeNumber(1),
    help="GPUs per model.  [default: the plan's on --instance-type, the fewest with --gpu]",
)
@workload_option
@click.option(
    "--prompt-tokens",
    type=TOKENS,
    metavar="TOKENS",
    help="Tokens of each prompt, with --output-tokens.  [default: three sizes]",
)
@cached_option
@shared_option
@click.option("--output-tokens", type=TOKENS, metavar="TOKENS", help="Tokens of each answer.")
@click.option(
    "--concurrency",
    "loads",
    type=LOADS,
    metavar="N[,N...]",
    help="Concurrent requests to compare.  [default: 1,2,4,8,16,32,64,128,256]",
)
@click.option(
    "--vllm", help="vLLM version.  [default: the catalogue's]", shell_complete=complete_version
)
@click.option(
    "--region",
    envvar=REGION_VARIABLES,
    help="Region of the price.  [env: AWS_REGION; default: us-east-1]",
    shell_complete=complete_region,
)
@click.option(
    "--acceptance",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Result written by `peagle bench NAME --acceptance FILE --save-acceptance OUT`.",
)
@click.option("--domain", help="With --acceptance: of this domain only.")
@output_option("Write the verdict to this file, for --verdict of plan, deploy and render.")
@json_option
@click.pass_context
def verdict(
    ctx: click.Context,
    /,
    pair: str,
    workload: WorkloadName | None,
    prompt_tokens: int | None,
    cached_prompt_tokens: int | None,
    shared_prompt_tokens: int | None,
    output_tokens: int | None,
    acceptance: Path | None,
    domain: str | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare speculation by load: the fastest drafter and K, and where speculation stops paying.

    Compares the public drafters of PAIR, or the one that PAIR names, with every K and with no
    speculation, from measurements and the performance model; estimates of a drafter count only
    where none of its K is measured. Measured settings within 3 % tie, estimates within 2 %, and the
    simpler one wins. Speculation
    stops, or starts, paying where the best drafter and K passes the speed without speculation.
    Speeds are of one engine; the price is that of a whole instance.
    """
    if options["gpu"] is None and options["instance_type"] is None:
        raise OptionMissing("a verdict needs a GPU", "add --gpu such as H200, or --instance-type")
    sizes = api.sizes_of_requests(
        workload, prompt_tokens, cached_prompt_tokens, output_tokens, shared_prompt_tokens
    )
    given = {name: value for name, value in options.items() if value is not None}
    if domain and not acceptance:
        raise OptionMissing("--domain requires --acceptance", "add --acceptance FILE")
    catalog = command_catalog(ctx)
    if acceptance:
        catalog = api.with_text_acceptance(catalog, pair, acceptance, domain)
        if "+" not in pair:
            print_status(
                "The file covers one drafter; the others keep their known acceptance, so measure "
                "them on the same prompts."
            )
    made = api.make_verdict(VerdictRequest(pair, workloads=sizes, **given), catalog)
    if output is not None:
        write_output(output, api.verdict_bytes(made))
        print_written(output)
    if as_json:
        print_json(api.verdict_document(made))
    else:
        from peagle.cli.output.verdict import print_verdict

        print_verdict(made, output)
