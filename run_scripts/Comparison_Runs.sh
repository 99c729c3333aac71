#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# The triplet loss with two miners, five seeds each, on letters rendered from fonts. To compare other methods, copy the
# script and change its last lines; docs/result_evaluations.md shows its table.
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

run() {
    every_seed "Triplet_$1" --dataset glyphs --arch conv4_normalize --not_pretrained --bs 112 --samples_per_class 4 \
        --lr 0.001 --n_epochs 4 --no_train_metrics "${@:2}"
}

run Random   --loss triplet --batch_mining random
run Distance --loss triplet --batch_mining distance
