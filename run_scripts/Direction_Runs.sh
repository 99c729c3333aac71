#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# DR-Triplet, DR-ProxyNCA and DR-MS of Mohan et al., Moving in the Right Direction, CVPR 2020, each with direction
# regularisation and without it (gamma 0), in the settings of the public reproduction. See docs/run_scripts.md.
#
#   ./run_scripts/Direction_Runs.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every run
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

for data in CUB CARS InShop; do
    case $data in
        CUB)    dataset=cub200 ;;
        CARS)   dataset=cars196 ;;
        InShop) dataset=inshop ;;
    esac
    run() {
        every_seed "${data}_$1" --dataset $dataset --arch bninception_normalize --embed_dim 64 --evaluate_on_gpu \
            --evaluation_metrics e_recall@1 e_recall@2 e_recall@4 e_recall@8 nmi map_at_r --project Direction "${@:2}"
    }
    triplet=(--loss dr_triplet --batch_mining all --loss_dr_triplet_margin 0.2781877469005122
             --bs 128 --samples_per_class 16 --lr 0.00001 --decay 0)
    proxynca=(--loss dr_proxynca --loss_dr_proxynca_lrmulti 1 --bs 144 --samples_per_class 12 --lr 0.00001 --decay 0)
    ms=(--loss dr_multisimilarity --loss_dr_multisimilarity_pos_weight 2 --loss_dr_multisimilarity_neg_weight 50
        --loss_dr_multisimilarity_thresh 0.6 --bs 80 --samples_per_class 5 --lr 0.00003 --decay 0.005)

    run Triplet     "${triplet[@]}"  --loss_dr_triplet_gamma 0
    run DR_Triplet  "${triplet[@]}"  --loss_dr_triplet_gamma 0.4919607680052035
    run ProxyNCA    "${proxynca[@]}" --loss_dr_proxynca_gamma 0
    run DR_ProxyNCA "${proxynca[@]}" --loss_dr_proxynca_gamma 0.3
    run MS          "${ms[@]}"       --loss_dr_multisimilarity_gamma 0
    run DR_MS       "${ms[@]}"       --loss_dr_multisimilarity_gamma 0.28
done
