#!/usr/bin/env bash
# Not yet run under SLURM: the tests run it with stand-ins for sbatch, srun and scontrol.
#
#   WORKDIR=/shared/run NODES=4 GPUS=8 SBATCH_OPTIONS='--partition=gpu --time=24:00:00' \
#       launch/slurm.sh --config=configs/x.py --config.mesh.data=4 --config.mesh.fsdp=8
#
# Submits itself as a job with one process for each of the GPUS of each node. If the job is
# preempted, reaches its time limit or fails, it is queued again, and the run resumes. The checkout,
# with its .venv, and WORKDIR are on a file system that all nodes share, or WORKDIR is
# gs://BUCKET/run.
set -euo pipefail

: "${MAX_RESTARTS:=10}"         # of jobs that failed; others are queued again without a limit
: "${SAVE_SECONDS:=180}"        # before the time limit, the run is told to save
: "${PYTHON:=.venv/bin/python}"

if [[ -z ${SLURM_JOB_ID:-} ]]; then
    cd "$(dirname "$0")/.."
    # shellcheck source=launch/common.sh
    source launch/common.sh
    require WORKDIR NODES GPUS -- "$@"
    export WORKDIR MAX_RESTARTS PYTHON
    read -ra more <<< "${SBATCH_OPTIONS:-}"
    # Every process sees all GPUs of its node: jax takes the one with the process's number.
    exec sbatch --job-name="$(basename "$WORKDIR")" --nodes="$NODES" --ntasks-per-node="$GPUS" \
        --gpus-per-node="$GPUS" --signal="TERM@$SAVE_SECONDS" --requeue --open-mode=append \
        --export=ALL ${more[@]+"${more[@]}"} launch/slurm.sh "$@"
fi

cd "$SLURM_SUBMIT_DIR"
code=0
srun --kill-on-bad-exit=1 "$PYTHON" train.py --workdir="$WORKDIR" "$@" || code=$?
case $code in
    0 | 2 | 65 | 69 | 126 | 127 | 130) exit "$code" ;;  # done, or a restart does not mend it
    75) ;;                                              # stopped and saved
    *)
        if ((${SLURM_RESTART_COUNT:-0} >= MAX_RESTARTS)); then
            echo "slurm.sh: ended with code $code; gave up after $MAX_RESTARTS restarts" >&2
            exit "$code"
        fi
        ;;
esac
echo "slurm.sh: ended with code $code; queued again" >&2
scontrol requeue "$SLURM_JOB_ID"
exit "$code"
