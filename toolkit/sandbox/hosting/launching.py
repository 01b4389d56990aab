"""As what the sandbox's engines run: as processes, or in containers, as on SageMaker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolkit.errors import NotFound, PeagleError
from toolkit.images import Docker, Image, images, show
from toolkit.local.artefacts import apart, digest_of
from toolkit.local.containers import Container, container_name, start_container
from toolkit.local.engine import find_engine
from toolkit.local.process import EngineProcess, free_port, start_engine
from toolkit.rendering.image import serve_digest
from toolkit.rendering.requests import tag_value
from toolkit.sandbox.bundled import engine_version
from toolkit.sandbox.hosting.order import Order
from toolkit.sandbox.state import EngineKind
from toolkit.warm import DIGEST_VARIABLE

Record = Callable[[EngineProcess], object]
Launch = Callable[[Order, str, Mapping[str, str], Path, Path, Record], object]
"""Start the engine for an order, with a name of its own, its environment, what is below
``/opt/ml``, its log, and whom to tell before it begins. Raises PeagleError."""


def launcher(kind: EngineKind) -> Launch:
    """How engines of that kind are started."""
    return as_container if kind == "docker" else as_process


def as_process(
    order: Order,
    name: str,
    environment: Mapping[str, str],
    ml_root: Path,
    log: Path,
    record: Record,
) -> None:
    """The CPU engine of this machine, whatever image is named."""
    engine = find_engine(engine_version())
    given = {**environment, **apart(environment, ml_root.parent / "collected")}
    start_engine(engine, given, ml_root, free_port(), log, record=record)


def as_container(
    order: Order,
    name: str,
    environment: Mapping[str, str],
    ml_root: Path,
    log: Path,
    record: Record,
) -> None:
    """The image that is named, if it is on this machine and made for a CPU; else the newest one
    that is, of the pair that is asked for if there is one."""
    docker = Docker()
    image = _image(docker, order.image, order.pair)
    chosen = Container(
        name=container_name("sandbox", name),
        image=image.id,
        environment={**environment, DIGEST_VARIABLE: digest_of(image)},
        mounts=mounts_of(ml_root),
        port=free_port(),
    )
    start_container(docker, chosen, log, record)


def mounts_of(ml_root: Path) -> dict[str, Path]:
    """Path in the container -> folder, for all that lies below ``ml_root``.

    Where links stand for folders of weights these are mounted themselves: a link would lead
    nowhere in the container.
    """
    links = [path for path in sorted(ml_root.rglob("*")) if path.is_symlink()]
    folders = links or [path for path in sorted(ml_root.glob("*")) if path.is_dir()]
    return {f"/opt/ml/{path.relative_to(ml_root).as_posix()}": path.resolve() for path in folders}


def _image(docker: Docker, named: str, pair: str) -> Image:
    try:
        found = show(docker, named)
        if found.runtime == "cpu":
            return found
    except PeagleError:
        pass  # Images of AWS are not here, and would want a GPU.
    fitting = images(docker, runtime="cpu", vllm=engine_version(), weights="mounted",
                     serve=serve_digest())  # fmt: skip
    if not fitting:
        raise NotFound(
            "there is no image for a CPU on this machine", "peagle image build tiny --runtime cpu"
        )
    return nearest_to(pair, fitting)


def nearest_to(pair: str, found: Sequence[Image]) -> Image:
    """The first of the pair, else the first of its target: that one also serves the target alone.
    Else simply the first; its own entrypoint says what is wrong with it.

    ``pair`` is what a tag says, in which some characters are replaced.
    """
    target = pair.partition("+")[0]
    of_pair = (image for image in found if tag_value(image.pair) == pair)
    of_target = (image for image in found if image.pair.partition("+")[0] == target)
    return next(of_pair, None) or next(of_target, found[0])
