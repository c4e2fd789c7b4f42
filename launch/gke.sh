#!/usr/bin/env bash
# Not yet run on GKE: the tests check what this script applies against the schema of JobSet.
#
#   NAME=run IMAGE=REGION-docker.pkg.dev/PROJECT/REPOSITORY/backbone TPU=tpu-v5-lite-podslice \
#       TOPOLOGY=4x4 WORKDIR=gs://BUCKET/run launch/gke.sh --config=configs/x.py
#
# Trains on a TPU slice of a node pool, as a JobSet (jobset.sigs.k8s.io), which must be installed in
# the cluster of kubectl. If a pod fails or is preempted, JobSet starts all again, and the run
# resumes from the bucket. IMAGE is built from the Dockerfile with EXTRAS=gcs,tpu. PRINT=1 only
# prints the manifest.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=launch/common.sh
source launch/common.sh

: "${CHIPS_PER_HOST:=4}"           # 8 in the one-host node pools of v5e and v6e with topology 2x4
: "${SERVICE_ACCOUNT:=default}"    # of Kubernetes; it may write to the bucket
: "${MAX_RESTARTS:=100}"

require NAME IMAGE TPU TOPOLOGY WORKDIR -- "$@"
if [[ ! $TOPOLOGY =~ ^[0-9]+x[0-9]+(x[0-9]+)?$ ]]; then
    log "TOPOLOGY=$TOPOLOGY must be that of the node pool, such as 4x4 or 2x2x4"
    exit 2
fi
chips=$((${TOPOLOGY//x/*}))
((CHIPS_PER_HOST <= chips)) || CHIPS_PER_HOST=$chips
if ((chips % CHIPS_PER_HOST)); then
    log "TOPOLOGY=$TOPOLOGY has $chips chips, no multiple of CHIPS_PER_HOST=$CHIPS_PER_HOST"
    exit 2
fi
hosts=$((chips / CHIPS_PER_HOST))

# Text as a string of JSON, which is YAML as well. Kubernetes replaces $(NAME), but not $$(NAME).
quoted() {
    local text=${1//\\/\\\\}
    text=${text//\$(/\$\$(}
    printf '"%s"' "${text//\"/\\\"}"
}

manifest() {
    cat << MANIFEST
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $(quoted "$NAME")
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: $MAX_RESTARTS
    rules:
      - name: ends-again-in-the-same-way
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: 1
      template:
        spec:
          completions: $hosts
          parallelism: $hosts
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              # After these codes, launch/restart.sh does not start again either.
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values: [2, 65, 69, 126, 127, 130]
          template:
            spec:
              restartPolicy: Never
              serviceAccountName: $(quoted "$SERVICE_ACCOUNT")
              terminationGracePeriodSeconds: 120  # to save, after SIGTERM
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $(quoted "$TPU")
                cloud.google.com/gke-tpu-topology: $(quoted "$TOPOLOGY")
              tolerations:
                - {key: cloud.google.com/gke-spot, operator: Exists, effect: NoSchedule}
              containers:
                - name: train
                  image: $(quoted "$IMAGE")
                  # The TPU's devices belong to root, and libtpu locks memory.
                  securityContext: {privileged: true, runAsUser: 0}
                  args:
                    - python
                    - train.py
                    - $(quoted "--workdir=$WORKDIR")
$(for argument; do printf '                    - %s\n' "$(quoted "$argument")"; done)
                  resources:
                    requests: {google.com/tpu: $CHIPS_PER_HOST}
                    limits: {google.com/tpu: $CHIPS_PER_HOST}
MANIFEST
}

if [[ -n ${PRINT:-} ]]; then
    manifest "$@"
else
    manifest "$@" | kubectl apply --filename=-
    log "the log: kubectl logs --follow --selector=jobset.sigs.k8s.io/jobset-name=$NAME"
fi
