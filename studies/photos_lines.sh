# What the scripts of the study on photos share: the folders of photos, and which runs have no row yet.
#
# DATA has a folder for each name in SETS, with one folder per class below images/. The rows of finished runs are in the
# folder ROWS: they are left out, so that a new machine continues where another one stopped; ROWS=none leaves out nothing.
source "$(dirname "${BASH_SOURCE[0]}")/../run_scripts/run_lines.sh"

data=${DATA:-Datasets}
sets=${SETS:-birds cars}
rows=${ROWS:-$(dirname "${BASH_SOURCE[0]}")/rows}
n_known=0
case $sets in *_*) echo "SETS='$sets': a name in it must have no _, which separates the parts of a group" >&2; exit 2 ;; esac

# missing FILE GROUP FLAG...: a run of each of `seeds` that has no row in FILE.
missing() {
    local file=$rows/$1 all=("${seeds[@]}") seeds=() seed
    shift
    for seed in "${all[@]}"; do
        if grep -qs "^[^,]*,$1,$seed," "$file"; then n_known=$((n_known + 1)); else seeds+=("$seed"); fi
    done
    [ ${#seeds[@]} -eq 0 ] || every_seed "$@"
}
say_known() {
    if [ $n_known -gt 0 ]; then echo "$n_known runs have a row in $rows and are left out; ROWS=none repeats them" >&2; fi
}
