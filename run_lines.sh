# What the run scripts share, sourced by them: `line` runs `python main.py ...`, or prints it where the script was
# started with --list. Its other arguments are flags for every run: bash Revisit_Runs.sh --source_path Datasets
set -euo pipefail

list=no
if [ "${1:-}" = --list ]; then
    list=yes
    shift
fi
flags_for_every_run=("$@")

# A run that fails (exit code 1, as with a loss that is not finite) does not keep the others; what the user must change
# (2) or has interrupted (130) ends the script. Launch_Runs.py does the same in parallel, and skips what is finished.
line() {
    local command=(python main.py "$@" ${flags_for_every_run[@]+"${flags_for_every_run[@]}"})
    if [ $list = yes ]; then
        local quoted
        printf -v quoted '%q ' "${command[@]}"
        echo "${quoted% }"
        return
    fi
    echo "+ ${command[*]}"
    local code=0
    "${command[@]}" || code=$?
    if [ $code -gt 1 ]; then exit $code; fi
}

# every_seed GROUP FLAG...: the setting GROUP with each of the seeds.
seeds=(0 1 2 3 4)
every_seed() {
    local group=$1 seed
    shift
    for seed in "${seeds[@]}"; do
        line "$@" --group "$group" --seed "$seed"
    done
}
