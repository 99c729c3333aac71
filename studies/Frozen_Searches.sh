#!/usr/bin/env bash
# The searches of the study on frozen features: for every loss and both sets of photos ten trials of the learning rate and
# at most two flags of the loss, on two folds of the training classes. A trial is judged by its last epoch. Batches have
# two images of each of the 49 classes of a fold; photos of fewer than about 200 classes need a smaller --bs.
#
#   ./studies/Frozen_Searches.sh [--list] [FLAG ...]     # --list prints the commands; the flags go to every search
#   DATA=Datasets STUDIES=Studies SETS='birds cars' ./studies/Frozen_Searches.sh
#   python -m studies.settings --studies Studies         # writes the best settings into studies/settings/frozen.txt
#
# Searches whose setting is in that file are left out, and the same command continues a search that was stopped. A search
# takes about three minutes on one thread, once the features are on disk.
source "$(dirname "${BASH_SOURCE[0]}")/frozen_lines.sh"

program=Hyperparameter_Search.py
loss() {
    for set in $sets; do
        if grep -qs "^$set $1 " "$settings"; then continue; fi
        line --study_path "${STUDIES:-Studies}/Frozen_${set}_$1" "${frozen[@]}" --source_path "$data/$set" --eval_every 15 \
            --bs 98 --samples_per_class 2 --n_folds 2 --n_trials 10 --workers 1 "${@:2}" --tune lr 0.00003 0.001 log
    done
}
losses
