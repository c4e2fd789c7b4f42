#!/usr/bin/env bash
# Not yet run against Cloud TPU: the tests run it with a stand-in for gcloud.
#
#   NAME=vm ZONE=us-west4-a ACCELERATOR=v5litepod-4 WORKDIR=gs://BUCKET/run \
#       launch/tpu_vm.sh --config=configs/x.py --config.model.dtype=bfloat16
#
# Trains on one TPU VM: creates it, sends the commit that is checked out, waits, deletes the VM when
# the run has ended, and ends with its exit code. If the VM is preempted, the same command creates
# another, and the run resumes. launch/tpu_slice.sh does that by itself, and takes several hosts.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=launch/tpu_common.sh
source launch/tpu_common.sh

delete() { gcloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" --quiet; }

prepare_launch "$@"
begin tpu-vm 'value(state)'
if [[ $STATE == ABSENT ]]; then
    gcloud compute tpus tpu-vm create "$NAME" --version="$RUNTIME" "${OPTIONS[@]}"
fi
while true; do
    end_if_done
    read_state tpu-vm 'value(state)'
    case $STATE in
        PREEMPTED | TERMINATED | STOPPED | ABSENT)
            log "the VM is gone ($STATE); the same command creates another, and the run resumes"
            [[ $STATE == ABSENT ]] || delete
            exit 75
            ;;
    esac
    sleep "$POLL_SECONDS"
done
