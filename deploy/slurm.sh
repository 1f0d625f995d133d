#!/bin/bash
#SBATCH --job-name=fedactors
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@120
#
# A Ray cluster on the nodes of one job, and one run on it:
#
#   sbatch deploy/slurm.sh pubsub-vfl --placement active=site-0,passive=site-1 num_epochs=20 --out "$HOME/runs"
#
# Node number i carries the label site-i. --out should be a folder that all nodes see. Two minutes before its time is over
# the run writes a checkpoint; sbatch deploy/slurm.sh PROTOCOL --resume RUN goes on from it.
set -euo pipefail

port=${RAY_PORT:-6379}
cpus=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=1 RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0

RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN # srun hands the environment on

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

start() { # number of the node, then what ray start is given
    local number=$1
    shift
    srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[$number]}" \
        ray start --block --num-cpus="$cpus" --resources="{\"site-$number\": 1}" --disable-usage-stats "$@" &
}

start 0 --head --node-ip-address="$address" --port="$port" --dashboard-host=127.0.0.1
for number in $(seq 1 $((${#nodes[@]} - 1))); do
    start "$number" --address="$address:$port"
done

# all nodes within two minutes, or the job ends
python - "$address:$port" "${#nodes[@]}" <<'PYTHON'
import sys
import time

import ray

address, wanted = sys.argv[1], int(sys.argv[2])
until = time.monotonic() + 120
while True:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        break
    except Exception as error:
        if time.monotonic() > until:
            sys.exit(f"no Ray at {address} within two minutes: {error}")
        time.sleep(1)
while sum(node["Alive"] for node in ray.nodes()) < wanted:
    if time.monotonic() > until:
        sys.exit(f"of {wanted} nodes {sum(node['Alive'] for node in ray.nodes())} came up within two minutes")
    time.sleep(1)
PYTHON

fedactors run "$@" --address "$address:$port" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
if kill -0 "$run" 2> /dev/null; then # the signal ended the wait, not the run
    code=0
    wait "$run" || code=$?
fi
jobs -p | xargs -r kill 2> /dev/null || true
exit "$code"
