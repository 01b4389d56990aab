# To be sourced on the GPU host:  IN=folder with all pieces  W=scratch  . unpack.sh
# Makes environments of the pieces of pack.sh, and $W/env.sh, which sets what each shell needs.
: "${IN:?}" "${W:?}"
mkdir -p "$W"/{vllm,tools,source,bin,cache,out}; chmod +x "$IN/zstd"
unpack() { cat "$IN/$1".?? | LD_LIBRARY_PATH=$IN "$IN/zstd" -dc | tar xf - -C "$W/$1"; }
unpack vllm & unpack tools & tar xzf "$IN/source.tgz" -C "$W/source"; wait
# torch finds CUDA's libraries beside itself: the host's own, except what travelled (NCCL).
host=$(env -u PYTHONPATH python3 -c 'import torch; print(torch.__path__[0].rpartition("/")[0])')
for library in "$host"/nvidia/*; do
  [ -e "$W/vllm/nvidia/${library##*/}" ] || ln -s "$library" "$W/vllm/nvidia/${library##*/}"
done
environment() {  # environment NAME LINE...: a virtual environment whose .pth file has these lines
  "$(python3 -c 'import sys; print(sys._base_executable)')" -m venv --without-pip "$W/env/$1"
  local name=$1; shift
  printf '%s\n' "$@" >"$(echo "$W/env/$name"/lib/python3.*/site-packages)/host.pth"
}
# Fresh hosts share no cache. Without NVLink multicast: a container's driver may refuse it. The
# FlashInfer sampler compiles for 160 s at the first start.
set="import os; e = os.environ.setdefault; [e(*pair.split('=')) for pair in '''
HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK=1
TOKENIZERS_PARALLELISM=false VLLM_USE_FLASHINFER_SAMPLER=0 NCCL_NVLS_ENABLE=0
TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 VLLM_CACHE_ROOT=$W/cache/vllm
TRITON_CACHE_DIR=$W/cache/triton TORCHINDUCTOR_CACHE_DIR=$W/cache/inductor'''.split()]"
set=$(echo "$set" | tr '\n' ' ')
environment engine "$set" "$W/vllm" "$W/vllm/nvidia_cutlass_dsl/dsl_packages" "$host"
environment trainer "$set" "$W/tools/trainer" "$W/vllm" "$host"  # the trainer's versions take precedence
environment toolkit "$W/tools/core" "$W/source/toolkit" "$W/source/containers" "$W/source"
environment aiperf "$W/tools/aiperf"
script() {  # script FILE PYTHON MODULE
  printf '#!/bin/sh\nexec %s -m %s "$@"\n' "$W/env/$2/bin/python" "$3" >"$1"; chmod +x "$1"
}
script "$W/bin/peagle" toolkit peagle.cli
script "$W/env/trainer/bin/speculators" trainer speculators
sed "1c#!$W/env/aiperf/bin/python" "$W/tools/aiperf/bin/aiperf" >"$W/env/aiperf/bin/aiperf"
chmod +x "$W/env/aiperf/bin/aiperf"
printf '{"lock": "%s"}' "$(sha256sum <"$W/source/requirements/aiperf.txt" | cut -d' ' -f1)" >"$W/env/aiperf/engine.json"
cat >"$W/env.sh" <<END
unset PYTHONDONTWRITEBYTECODE
export W=$W PATH=$W/bin:\$PATH HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 COLUMNS=110
export PEAGLE_ENGINE_PYTHON=$W/env/engine/bin/python PEAGLE_TRAINER_PYTHON=$W/env/trainer/bin/python
# queue NAME GPUS: what this shell runs has a home, records and GPUs of its own.
queue() {
  export PEAGLE_HOME=$W/home-\$1 CUDA_VISIBLE_DEVICES=\$2; O=$W/out/\$1; N=0
  mkdir -p \$PEAGLE_HOME/engines \$O; cd \$O
  ln -sfn $W/env/aiperf \$PEAGLE_HOME/engines/aiperf-0.13.0
}
# step NAME SECONDS COMMAND...: runs it at most that long; command, output and time go into a file.
step() {
  local name=\$1 limit=\$2 file began=\$SECONDS; shift 2; N=\$((N + 1)); file=\$O/\$(printf %02d \$N)-\$name.txt
  echo "\\\$ \$*" >\$file; timeout -s INT -k 20 \$limit "\$@" >>\$file 2>&1
  echo "[exit \$?, \$((SECONDS - began)) s]" | tee -a \$file | sed "s/^/\$(date +%T) \$name /" >>$W/out/progress.txt
}
END
