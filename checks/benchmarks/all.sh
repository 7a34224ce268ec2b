#!/usr/bin/env bash
# checks/benchmarks/all.sh [ARGS]: all benchmarks; the arguments are those of against_peers.py (--help lists them).
set -euo pipefail
cd "$(dirname "$0")"
python against_peers.py "$@"
python one_device.py
record=()
for argument in "$@"; do
  if [ "$argument" = --record ]; then record=(--record); fi
done
python radius.py "${record[@]}"
python cliffs.py
python subhaloes.py
