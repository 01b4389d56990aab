"""The plan's image as a folder: the build context of ``image``, and how to build and push it."""

from __future__ import annotations

from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, readme
from peagle.render.image import DOCKERFILE, Recipe, context_files
from peagle.render.image_names import base_of

__all__ = ["DOCKERFILE", "render"]


def render(plan: Plan) -> tuple[RenderedFile, ...]:
    """``Dockerfile``, what it copies, ``.dockerignore`` and how to build and push."""
    recipe = Recipe("gpu", base=base_of(plan))
    return (*context_files(plan, recipe), readme(plan, _HOW_TO))


_HOW_TO = """\
# An image for {pair}

AWS's image of vLLM {vllm} with the toolkit's entrypoint, for SageMaker endpoints in {region}.
`peagle image build {words} --push` does all of this. By hand: build it on Linux with Docker, push
it to a repository of your own, and give its address to `peagle`:

```
REGISTRY=ACCOUNT.dkr.ecr.{region}.{domain}
for registry in {registry} $REGISTRY; do
  aws ecr get-login-password --region {region} |
    docker login --username AWS --password-stdin $registry
done
docker build --platform linux/amd64 --tag $REGISTRY/peagle-serve:{vllm} .
aws ecr create-repository --region {region} --repository-name peagle-serve ||
  true  # it may be there already
docker push $REGISTRY/peagle-serve:{vllm}
peagle deploy {words} --image $REGISTRY/peagle-serve:{vllm}
```

The base image has more than 10 GB; without such a machine, CodeBuild builds it as well:
`peagle image build {words} --builder codebuild`.
{calling}"""
