#!/usr/bin/env bash
# The searches of the study: for eight losses, the learning rate and one or two flags of the loss are tuned on the
# classes that are not test classes, in two folds; the best setting is then trained with five new seeds. Data, network
# and batches are as in studies/Study_Runs.sh, with two thirds of its iterations. The groups have its names, so that
# studies/tables.md can compare the two protocols.
#
#   ./studies/Study_Searches.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every search
#   DATA=Datasets STUDIES=Studies ./studies/Study_Searches.sh
#
# The same command continues searches that were stopped. Launch_Runs.py does not execute this script.
source "$(dirname "${BASH_SOURCE[0]}")/../run_scripts/run_lines.sh"

program=Hyperparameter_Search.py
data=${DATA:-Datasets}
search() {
    line --study_path "${STUDIES:-Studies}/Omniglot_$1" --dataset omniglot --source_path "$data" \
        --arch conv4_normalize --not_pretrained --bs 112 --samples_per_class 4 --n_epochs 6 --iterations_per_epoch 14 \
        --no_train_metrics --kernels 0 --n_folds 2 \
        --n_trials 10 --pruner median --reproductions 5 --workers 2 --tune lr 0.0001 0.01 log "${@:2}"
}

search ArcFace              --loss arcface         --loss_arcface_lr 0.01 \
    --tune loss_arcface_angular_margin 0 1         --tune loss_arcface_feature_scale 4 64 log
search contrastive_distance --loss contrastive     --batch_mining distance \
    --tune loss_contrastive_pos_margin 0 0.6       --tune loss_contrastive_neg_margin 0.6 1.4
search margin_distance      --loss margin          --batch_mining distance \
    --tune loss_margin_margin 0.05 0.5             --tune loss_margin_beta 0.6 1.4
search MS                   --loss multisimilarity \
    --tune loss_multisimilarity_neg_weight 1 100 log --tune loss_multisimilarity_thresh 0 1
search NTXent               --loss ntxent          --tune loss_ntxent_temperature 0.01 0.5 log
search ProxyAnchor          --loss proxyanchor     --loss_proxyanchor_lrmulti 10 \
    --tune loss_proxyanchor_margin 0 0.5           --tune loss_proxyanchor_alpha 8 64 log
search Softmax              --loss softmax         --loss_softmax_lr 0.01 --tune loss_softmax_temperature 0.02 0.5 log
search triplet_distance     --loss triplet         --batch_mining distance --tune loss_triplet_margin 0.05 1 log
