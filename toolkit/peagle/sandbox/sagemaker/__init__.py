"""SageMaker's models, endpoint configurations and endpoints, as GPU endpoints need them.

moto 5.2 keeps them without checks and without a life of their own. Here they are refused as AWS
refuses them (``constraints``, ``backend``), described as they were given (``resources``), and an
endpoint's state follows a real engine (``endpoint``), and a CloudFormation stack follows its
endpoint (``stacks``). ``install`` puts these classes in moto's place, so that CloudFormation and
the tagging service inside moto meet them too.
"""

from moto.sagemaker import urls
from moto.sagemaker.models import sagemaker_backends

from peagle.sandbox.sagemaker.backend import Backend
from peagle.sandbox.sagemaker.operations import Operations


def install() -> None:
    """Let this process's moto use our SageMaker. Before its first request."""
    sagemaker_backends.backend = Backend
    urls.url_paths["{0}/$"] = Operations.dispatch
