#!/usr/bin/env bash
# The tests run this script on a CPU; it has not yet restarted a run on a TPU or a GPU.
#
#   launch/restart.sh python train.py --config=configs/x.py --workdir=gs://BUCKET/run
#
# Runs a command, and runs it again when it ends early, until it is done. A run resumes from its
# last checkpoint, so repeating the command is all that a restart needs. The exit codes are those of
# docs/reliability.md. SIGTERM and Ctrl-C are passed on to the command, which saves and ends; this
# script then ends with its code.
set -u

: "${MAX_RESTARTS:=10}"     # give up after so many early ends in a row ...
: "${RESET_SECONDS:=600}"   # ... of runs that lasted less than this; a longer run resets the count
: "${RESTART_SECONDS:=10}"  # the pause before a restart

if (($# == 0)); then
    echo "usage: launch/restart.sh COMMAND [ARGUMENT ...]" >&2
    exit 2
fi

log() { echo "restart.sh: $*" >&2; }

child='' is_stopped='' is_interrupted=''

pass_on() {
    is_stopped=yes is_interrupted=yes
    [[ -z $child ]] || kill -s "$1" "$child" 2> /dev/null
}
trap 'pass_on TERM' TERM HUP
trap 'pass_on INT' INT

# Runs a command and sets `code` to its exit code; ends the script if it was told to stop.
run() {
    "$@" &
    child=$!
    [[ -z $is_stopped ]] || kill "$child" 2> /dev/null  # the signal came before the child
    code=127
    local found
    while true; do
        # A signal ends bash's wait early, with a code of its own; 127 then says that the child's
        # code was already returned.
        is_interrupted=''
        wait "$child"
        found=$?
        ((found == 127)) || code=$found
        [[ -n $is_interrupted && $found != 127 ]] || break
    done
    child=''
    [[ -z $is_stopped ]] || exit "$code"
}

# Gives the command a process group of its own, in which Ctrl-C is not ignored.
set -m

early_ends=0
while true; do
    begun=$SECONDS
    run "$@"
    case $code in
        0) exit 0 ;;
        2 | 65 | 69 | 126 | 127 | 130)
            # Bad input, divergence, out of memory, no such command, Ctrl-C: it would end the same
            # way again, or is not wanted.
            log "ended with code $code, which a restart does not mend"
            exit "$code"
            ;;
        75) ;;  # stopped and saved, such as by a signal to another process of the job
        *)
            ((SECONDS - begun < RESET_SECONDS)) || early_ends=0
            early_ends=$((early_ends + 1))
            if ((early_ends > MAX_RESTARTS)); then
                log "ended with code $code; gave up after $MAX_RESTARTS restarts in a row"
                exit "$code"
            fi
            ;;
    esac
    log "ended with code $code; starting again in $RESTART_SECONDS s"
    run sleep "$RESTART_SECONDS"
done
