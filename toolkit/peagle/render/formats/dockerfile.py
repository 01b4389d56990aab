"""The plan's image as a folder: the build context, and a README on building and pushing it."""

from __future__ import annotations

from peagle.catalog.schema import Catalog
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, readme
from peagle.render.image import DOCKERFILE, PAIR_FILE, Recipe, context_files
from peagle.render.image_names import pinned_base

FILES = (DOCKERFILE, ".dockerignore", PAIR_FILE, "cache/README", "peagle/peagle_serve", "README.md")
NO_ENDPOINT = True


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    return (*context_files(plan, recipe_of(plan, catalog)), readme(plan, catalog, _HOW_TO))


def recipe_of(plan: Plan, catalog: Catalog) -> Recipe:
    """How the image for the plan's GPUs is made."""
    base = pinned_base(plan, catalog.runtimes)
    return Recipe("gpu", base, catalog.targets.get(plan.target.id))


def unsupported(plan: Plan) -> str:
    """A plan whose image already contains the weights."""
    if plan.target.weights.kind != "image":
        return ""
    return f"the plan uses an existing image with baked weights, {plan.runtime.image}"


_HOW_TO = """\
# An image for {pair}

AWS's image of vLLM {vllm} with the toolkit's entrypoint, for SageMaker endpoints in {region}.
`{peagle} image build {built} --push` runs all of these steps. To do it yourself, build the image on
Linux with Docker, push it to your own repository, and pass its address to `peagle`:

```
REGISTRY=ACCOUNT.dkr.ecr.{region}.{domain}
for registry in {registry} $REGISTRY; do
  aws ecr get-login-password --region {region} |
    docker login --username AWS --password-stdin $registry
done
docker build --platform linux/amd64 --tag $REGISTRY/peagle-serve:{vllm} .
aws ecr create-repository --region {region} --repository-name peagle-serve ||
  true  # it may exist already
docker push $REGISTRY/peagle-serve:{vllm}
{peagle} deploy {words} --image $REGISTRY/peagle-serve:{vllm}
```

The base image is larger than 10 GB. To build on AWS instead of this machine, use CodeBuild:
`{peagle} image build {built} --builder codebuild`.
{calling}"""
