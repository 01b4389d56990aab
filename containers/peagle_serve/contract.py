"""The contract of the container: its variables, paths and routes, and its own settings.

The toolkit imports these names instead of repeating them. ``SM_VLLM_*`` variables become vLLM's
arguments (``environment``); ``PEAGLE_*`` variables are the container's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "SM_VLLM_"
MODEL = f"{PREFIX}MODEL"
SPECULATION = f"{PREFIX}SPECULATIVE_CONFIG"
K_SCHEDULE = "num_speculative_tokens_per_batch_size"
"""Key of its JSON: a K for each size of a batch, 0 for no drafts."""
LOAD_FORMAT = f"{PREFIX}LOAD_FORMAT"
SERVED_NAME = f"{PREFIX}SERVED_MODEL_NAME"
ENFORCE_EAGER = f"{PREFIX}ENFORCE_EAGER"
HUB_MODEL = "HF_MODEL_ID"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*", re.ASCII)
"""A model of the Hugging Face Hub: ``org/name``."""
S3_SCHEME = "s3://"
SHA256 = re.compile(r"[0-9a-f]{64}")
HEX_32 = re.compile(r"[0-9a-f]{32}")
"""An MD5, a UUID without hyphens, or the key of a warm start."""
PORT_VARIABLE = "SAGEMAKER_BIND_TO_PORT"
DEFAULT_PORT = 8080

ML_ROOT = "/opt/ml"
"""SageMaker mounts everything below this folder."""
MODEL_FOLDER = f"{ML_ROOT}/model"
ADDITIONAL = "additional-model-data-sources"
"""Below ``ML_ROOT``; SageMaker mounts every folder in it separately."""
ROOT_VARIABLE = "PEAGLE_ML_ROOT"
"""The folder that stands for ``/opt/ml`` outside a container, or in an image with weights."""
WARM_FOLDER = "warm"
"""The folder of warm-start artifacts: next to the weights, or in the toolkit's home."""

VOCABULARY_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
"""The folder in which openai_harmony, which vLLM uses for GPT-OSS, finds its vocabulary."""
VOCABULARY_FILE = "o200k_base.tiktoken"

DRAIN_VARIABLE = "PEAGLE_DRAIN_SECONDS"
DRAIN_SECONDS = 60
"""The default, as long as InvokeEndpoint waits."""
RESTARTS_VARIABLE = "PEAGLE_RESTARTS"
RESTARTS = 3
"""The default, within an hour."""
WARM_MODE_VARIABLE = "PEAGLE_WARM"
AUTO = "auto"
COLLECT = "collect"
OFF = "off"
WARM_FOLDER_VARIABLE = "PEAGLE_WARM_FOLDER"
WARM_PINS_VARIABLE = "PEAGLE_WARM_SHA256"
"""Set by the toolkit: the SHA-256 of each archive that may be restored, separated by commas, or
``any``. An archive is compiled code, so without the variable none is restored."""
ANY = "any"
WEIGHTS_PIN_VARIABLE = "PEAGLE_WEIGHTS_SHA256"
"""Set by the toolkit: the SHA-256 of the manifest next to the mounted weights."""
WEIGHTS_MANIFEST = "peagle-weights.json"
"""The manifest of ``peagle weights sync``, in the folder that holds target and drafter."""
CACHE_VARIABLE = "PEAGLE_CACHE"
IMAGE_CONTENT_VARIABLE = "PEAGLE_IMAGE_CONTENT"
"""Set by the image: the digest of its content, the same under every name."""
IMAGE_DIGEST_VARIABLE = "PEAGLE_IMAGE_DIGEST"
"""Set by the toolkit: the digest in the image's name, for an image without the variable above."""

OWN_VARIABLES = (
    CACHE_VARIABLE,
    DRAIN_VARIABLE,
    IMAGE_CONTENT_VARIABLE,
    IMAGE_DIGEST_VARIABLE,
    ROOT_VARIABLE,
    RESTARTS_VARIABLE,
    WARM_MODE_VARIABLE,
    WARM_FOLDER_VARIABLE,
    WARM_PINS_VARIABLE,
    WEIGHTS_PIN_VARIABLE,
)

SOCKET_VARIABLE = "PEAGLE_SUPERVISOR_SOCKET"
"""The file descriptor of the engine's end of the supervisor's socket."""
STARTED_VARIABLE = "PEAGLE_ENGINE_STARTED"
"""The start of the engine, in seconds of the monotonic clock."""
HELLO, HEALTHY, IDLE, FAILED, DRAIN = "hello", "healthy", "idle", "failed", "drain"
"""Messages through that socket (``supervisor``)."""

SUBJECT_VARIABLE = "PEAGLE_WARM_SUBJECT"
"""From the entrypoint to the middleware: the subject of a warm start, as canonical JSON."""
COLLECT_FOLDER_VARIABLE = "PEAGLE_WARM_PLACE"
"""From the entrypoint to the middleware: the folder of the caches, named after the key."""

ATTRIBUTES_HEADER = "X-Amzn-SageMaker-Custom-Attributes"
"""SageMaker passes CustomAttributes of InvokeEndpoint to the container in this header."""
COUNTERS_ATTRIBUTE = "peagle=counters"
"""Asks ``/invocations`` for the speculation counters; a plain vLLM ignores the attribute."""
WARM_ATTRIBUTE = "peagle=warm"
"""Asks ``/invocations`` for the compile caches (``warm.route``)."""

ARCHIVE_SUFFIX = ".tar.gz"
MANIFEST_SUFFIX = ".json"
ARTIFACT_FORMAT = 1
LARGEST_PART = 4 << 20
"""Bytes of an archive in one response; InvokeEndpoint returns at most 6 MB."""

_LONGEST_SHOWN = 80


class InvalidEnvironment(Exception):
    """The environment cannot be served. ``message`` and ``fix`` are one line each."""

    def __init__(self, message: str, fix: str) -> None:
        self.message = " ".join(message.split())
        self.fix = " ".join(fix.split())
        super().__init__(f"{self.message} ({self.fix})")


def is_s3_uri(text: str) -> bool:
    """Whether the text is written as an S3 URI."""
    return text.startswith(S3_SCHEME)


class Settings(NamedTuple):
    """``drain_seconds``: how long running requests may take after SIGTERM. ``restarts``: how often
    within an hour a crashed engine is restarted, if it was healthy before. ``warm``: ``auto``
    restores a matching artifact, ``collect`` compiles everything and offers it, ``off`` does
    neither."""

    drain_seconds: int = DRAIN_SECONDS
    restarts: int = RESTARTS
    warm: str = AUTO


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings. Raises InvalidEnvironment for an invalid value. An engine that collects is not
    restarted: its second start would not be cold."""
    warm = environment.get(WARM_MODE_VARIABLE, "").strip().lower() or AUTO
    if warm not in (AUTO, COLLECT, OFF):
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {warm!r}", f"set it to {AUTO}, {COLLECT} or {OFF}"
        )
    read_pins(environment)
    drain, restarts = (
        read_number(name, environment.get(name, str(default)))
        for name, default in ((DRAIN_VARIABLE, DRAIN_SECONDS), (RESTARTS_VARIABLE, RESTARTS))
    )
    return Settings(drain, 0 if warm == COLLECT else restarts, warm)


def read_pins(environment: Mapping[str, str]) -> frozenset[str]:
    """The SHA-256s in ``PEAGLE_WARM_SHA256``, or ``any`` alone; empty without it. Raises
    InvalidEnvironment for another value."""
    text = environment.get(WARM_PINS_VARIABLE, "").strip()
    if not text or text == ANY:
        return frozenset({text} - {""})
    pins = frozenset(part.strip() for part in text.split(","))
    if not all(map(SHA256.fullmatch, pins)):
        raise InvalidEnvironment(
            f"{WARM_PINS_VARIABLE} is {text[:_LONGEST_SHOWN]!r}",
            f"set it to the SHA-256 that `peagle warm` prints, or to {ANY}",
        )
    return pins


def read_number(name: str, text: str, least: int = 0, most: int = 1_000_000) -> int:
    """The whole number in the variable ``name``. Raises InvalidEnvironment for anything else."""
    digits = text.strip()
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(most))
    if not (is_number and least <= int(digits) <= most):
        raise InvalidEnvironment(
            f"{name} is {text[:_LONGEST_SHOWN]!r}",
            f"set it to a whole number from {least} to {most}",
        )
    return int(digits)
