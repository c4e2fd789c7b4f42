#!/usr/bin/env bash
# Not yet run against Cloud TPU: the tests run it with a stand-in for gcloud.
#
#   NAME=slice ZONE=us-west4-a ACCELERATOR=v5litepod-16 WORKDIR=gs://BUCKET/run \
#       GCLOUD_OPTIONS=--spot launch/tpu_slice.sh --config=configs/x.py --config.mesh.fsdp=16
#
# Trains on a TPU slice of any number of hosts, as a queued resource: requests it, sends the commit
# that is checked out, waits, deletes the slice when the run has ended, and ends with its exit code.
# A slice that was preempted is requested again, and the run resumes. If this script is interrupted,
# the slice goes on; the same command waits for it again.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=launch/tpu_common.sh
source launch/tpu_common.sh

delete() {
    gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
}

prepare_launch "$@"
begin queued-resources 'value(state.state)'
while true; do
    end_if_done
    case $STATE in
        ABSENT)
            gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" \
                --runtime-version="$RUNTIME" "${OPTIONS[@]}"
            ;;
        SUSPENDED)
            log "the slice was preempted: it is requested again"
            delete
            ;;
        FAILED)
            log "the request failed:"
            gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" >&2
            delete
            exit 1
            ;;
    esac
    sleep "$POLL_SECONDS"
    read_state queued-resources 'value(state.state)'
done
