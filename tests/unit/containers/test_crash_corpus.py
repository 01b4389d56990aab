"""One table of log lines: of our own runs, of vLLM's source, and of public bug reports.

A row is the log, the cause, and a word of the fix. Complete logs are in ``crashes``.
"""

from __future__ import annotations

import pytest

from peagle.engine.logs import find_crash
from peagle_serve.crash import parse_crash

SHARD = "is not divisible by weight quantization"
GATE = "ValueError: The output_size of gate's and up's weight"
BOTO = "(APIServer pid=7) botocore."
S3 = "when calling the ListObjectsV2 operation"
CORPUS: list[tuple[str, str, str]] = [
    # memory of the GPU, and the KV cache
    (
        "\x1b[1;36m(EngineCore_DP0 pid=271)\x1b[0;0m ERROR 09-19 21:54:09 [core.py:800] Traceback "
        "(most recent call last):\n"
        "#033[1;36m(EngineCore_DP0 pid=271)#033[0;0m ERROR 09-19 21:54:09 [core.py:800] ValueError:"
        " Free memory on device cuda:0 (20.1/22.06 GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 20.96 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.",
        "out-of-memory",
        "lower --gpu-memory-utilization below"
    ),
    (
        "^[[1;36m(EngineCore pid=9)^[[0;0m torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB. GPU 0 has a total capacity of 22.06 GiB of which 1.10 GiB is free.",
        "out-of-memory",
        "lower --gpu-memory-utilization"
    ),
    (
        "#033[1;31mERROR#033[0m 09-19 21:54:09 [core.py:8] RuntimeError: CUDA error: out of memory",
        "out-of-memory",
        "larger GPU"
    ),
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`",
        "out-of-memory",
        "--max-num-seqs"
    ),
    (
        "ValueError: Available memory on node 0 (10.94/14.21 GiB) on kv cache allocation is less "
        "than requested memory for kv (1000.0 GiB).",
        "out-of-memory",
        "lower VLLM_CPU_KVCACHE_SPACE"
    ),
    ("ValueError: No available memory for the cache blocks.", "no-kv-cache", "--max-model-len"),
    (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (5.31 GiB).",
        "no-kv-cache",
        "lower --max-model-len"
    ),
    # memory of the host
    ("[rank0]: torch.OutOfMemoryError: CUDA out of memory.", "out-of-memory", "utilization"),
    ("2026-09-19T21:54:09.12Z \x1b[31m/bin/sh: serve: not found\x1b[0m", "missing-entrypoint", ""),
    ("sh: 1: serve: Permission denied", "missing-entrypoint", "executable"),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2 GiB", "killed", "host"),
    ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
     "killed", "host"),
    ("Killed", "killed", "instance with more memory"),
    ("/usr/bin/start.sh: line 12:    42 Killed                  python3 -m x", "killed", "host"),
    ("INFO x\nOut of memory: Killed process 812 (VLLM::EngineCor)", "killed", ""),
    ("container vllm exited with code 137", "killed", "instance with more memory"),
    ("command terminated with exit code 137", "killed", "host"),
    ("    Reason:       OOMKilled", "killed", "limit"),
    ("    Exit Code:    137", "killed", "host"),
    (
        "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore_DP0': -9}",
        "killed",
        "host"
    ),
    ("RuntimeError: DataLoader worker (pid 88) is killed by signal: Killed.\nKilled", "killed", ""),
    ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
     "killed", "host"),
    # the image
    (
        'Traceback (most recent call last):\n  File "/usr/local/bin/vllm_entrypoint.py", line 4, '
        "in <module>\nFileNotFoundError: [Errno 2] No such file or directory: 'serve'",
        "missing-entrypoint",
        "`serve`"
    ),
    (
        "docker: Error response from daemon: failed to create task for container: failed to create "
        "shim task: OCI runtime create failed: runc create failed: unable to start container "
        'process: exec: "serve": executable file not found in $PATH: unknown.',
        "missing-entrypoint",
        "`serve`"
    ),
    ("/bin/sh: 1: serve: not found", "missing-entrypoint", "`serve`"),
    ("bash: line 1: serve: command not found", "missing-entrypoint", "`serve`"),
    ("/entrypoint.sh: line 3: exec: serve: not found", "missing-entrypoint", "`serve`"),
    ("exec /usr/local/bin/serve: no such file or directory", "missing-entrypoint", "`serve`"),
    ("exec /usr/local/bin/serve: exec format error", "wrong-architecture", "linux/amd64"),
    ("/bin/sh: 1: vllm: not found", "missing-engine", "vLLM"),
    ("ModuleNotFoundError: No module named 'vllm'", "missing-engine", "install vLLM"),
    ("ImportError: libnuma.so.1: cannot open shared object file", "missing-library", "install"),
    ("ModuleNotFoundError: No module named 'runai_model_streamer'", "missing-library", "[s3]"),
    # tensor parallel
    (f"(Worker_TP0 pid=993) ERROR 08-31 08:16:01 [multiproc_executor.py:941] {GATE} = 192 {SHARD} "
     "block_n = 128.", "tensor-parallel", "smaller divisor"),
    (f"INFO 1 [x.py:1] config: tensor_parallel_size=8, x\n{GATE} = 192 {SHARD} block_n = 128.",
     "tensor-parallel", "smaller divisor"),
    (f"INFO non-default args: {{'tensor_parallel_size': 4}}\nValueError: The input_size of down's "
     f"weight = 96 {SHARD} block_k = 128.", "tensor-parallel", "smaller divisor"),
    (f"ValueError: Weight output_partition_size = 1216 {SHARD} block_n = 128.",
     "tensor-parallel", "smaller divisor"),
    ("ValueError: Weight input_size_per_partition = 9472 is not divisible by min_thread_k = 128. "
     "Consider reducing tensor_parallel_size", "tensor-parallel", ""),
    ("ValueError: Weight input_size_per_partition=96 is not divisible by group_size=128. This",
     "tensor-parallel", "smaller divisor"),
    ("ValueError: The input size is not aligned with the quantized weight shape. This can be "
     "caused by too large tensor parallel size.", "tensor-parallel", "smaller divisor"),
    ("Value error, x\nValueError: Total number of attention heads (28) must be divisible by tensor "
     "parallel size (8).", "tensor-parallel", "smaller divisor"),
    ("AssertionError: 14 is not divisible by 4", "tensor-parallel", "smaller divisor"),
    ("AssertionError: 192 is not divisible by 128", "tensor-parallel", "smaller divisor"),
    ("ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
     "tensor-parallel", "smaller divisor"),
    # drivers and GPUs
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
     "cuda-driver", "InferenceAmiVersion"),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported "
     "display driver / cuda driver combination", "cuda-driver", "InferenceAmiVersion"),
    ("RuntimeError: Failed to infer device type, please set VLLM_LOGGING_LEVEL", "cuda-driver", ""),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device",
     "gpu-too-old", "another instance type"),
    ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
     "gpu-too-old", "another instance type"),
    ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
     "nccl", "--shm-size"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:268, unhandled cuda "
     "error", "nccl", "NCCL_DEBUG"),
    ("algo-1:88:301 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment "
     "/dev/shm/nccl-x (size 9637888)", "nccl", "shared memory"),
    # Hub and S3
    ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "gated-model", "HF_TOKEN"),
    ("huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://x/y",
     "gated-model", "HF_TOKEN"),
    ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://x/y",
     "gated-model", "HF_TOKEN"),
    ("OSError: You are trying to access a gated repo. Make sure to have access to it",
     "gated-model", "licence"),
    ("RuntimeError: Cannot find any model weights with `/opt/ml/model`", "missing-weights", "copy"),
    ("OSError: Can't load tokenizer for '/opt/ml/model'. If you were trying to load it from",
     "missing-weights", "copy it again"),
    ("ValueError: Couldn't instantiate the backend tokenizer from one of: (1) a `tokenizers` "
     "library serialization file", "missing-weights", "copy it again"),
    (f"{BOTO}errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) {S3}: no such bucket",
     "missing-weights", "list"),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
     "  Value error, Invalid repository ID or local directory specified: '/var/cache/peagle/.cache/"
     "vllm/assets/model_streamer/b3717505'.\nPlease verify the following requirements:",
     "missing-weights", "list"),
    (f"{BOTO}exceptions.NoCredentialsError: Unable to locate credentials", "no-access", "role"),
    (f"{BOTO}exceptions.ClientError: An error occurred (AccessDenied) {S3}: Access Denied",
     "no-access", "s3:ListBucket"),
    (f"{BOTO}exceptions.ClientError: An error occurred (403) when calling the HeadObject operation",
     "no-access", "s3:GetObject"),
    # disk, ports and arguments
    ("OSError: [Errno 28] No space left on device", "disk-full", "more disk space"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
     "damaged-weights", "download it again"),
    ("OSError: [Errno 98] Address already in use", "port-in-use", "another port"),
    ("api_server.py: error: unrecognized arguments: --x", "unknown-argument", "remove"),
    ("vllm serve: error: argument --dtype: invalid choice: 'x'", "unknown-argument", "correct"),
    # models and heads
    ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
     "unknown-model", "another version"),
    ("ValueError: The checkpoint you are trying to load has model type `foo` but Transformers does "
     "not recognize this architecture.", "unknown-model", "another version"),
    ("AssertionError: Attempted to load weight (torch.Size([1]))", "head-does-not-fit", "target"),
    ("ValueError: For parallel drafting, the draft model config must have `ptd_token_id`",
     "head-does-not-fit", "P-EAGLE head"),
    ("ValueError: something strange", "", ""),
]  # fmt: skip
CONSEQUENCES = [
    "Process EngineCore:",
    "(APIServer pid=7) Traceback (most recent call last):",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}",
]
HEALTHY = [
    "(APIServer pid=7) INFO 11-20 11:34:11 [x.py:1] worker exited with code 137, restarted",
    'INFO:     127.0.0.1:4 - "POST /invocations HTTP/1.1" 200 OK',
    "(APIServer pid=7) INFO 11-20 [x.py:6] killed 3 idle streams; GPU KV cache usage: 13.7%",
    "(EngineCore pid=8) WARNING 11-20 11:34:11 [x.py:6] exit code 137",
]


@pytest.mark.parametrize(("log", "cause", "fix"), CORPUS, ids=lambda part: str(part)[:40])
def test_a_log_has_its_cause_and_a_fix(log: str, cause: str, fix: str) -> None:
    lines = [*HEALTHY, *log.splitlines(), *CONSEQUENCES]

    crash = find_crash(lines)

    assert (crash.cause, bool(crash.fix)) == (cause, bool(cause))
    assert fix in " ".join((crash.fix, *crash.command))
    assert crash == parse_crash(lines)
    assert not any(code in crash.line for code in ("\x1b", "#033", "^["))


def test_a_cause_decides_before_the_kill_that_followed_it() -> None:
    known = parse_crash(["Killed", "OSError: [Errno 28] No space left on device"])

    assert known.cause == "disk-full"
    assert parse_crash(["ValueError: strange", "exit code 137"]).cause == "killed"
    assert parse_crash(HEALTHY).line == ""
