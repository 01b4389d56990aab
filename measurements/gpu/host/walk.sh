#!/usr/bin/env bash
# What a user does first with the tiny pair on a GPU host, recorded: walk.sh GPU, after unpack.sh.
. "$W/env.sh"; queue walk "$1"
python3 - "$W/source/model_catalog/peagle/tiny/prompts.json" >prompts.jsonl <<'PYTHON'
import json, sys

for row in json.load(open(sys.argv[1])):
    message = {"role": "user", "content": row["prompt"]}
    print(json.dumps({"domain": row["kind"], "messages": [message]}))
PYTHON
step doctor 60 peagle doctor
step plan 60 peagle plan tiny --here
step up 400 peagle local up tiny --here --name walk
step status 60 peagle local status
step invoke 60 peagle invoke walk "What does textwrap.wrap do?"
step prove 60 peagle prove walk
step down 90 peagle local down walk
step sweep 600 peagle bench tiny --sweep k=none,1,3,5,7 --workload prompts.jsonl --concurrency 1,8 \
  --output-tokens 200 --here --save mine -o sweep.json --yes
# Plan with the measured load and size, so that K comes from the sweep.
if plan=$(grep -h '^  peagle --catalog mine plan' ./*-sweep.txt); then step plan-mine 60 $plan; fi
step lossless 400 peagle bench tiny --sweep k=none,5 --workload prompts.jsonl --concurrency 1 \
  --repetitions 1 --output-tokens 200 --lossless --here -o lossless.json --yes
# What local up adds to vLLM's own start, when all is compiled.
step overhead 400 "$W/env/toolkit/bin/python" -m measurements.gpu.start_overhead
touch "$W/out/walk.done"
