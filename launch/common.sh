# shellcheck shell=bash
# Not yet run on a cluster or in a cloud: what the scripts beside it share. The tests run them all.

log() { echo "${0##*/}: $*" >&2; }

# Ends the script unless all named variables are set and there are arguments for train.py.
# Usage: require NAME ... -- "$@"
require() {
    local missing=() problems=()
    while [[ $1 != -- ]]; do
        [[ -n ${!1:-} ]] || missing+=("$1")
        shift
    done
    shift
    ((${#missing[@]} == 0)) || problems+=("set ${missing[*]} in the environment")
    (($# > 0)) || problems+=("give the arguments of train.py, such as --config=configs/x.py")
    [[ " $*" != *" --workdir"* ]] || problems+=("set WORKDIR in place of --workdir")
    ((${#problems[@]} > 0)) || return 0
    printf '%s\n' "${problems[@]}" "an example is at the top of $0" >&2
    exit 2
}
