# shellcheck shell=bash
# Not yet run against Cloud TPU: what launch/tpu_vm.sh and launch/tpu_slice.sh share.
# shellcheck source=launch/common.sh
source launch/common.sh

: "${EXTRAS:=tpu,gcs}"     # of pyproject.toml
: "${POLL_SECONDS:=30}"    # between two looks at the TPU and at the bucket
: "${GCLOUD_OPTIONS:=}"    # more options of the command that creates the TPU, such as --spot

: "${ENVIRONMENT:=}"       # of train.py: words such as WANDB_MODE=offline

# Checks the values, and sets LAUNCH, RUNTIME, OPTIONS, and two files: STARTUP, the start-up script,
# and ERRORS.
prepare_launch() {
    require NAME ZONE ACCELERATOR WORKDIR -- "$@"
    if [[ $WORKDIR != gs://?*/?* ]]; then
        log "WORKDIR=$WORKDIR must be gs://BUCKET/DIRECTORY: the VM's disk is deleted with it"
        exit 2
    fi
    WORKDIR=${WORKDIR%/} LAUNCH=${WORKDIR%/}.launch
    if [[ -z ${RUNTIME:-} ]]; then
        case $ACCELERATOR in
            v2-* | v3-* | v4-*) RUNTIME=tpu-ubuntu2204-base ;;
            v5litepod-*) RUNTIME=v2-alpha-tpuv5-lite ;;
            v5p-*) RUNTIME=v2-alpha-tpuv5 ;;
            v6e-*) RUNTIME=v2-alpha-tpuv6e ;;
            *)
                log "the software of ACCELERATOR=$ACCELERATOR is not known; set RUNTIME"
                exit 2
                ;;
        esac
    fi
    STARTUP=$(mktemp) ERRORS=$(mktemp)
    trap 'rm -f "$STARTUP" "$ERRORS"' EXIT
    {
        echo '#!/usr/bin/env bash'
        local name
        for name in WORKDIR LAUNCH EXTRAS ENVIRONMENT; do printf '%s=%q\n' "$name" "${!name}"; done
        printf 'ARGUMENTS=(' && printf ' %q' "$@" && printf ' )\n'
        cat launch/tpu_startup.sh
    } > "$STARTUP"
    OPTIONS=(--zone="$ZONE" --accelerator-type="$ACCELERATOR"
        --metadata-from-file=startup-script="$STARTUP")
    local more
    read -ra more <<< "$GCLOUD_OPTIONS"
    OPTIONS+=(${more[@]+"${more[@]}"})
}

# Sends the commit that is checked out to the bucket, from where the start-up script fetches it.
send_source() {
    git diff --quiet HEAD || log "uncommitted changes are not sent"
    git archive --format=tar.gz HEAD | gcloud storage cp - "$LAUNCH/source.tar.gz"
    # That of an earlier launch would end this one.
    if gcloud storage cat "$LAUNCH/exit_code" > /dev/null 2>&1; then
        gcloud storage rm "$LAUNCH/exit_code"
    fi
}

# Sets STATE: what Cloud TPU says, ABSENT, or UNKNOWN if it cannot be asked now.
read_state() {
    local kind=$1 format=$2
    # shellcheck disable=SC2153
    if STATE=$(gcloud compute tpus "$kind" describe "$NAME" --zone="$ZONE" --format="$format" \
        2> "$ERRORS"); then
        return
    elif grep -q NOT_FOUND "$ERRORS"; then
        STATE=ABSENT
    else
        STATE=UNKNOWN
        cat "$ERRORS" >&2
    fi
}

# Reads the first state; sends the code if there is no TPU of this name yet.
begin() {
    read_state "$@"
    case $STATE in
        ABSENT) send_source ;;
        UNKNOWN) exit 1 ;;
        *) log "$NAME is there ($STATE): waiting for the run that it was launched with" ;;
    esac
    log "the log: gcloud compute tpus tpu-vm ssh $NAME --zone=$ZONE --worker=0" \
        "--command='sudo journalctl --follow --unit=train --unit=google-startup-scripts'"
}

# Deletes the TPU and ends this script if the run has ended.
end_if_done() {
    local code
    code=$(gcloud storage cat "$LAUNCH/exit_code" 2> /dev/null) || return 0
    [[ $code =~ ^[0-9]+$ ]] || return 0
    log "the run ended with code $code; its directory is $WORKDIR"
    delete
    exit "$code"
}
