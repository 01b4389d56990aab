#!/usr/bin/env bash
# Train a head for the tiny target with the product: train.sh GPU DATA OPTION..., after unpack.sh.
. "$W/env.sh"; queue train "$1"; data=$2; shift 2
step plan 300 peagle train plan tiny --data "$data" --here --probe
step train 1650 peagle train tiny --data "$data" -o head --yes "$@"
step check 60 peagle check tiny --drafter ./head
tar czf "$W/out/head.tgz" --exclude=.work head
touch "$W/out/train.done"
