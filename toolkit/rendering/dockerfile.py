"""The plan's image as a build context: AWS's image of that vLLM, and ``containers/serve``.

Nothing of the plan but its image is built in: the environment comes with the SageMaker model, so
one image serves every pair of that vLLM version.
"""

from __future__ import annotations

from toolkit import __version__
from toolkit.data import data_folder
from toolkit.planning.models import Plan
from toolkit.rendering.models import RenderedFile
from toolkit.rendering.readme import readme
from toolkit.rendering.text import text_file

DOCKERFILE = "Dockerfile"


def render(plan: Plan) -> tuple[RenderedFile, ...]:
    """``Dockerfile``, the folder ``serve``, ``.dockerignore`` and how to build and push."""
    return (
        text_file(DOCKERFILE, dockerfile(plan)),
        text_file(".dockerignore", "*\n!serve\n**/__pycache__\n"),
        *_serve(),
        readme(plan, _HOW_TO),
    )


def dockerfile(plan: Plan) -> str:
    """The Dockerfile."""
    return _DOCKERFILE.format(image=plan.runtime.image, vllm=plan.runtime.vllm, version=__version__)


def _serve() -> tuple[RenderedFile, ...]:
    folder = data_folder("containers") / "serve"
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        RenderedFile(f"serve/{path.relative_to(folder).as_posix()}", path.read_bytes())
        for path in paths
        if "__pycache__" not in path.parts
    )


_DOCKERFILE = """\
# AWS's image of vLLM {vllm}, with an entrypoint that checks the environment, ends when the engine
# ends, and can say how many drafts were accepted.
FROM {image}

LABEL org.opencontainers.image.title="peagle-serve" \\
      org.opencontainers.image.description="vLLM {vllm} for SageMaker, speculation provable" \\
      org.opencontainers.image.version="{version}" \\
      org.opencontainers.image.licenses="Apache-2.0" \\
      org.opencontainers.image.base.name="{image}"

COPY serve /opt/peagle/serve

EXPOSE 8080
ENTRYPOINT ["python3", "/opt/peagle/serve"]
# SageMaker starts the container with the argument `serve`, which the entrypoint takes or leaves.
CMD ["serve"]
"""

_HOW_TO = """\
# An image for {pair}

AWS's image of vLLM {vllm} with the toolkit's entrypoint, for SageMaker endpoints in {region}. Build
it on Linux with Docker, push it to a repository of your own, and give its address to `peagle`:

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

The base image has more than 10 GB; without such a machine, CodeBuild builds it as well.
{calling}"""
