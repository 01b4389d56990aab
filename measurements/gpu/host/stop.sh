#!/usr/bin/env bash
# A crash and SIGTERM with the tiny pair on a GPU host, recorded: stop.sh GPU, after unpack.sh.
. "$W/env.sh"; queue stop "$1"
engine() { peagle local list --json | python3 -c "import json, sys; print(json.load(sys.stdin)['engines'][0]['$1'])"; }
step up 300 peagle local up tiny --here --name stop
server=$(engine pid) port=$(engine port)
# A crash: the entrypoint starts the engine again.
kill -9 $(pgrep -f VLLM::EngineCore)
sleep 5; step crash 60 peagle local list
for _ in $(seq 120); do [ "$(engine healthy)" = True ] && break; sleep 0.5; done
step restarted 60 peagle local list
step prove 60 peagle prove stop
# SIGTERM: the running answer ends, new requests are refused, and the entrypoint ends.
long='{"messages": [{"role": "user", "content": "Count."}], "max_tokens": 1900, "ignore_eos": true, "stream": true}'
step answer 60 peagle invoke stop "$long" --json & asked=$!
running='^vllm:num_requests_running{.* 1\.0'
until curl -s "127.0.0.1:$port/metrics" | grep -q "$running"; do kill -0 $asked || break; done
kill -TERM "$server"
while curl -s "127.0.0.1:$port/metrics" | grep -q "$running"; do
  curl -s -o /dev/null -w 'a new request: %{http_code}\n' "127.0.0.1:$port/invocations" -d '{"prompt": "a"}'
done | sort | uniq -c >refused.txt
wait $asked; while kill -0 "$server" 2>/dev/null; do sleep 0.1; done
N=6 step ended 60 peagle local list
cp "$PEAGLE_HOME/local/stop/engine.log" .
touch "$W/out/stop.done"
