#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Three methods in a few minutes, on letters rendered from fonts: make regress compares versions of the code by them.
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

seeds=(0 1 2)
run() {
    every_seed "$1" --dataset glyphs --arch conv4_normalize --not_pretrained --bs 112 --samples_per_class 4 \
        --lr 0.001 --n_epochs 3 --no_train_metrics --pictures none --evaluation_metrics e_recall@1 map_at_r nmi "${@:2}"
}

run Glyphs_MS               --loss multisimilarity
run Glyphs_NTXent           --loss ntxent
run Glyphs_triplet_distance --loss triplet --batch_mining distance
