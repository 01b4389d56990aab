#!/usr/bin/env bash
# Pack vLLM, the toolkit, aiperf and the trainer for a GPU host without a network: pack.sh OUT [LOCK]
#   OUT   a folder, such as .gpu; gets pieces of 62 MB (vllm.NN, tools.NN), source.tgz and zstd
#   LOCK  lock file with hashes, for another vLLM (default: 0.28.0)
# For Linux on x86_64 and Python 3.12. Run it from the root of the repository; 4 minutes.
set -euo pipefail
lock=${2:-requirements/engine/0.28.0/gpu.txt}
mkdir -p "$1"; out=$(readlink -f "$1"); tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
# Left out of a lock: what the host's own torch has brought, and what no measured pair imports.
HOST='cuda-.*|nvidia-(cu[a-z]+|nv[a-z]+|cudnn-cu13|cusparselt-cu13|nvshmem-cu13|cuda-.*)|numpy|numba|llvmlite|
opencv-python-headless|pillow|sympy|networkx|mpmath|ml-dtypes|grpcio|setuptools'
UNUSED='nvidia-cutlass-dsl-libs-cu12|tilelang|z3-solver|tokenspeed-.*|torchcodec|pynvvideocodec|sentry-sdk|
fastapi-cloud-cli|fastar|rignore|agent-detector|detect-installer|colorama|httpx2-jsfetch|pywin32|win32-setctime'
without() {  # without REGEX LOCK: the lock without these packages
  awk -v names="^($(echo "$1" | tr -d '\n'))=" '/^[a-z0-9]/ { keep = $0 !~ names } keep' "$2"
}
platforms=(); for minor in $(seq 34 -1 5); do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
install() {  # install FOLDER REQUIREMENTS
  python3 -m pip install -q --no-deps --no-compile --require-hashes --only-binary :all: \
    --implementation cp --python-version 3.12 "${platforms[@]}" --target "$tree/$1" -r "$2"
}
pack() {  # pack FOLDER NAME
  tar cf - -C "$tree/$1" . | zstd -q -T0 -9 | split -b 62M -d -a 2 - "$out/$2."
}
rm -f "$out"/vllm.?? "$out"/tools.??
without "$HOST|$UNUSED" "$lock" >"$tree/vllm.txt"
install vllm "$tree/vllm.txt"
find "$tree/vllm" -name '*.a' -delete; rm -rf "$tree/vllm/torch/test"
pack vllm vllm
install tools/core requirements/core.txt
install tools/aiperf requirements/aiperf.txt
# The trainer shares vLLM's packages where both locks have the same version. It uses vLLM's Triton,
# even if its lock has another version.
shared=$(grep -ohE '^[a-z0-9._-]+=[^ ]+' "$lock" requirements/trainer/gpu.txt |
  sort | uniq -d | sed 's/=.*//' | paste -sd '|')
without "triton|$shared|$HOST|$UNUSED" requirements/trainer/gpu.txt >"$tree/trainer.txt"
install tools/trainer "$tree/trainer.txt"
pack tools tools
git archive --format=tar.gz -o "$out/source.tgz" HEAD
cp "$(command -v zstd)" "$(ldd "$(command -v zstd)" | awk '/liblz4/ {print $3}')" "$out/"
du -sh "$out"; ls "$out"
