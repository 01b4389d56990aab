#!/usr/bin/env bash
# Rows of evidence with dummy weights: rows.sh NAME GPUS PAIR OPTION..., after unpack.sh. Such as
#   rows.sh conversation 1 gpt-oss-20b --sweep k=none,3,7 --workload conversation --concurrency 1,8,32
. "$W/env.sh"; queue "$1" "$2"; name=$1; shift 2
step rows 1500 peagle bench "$@" --here --yes --dummy-weights --impose-acceptance published \
  --repetitions 3 --save rows -o rows.json
touch "$W/out/$name.done"
