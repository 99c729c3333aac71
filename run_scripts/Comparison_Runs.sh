#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# The triplet loss with two miners, five seeds each, on letters rendered from fonts. To compare other methods, copy the
# script within this folder, and change its last lines; docs/result_evaluations.md shows its table.
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

run() {
    every_seed "$1" --dataset glyphs --arch conv4_normalize --not_pretrained --bs 112 --samples_per_class 4 \
        --lr 0.001 --n_epochs 4 --no_train_metrics "${@:2}"
}

run Triplet_Random   --loss triplet --batch_mining random
run Triplet_Distance --loss triplet --batch_mining distance
