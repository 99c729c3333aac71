#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Six losses with three seeds each on Omniglot, small enough for a CPU: an example of a run script, and the runs behind
# the plots in docs/result_evaluations.md.
#
#   ./run_scripts/Omniglot_Runs.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every run
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

seeds=(0 1 2)
run() {
    every_seed "Omniglot_$1" --dataset omniglot --arch conv4_normalize --not_pretrained --bs 112 --samples_per_class 4 \
        --lr 0.001 --n_epochs 10 --no_train_metrics "${@:2}"
}

run Contrastive_Distance --loss contrastive --batch_mining distance
run Margin_b06_Distance  --loss margin      --batch_mining distance --loss_margin_beta 0.6
run MS                   --loss multisimilarity
run ProxyAnchor          --loss proxyanchor
run Softmax              --loss softmax     --loss_softmax_lr 0.01
run Triplet_Semihard     --loss triplet     --batch_mining semihard
