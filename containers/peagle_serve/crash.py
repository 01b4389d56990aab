"""Why an engine ended: the deciding line of its output, the cause code and the fix.

The patterns match real messages of this entrypoint, vLLM, torch, CUDA and the Hub. The toolkit uses
them for the logs of other containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from peagle_serve.logs import without_colors


class Crash(NamedTuple):
    """The deciding line without vLLM's prefix, the fix, the cause code ("" if unknown), and where
    one exists the command of the fix as argv."""

    line: str
    fix: str = ""
    cause: str = ""
    command: tuple[str, ...] = ()


class CrashCause(NamedTuple):
    """A cause, the pattern of the lines that show it, the fix, and its command, if there is one."""

    cause: str
    pattern: str
    fix: str
    command: tuple[str, ...] = ()


KILLED_FIX = (
    "the host's memory ran out (not the GPU's): use an instance with more memory, or raise the "
    "container's limit"
)

CAUSES = (
    CrashCause("port-in-use", "[Aa]ddress already in use",
        "use another port, or stop the process that listens on this one"),
    CrashCause("missing-library", r"libnuma\.so\.1", "as root, install the library",
        ("apt-get", "install", "libnuma1")),
    CrashCause("missing-engine", "No module named '?vllm", "install vLLM",
        ("peagle", "engine", "install")),
    CrashCause("missing-engine",
        r"exec: .?vllm\b.*not found|\bvllm: (command )?not found|No such file .*: .?vllm\b",
        "the image has no vLLM: use AWS's vLLM image, or one that `peagle image build` makes"),
    CrashCause("missing-entrypoint",
        r"exec:? \S*\bserve\W{1,3}.*(not found|no such file|permission denied)"
        r"|\bserve: ((command )?not found|[Pp]ermission denied)"
        r"|No such file or directory: '\S*\bserve'|No such file or directory: \S*/serve\b",
        "the image has no program `serve` on PATH, which SageMaker runs: use AWS's vLLM image for "
        "SageMaker or one that `peagle image build` makes, or copy an executable `serve` into it"),
    CrashCause("wrong-architecture", "exec format error",
        "the image was built for another processor: build it with --platform linux/amd64, or use "
        "an instance with its processor"),
    CrashCause("unknown-argument",
        ": error: (unrecognized arguments|argument |ambiguous option|the following arguments are)",
        "correct or remove that argument"),
    CrashCause("cuda-driver",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|unsupported display driver|forward compatibility was attempted|[Ff]ound no NVIDIA driver"
        r"|unsupported toolchain|Unexpected error from cudaGetDevice|libcuda\.so\.1: cannot open"
        r"|Failed to infer device type|CUDA unknown error",
        "the driver is too old for the image's CUDA: on SageMaker set InferenceAmiVersion to an "
        "AMI with a newer one (CUDA 13: al2023-ami-sagemaker-inference-gpu-4-1); elsewhere update "
        "the driver, and start the container with its GPUs"),
    CrashCause("gpu-too-old", "no kernel image is available for execution|compute capability",
        "the image was not built for this GPU: use another instance type"),
    CrashCause("context-too-long", "greater than the derived max_model_len",
        "lower --max-model-len to the model's context length"),
    CrashCause("no-kv-cache",
        "No available memory for the cache blocks|larger than the available KV cache memory"
        "|is needed, which is larger",
        "lower --max-model-len, or raise VLLM_CPU_KVCACHE_SPACE (GiB) if memory is free; on a GPU "
        "raise --gpu-memory-utilization, or use a larger GPU"),
    CrashCause("out-of-memory", r"on device cuda\S* .*less than desired GPU memory utilization",
        "lower --gpu-memory-utilization below the free share that the message shows, or end the "
        "other process on this GPU"),
    CrashCause("out-of-memory",
        r"CUDA out of memory|CUDA error: out of memory|torch\.(cuda\.)?OutOfMemoryError"
        r"|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED|occurred when warming up sampler",
        "lower --gpu-memory-utilization, --max-num-seqs or --max-model-len, or use a larger GPU or "
        "more of them with --tensor-parallel-size"),
    CrashCause("killed", r"^(\w+\.)*_?(Array)?MemoryError|node running low on memory", KILLED_FIX),
    CrashCause("out-of-memory",
        "[Oo]ut of memory|OutOfMemoryError|Cannot allocate memory|[Nn]ot enough memory|bad_alloc"
        "|DefaultCPUAllocator|less than requested memory for kv"
        "|less than desired GPU memory utilization",
        "lower VLLM_CPU_KVCACHE_SPACE (GiB) or --max-model-len, or use a larger machine"),
    CrashCause("tensor-parallel",
        r"divisible by tensor parallel size|[Ww]orld size .*(greater|larger) than"
        r"|AssertionError: \d+ is not divisible by \d+|total_num_(kv_)?heads % \w*tp_size|(put"
        r"|partition)\S* = ?\d+ is not divisible|(block_n|block_k|min_thread_[nk]|group_size) ?="
        r"|(in|out)put size is not aligned with",
        "set SM_VLLM_TENSOR_PARALLEL_SIZE to a smaller divisor of the number of attention heads "
        "and of the blocks of quantized weights, and at most the number of GPUs; or give each GPU "
        "whole experts with SM_VLLM_ENABLE_EXPERT_PARALLEL=true"),
    CrashCause("amx-small-layers",
        r"Dimension out of range \(expected to be in range of \[-1, 0\], but got -2\)",
        "on a CPU with AMX tiles vLLM 0.28.0 cannot start a small P-EAGLE head in bfloat16: set "
        "SM_VLLM_DTYPE=float32, or start vLLM with the current peagle_serve, which avoids that "
        "kernel"),
    CrashCause("weights-and-config",
        r"assert .*(loaded_weight|param)\w*\.(shape|size)|org_vocab_size"
        r"|There is no module or parameter named|not initialized from checkpoint"
        r"|exceeds dimension size",
        "config.json and weights belong to different models: copy the folder of the target or head "
        "again"),
    CrashCause("head-does-not-fit",
        "For parallel drafting, the draft model config must have|mask_hidden|'fc_input_size'"
        "|KeyError: 'mask_token_id'",
        "this head was not trained for parallel drafting: use a P-EAGLE head, or another drafter"),
    CrashCause("head-does-not-fit",
        r"Tried to load weights of size|fc\.weight|mat1 and mat2 shapes cannot be multiplied"
        r"|[Ss]ize mismatch|shape mismatch|Attempted to load weight|is invalid for input of size"
        r"|must match the size of tensor",
        "the head was trained for a different target, or its config.json is from a different head"),
    CrashCause("head-does-not-fit", "index out of range in self",
        "a token ID is outside the embedding table: use another head, and remove "
        "SM_VLLM_ENABLE_LORA"),
    CrashCause("damaged-weights",
        "Error while deserializing header|incomplete metadata|MetadataIncompleteBuffer",
        "a weights file is truncated: download it again"),
    CrashCause("gated-model",
        "GatedRepoError|gated repo|(401|403) Client Error: (Unauthorized|Forbidden)"
        "|awaiting a review from the repo authors|Access to model .* is restricted"
        "|Invalid credentials in Authorization header|[Ii]nvalid user token",
        "set HF_TOKEN (also read by a container that you start yourself), accept the model's "
        "licence on its page, and copy the model to S3",
        ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX")),
    CrashCause("missing-library", "No module named '?runai_model_streamer",
        "use an image with runai-model-streamer[s3], or mount the weights"),
    CrashCause("no-access",
        r"\((AccessDenied|403|InvalidAccessKeyId|ExpiredToken|PermanentRedirect)\) when calling"
        r"|NoCredentialsError",
        "the endpoint's role needs s3:ListBucket on the bucket of the weights, in its own region, "
        "and s3:GetObject on its objects"),
    CrashCause("missing-weights", r"\(NoSuchBucket\) when calling|/model_streamer/\w+'",
        "the s3:// prefix contains no model: list the objects below it",
        ("peagle", "weights", "list", "s3://BUCKET/PREFIX")),
    CrashCause("missing-weights",
        "LocalEntryNotFoundError|OfflineModeIsEnabled|is not a valid model identifier"
        "|Repo id must be|RepositoryNotFoundError|RevisionNotFoundError"
        "|Invalid repository ID or local directory|Re(pository|vision) Not Found for url",
        "mount the weights, or allow the engine to download them"),
    CrashCause("missing-weights", "Cannot find any model weights|No such file or directory"
        "|does not appear to have a file named|backend tokenizer|[Cc]an't load (the )?tokenizer"
        "|[Cc]ouldn't instantiate the", "the model's folder is incomplete: copy it again"),
    CrashCause("unknown-model",
        r"Should have a `model_type` key|architectures \[.*\] are not supported"
        r"|Unsupported model_type|Please ensure you're loading a speculators-format model"
        r"|does not recognize this architecture|Model architectures .* failed to be inspected"
        r"|'SpeculatorsConfig' object has no attribute",
        "this vLLM version does not support the model: check the folder's config.json, or use "
        "another version of vLLM"),
    CrashCause("wrong-speculation", "enough slots to schedule a token",
        "raise SM_VLLM_MAX_NUM_BATCHED_TOKENS, or lower num_speculative_tokens"),
    CrashCause("wrong-speculation",
        "validation errors? for SpeculativeConfig|speculative_config|[Ss]ynthetic acceptance",
        "correct the speculative configuration"),
    CrashCause("wrong-value", "Pipeline parallelism is not supported for this model",
        "remove SM_VLLM_PIPELINE_PARALLEL_SIZE, and set SM_VLLM_TENSOR_PARALLEL_SIZE instead"),
    CrashCause("wrong-value", "No common block size",
        "remove SM_VLLM_BLOCK_SIZE: vLLM chooses one that its attention supports"),
    CrashCause("wrong-value", r"validation errors? for \w*(Config|Args)\b",
        "correct the SM_VLLM_ (or VLLM_) variable with this value"),
    CrashCause("nccl", "NCCL (error|WARN)|ncclSystemError|ncclUnhandledCudaError|ncclInternalError"
        "|Error while creating shared memory segment|DistBackendError",
        "GPUs cannot reach each other: give the container shared memory (--shm-size 8g, or a "
        "memory volume at /dev/shm), and see NCCL's reason with NCCL_DEBUG=INFO"),
    CrashCause("disk-full", r"No space left on device|Disk quota exceeded|os error 28\b",
        "give the container more disk space"),
    CrashCause("trust-remote-code", "trust_remote_code|trust-remote-code",
        "use a model that this vLLM version supports itself: no code of a model's repository runs"),
    CrashCause("quantization",
        r"[Qq]uantization( method)? \S+ .*not supported|not supported for quantization",
        "this engine does not support this quantization"),
)  # fmt: skip
"""The deciding causes, in the order in which they are looked for."""

_KILLED = re.compile(
    r"^(\S+: line \d+: +\d+ )?Killed\b|Out of memory: Killed process|OOM ?Killed|oom-kill"
    r"|(exit(ed|s)?|exit[ _-]?code|status|code)\W{1,4}(with )?(exit )?(code |status )?\W*(137|-9)\b"
    r"|(killed|terminated|died|ended) (by|with) (signal )?(9\b|-9\b|SIGKILL)|signal: killed"
    r"|\(signal 9\)|Signal 9 \(SIGKILL\)|core proc\(s\): \{[^}]*: -9\b",
    re.IGNORECASE,
)
"""What shells, Docker, Kubernetes, torch and vLLM say of a process that the kernel has killed."""
_LEAD = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:Z+-]* +)?(\[rank\d+\]: ?)?")
"""What Docker, Kubernetes and CloudWatch (a time) and torch (the rank) write before a line."""
_PREFIX = re.compile(
    r"^(\([A-Z]\w*(?: pid=\d+)?\)\s*)*((DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(\d\d-\d\d \d\d:\d\d:\d\d )?(\[[^\]]*\] ?)?)?"
)
_IGNORED = re.compile(r"^(\([A-Z]\w*(?: pid=\d+)?\)\s*)*(DEBUG|INFO|WARNING)\b")
_MESSAGE = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)(?:: |$)|botocore\.\S+: |(?:vllm serve|[\w.]+): error: "
    r"|Access to model |Re(?:pository|vision) Not Found |Fatal Python error|terminate called"
    r"|.*error while loading shared libraries"
    r"|.*\bexec\b.*(not found|[Nn]o such file|permission denied|format error)"
    r"|(\S+: )*(line \d+: )*(\d+: )?(exec: )?(\S*/)?(serve|vllm): "
    r"((command )?not found|[Pp]ermission denied)|.*NCCL WARN )"
)
_END_OF_MESSAGE = re.compile(
    r"^(Traceback|File |During handling|The above exception|For further|Process \w+:"
    r"|Error retrieving )"
)
_NOT_THE_CAUSE = re.compile(
    r"See root cause above|EngineDeadError|leaked \w+ objects|warnings\.warn|resource_tracker"
    r"|WorkerProc (initialization failed|hit an exception)|Worker failed with error"
    r"|[Pp]roc \S+ died unexpectedly|(EngineCore|WorkerProc) failed to start"
)
_PROCESS = re.compile(r"^\([A-Z]\w*")
_BARE_EXCEPTION = re.compile(r"^\w+(Error|Exception)$")
_HUB_ERROR = re.compile(r"\d{3} Client Error")
"""Its details follow after a blank line."""
_VALIDATION = re.compile(r"^pydantic_core\S*: \d+ validation errors? for ")
_PYDANTIC_DETAIL = re.compile(r" \[type=\w+, input_value=(.*?), input_type=(\w+)\]")
_SIMPLE_TYPES = ("str", "int", "float", "bool", "NoneType")
_FOLLOWING_LINES = 2
_LONGEST = 300


def parse_crash(lines: Iterable[str]) -> Crash:
    """The first message with a known cause; else that a process was killed; else the last message.

    A message is an exception, or an error of a command line, with the lines that belong to it.
    """
    written = [_LEAD.sub("", without_colors(line)) for line in lines]
    kept = [line for line in written if not _IGNORED.match(line)]
    writers = [match[0] if (match := _PROCESS.match(line)) else "" for line in kept]
    parsed = [(writer, bare_line(line)) for writer, line in zip(writers, kept, strict=True)]
    parsed = [(writer, text) for writer, text in parsed if not _NOT_THE_CAUSE.search(text)]
    messages = [
        _message(parsed, number) for number, (_, text) in enumerate(parsed) if _MESSAGE.match(text)
    ]
    for message in messages:
        for row in CAUSES:
            if re.search(row.pattern, message):
                return Crash(_readable(message), row.fix, row.cause, row.command)
    for line in kept:
        if _KILLED.search(bare_line(line)):
            return Crash(_readable(bare_line(line)), KILLED_FIX, "killed")
    return Crash(_readable(messages[-1])) if messages else Crash("")


def bare_line(line: str) -> str:
    """A line of vLLM's log without colours, process, level, date and source."""
    return _PREFIX.sub("", _LEAD.sub("", without_colors(line))).strip()


def _message(lines: list[tuple[str, str]], number: int) -> str:
    """The message that begins with this line, and the lines of its process that belong to it."""
    writer, first = lines[number]
    message = [first]
    if _BARE_EXCEPTION.match(first):  # the code says more, as of ``assert``
        before = (text for _, text in reversed(lines[:number]) if text.strip("^~ "))
        code = next(before, "")
        if code.startswith(("assert ", "raise ")):
            message = [f"{first}: {code}"]
    for process, text in lines[number + 1 :]:
        if not text and _HUB_ERROR.search(first):
            continue
        ends = not text or _MESSAGE.match(text) or _END_OF_MESSAGE.match(text)
        if ends or process != writer or len(message) > _FOLLOWING_LINES:
            break
        message.append(text)
    return " ".join(message)


def _readable(message: str) -> str:
    """Without pydantic's details, and at most a few lines long."""
    # The value that pydantic rejected stays, if it is simple.
    plain = _PYDANTIC_DETAIL.sub(
        lambda detail: f", not {detail[1]}" if detail[2] in _SIMPLE_TYPES else "",
        _VALIDATION.sub("", message),
    )
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST // 2]} ... {plain[-100:]}"
