#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# What to run first on a GPU: six lines of Revisit_Runs.sh and Direction_Runs.sh on CUB-200-2011 with one seed, about three
# hours (estimated). The five runs of Roth et al. count as seed 0 of Revisit_Runs.sh. See docs/reproducing.md.
#
#   ./run_scripts/First_Results.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every run
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

seeds=(0)
revisited() { every_seed "CUB_$1" --dataset cub200 --evaluate_on_gpu --project RevisitDML "${@:2}"; }

revisited Margin_b06_Distance --loss margin --batch_mining distance --loss_margin_beta 0.6
revisited Rho_Margin_b06      --batch_mining rho_distance --miner_rho_distance_cp 0.4 --loss margin --loss_margin_beta 0.6
revisited MS                  --loss multisimilarity
revisited Triplet_Distance    --loss triplet --batch_mining distance
revisited Softmax             --loss softmax --loss_softmax_lr 0.00001
every_seed CUB_DR_Triplet --dataset cub200 --arch bninception_normalize --embed_dim 64 --evaluate_on_gpu \
    --evaluation_metrics e_recall@1 e_recall@2 e_recall@4 e_recall@8 nmi map_at_r --project Direction \
    --loss dr_triplet --batch_mining all --loss_dr_triplet_margin 0.2781877469005122 --bs 128 --samples_per_class 16 \
    --lr 0.00001 --decay 0 --loss_dr_triplet_gamma 0.4919607680052035
