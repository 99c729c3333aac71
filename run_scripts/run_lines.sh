# Shared functions of the run scripts, which source this file. `line` runs `python main.py ...`, or another `program`, or
# prints the command if the script was started with --list. All other arguments of a script are flags that are added to
# every run: ./Revisit_Runs.sh --source_path Datasets
set -euo pipefail

list=no
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi
flags_for_every_run=("$@")

# After a run that failed (exit code 1, for example because the loss is not finite), the script continues with the next
# run. A user error (2) or Ctrl-C (130) ends the script. Launch_Runs.py does the same in parallel and skips finished runs.
program=main.py
line() {
    set -- python $program "$@" ${flags_for_every_run[@]+"${flags_for_every_run[@]}"}
    if [ $list = yes ]; then
        local quoted
        printf -v quoted '%q ' "$@"
        echo "${quoted% }"
        return
    fi
    local command=() code=0
    while [ $# -gt 0 ]; do
        case $1 in                        # a key goes into the environment, since arguments are printed and seen by ps
            --wandb_key) export WANDB_API_KEY=${2:?--wandb_key expects a key}; shift ;;
            --wandb_key=*) export WANDB_API_KEY=${1#*=} ;;
            *) command+=("$1") ;;
        esac
        shift
    done
    echo "+ ${command[*]}"
    "${command[@]}" || code=$?
    if [ $code -gt 1 ]; then exit $code; fi
}

# every_seed GROUP FLAG...: one run of the setting GROUP for each seed.
seeds=(0 1 2 3 4)
every_seed() {
    local group=$1 seed
    shift
    for seed in "${seeds[@]}"; do
        line "$@" --group "$group" --seed "$seed"
    done
}
