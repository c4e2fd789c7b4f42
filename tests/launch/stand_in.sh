#!/bin/sh
# Stands in for gcloud, kubectl, sbatch, srun, ...: notes how it is called, with the files of $STAND_INS:
# calls, a line for each call; codes, a line for each run of train.py that is to come, with its exit
# code; bucket/, the objects of gs://; plan/, a file for each TPU that is to come, with its states.
cd "$STAND_INS" || exit 99
separator=$(printf '\037')
line=$1
name=$1
shift
for argument; do line="$line$separator$argument"; done
echo "$line" >> calls

# Prints the first line of a file, and removes it unless $2 is "last" and it is the last.
take() {
    read -r taken < "$1"
    if [ "$2" != last ] || [ "$(wc -l < "$1")" -gt 1 ]; then sed -i 1d "$1"; fi
    echo "$taken"
}

case $name in
    kubectl)
        cat > manifest.yaml
        exit
        ;;
    srun | python)
        code=$(take codes)
        [ "$code" != sleep ] || exec sleep 60
        exit "$code"
        ;;
    gcloud) ;;
    *) exit 0 ;;
esac

if [ "$1" = storage ]; then
    for place; do path=bucket/${place#gs://}; done
    if [ "$2" = cp ]; then
        cat > "$path"
    elif [ ! -e "$path" ]; then
        echo "ERROR: $place matched no objects" >&2
        exit 1
    elif [ "$2" = cat ]; then
        cat "$path"
    else
        rm "$path"
    fi
    exit
fi

# gcloud compute tpus KIND VERB NAME
case $4 in
    create)
        for next in plan/*; do break; done
        mv "$next" states
        for argument; do
            case $argument in
                --metadata-from-file=startup-script=*) cp "${argument##*=}" startup.sh ;;
            esac
        done
        exit
        ;;
esac
if [ ! -e states ]; then
    echo "ERROR: NOT_FOUND: there is none" >&2
    exit 1
elif [ "$4" = delete ]; then
    rm states
    exit
fi
echo "WARNING: gcloud says more than the state" >&2
state=$(take states last)
case $state in
    ENDS*) # the run has ended with this code
        echo "${state#ENDS }" > bucket/b/run.launch/exit_code
        echo ACTIVE
        ;;
    UNREACHABLE)
        echo "ERROR: the network is down" >&2
        exit 1
        ;;
    *) echo "$state" ;;
esac
