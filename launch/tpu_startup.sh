# shellcheck shell=bash
# Not yet run on a TPU VM: the tests run it with stand-ins for gcloud, uv and systemd-run.
#
# The start-up script of TPU VMs, which runs as root on every host at every boot. tpu_common.sh puts
# assignments before it: WORKDIR; LAUNCH, where the bucket has the code and gets the exit code; EXTRAS
# of pyproject.toml; ENVIRONMENT and ARGUMENTS of train.py.
set -euo pipefail
: "${WORKDIR:?}" "${LAUNCH:?}" "${EXTRAS:?}" "${ENVIRONMENT?}" "${ARGUMENTS:?}"
: "${CHECKOUT:=/opt/backbone}"
export HOME=${HOME:-/root}

if gcloud storage cat "$LAUNCH/exit_code" 2> /dev/null; then
    exit 0  # a reboot after the end of the run
fi

# Also if the installation fails: launch/tpu_*.sh then delete the VM. 75 and 143: the run was
# stopped by a signal, because the VM goes down, and will resume.
record_end() {
    local code=$?
    ((code == 75 || code == 143)) || echo "$code" | gcloud storage cp - "$LAUNCH/exit_code"
}
trap record_end EXIT

mkdir -p "$CHECKOUT"
cd "$CHECKOUT"
if [[ ! -e .installed ]]; then
    gcloud storage cat "$LAUNCH/source.tar.gz" | tar -xz
    # The image may have an older Python; uv then fetches one.
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet uv
    python3 -m uv venv --quiet --clear --python '>=3.11' .venv
    python3 -m uv pip install --quiet --python .venv/bin/python -e ".[$EXTRAS]"
    touch .installed
fi

# As a unit of systemd, the run gets SIGTERM when the VM is preempted or shut down, while the
# network is still there, and has time to save. KillMode=mixed: restart.sh passes the signal on.
read -ra variables <<< "HOME=$HOME PATH=$PATH $ENVIRONMENT"
systemd-run --unit=train --wait --collect \
    --property=After=network-online.target --property=KillMode=mixed \
    --property=TimeoutStopSec=120 --property=LimitMEMLOCK=infinity \
    --working-directory="$CHECKOUT" "${variables[@]/#/--setenv=}" \
    "$CHECKOUT/launch/restart.sh" .venv/bin/python train.py --workdir="$WORKDIR" "${ARGUMENTS[@]}"
