#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Every algorithm of Musgrave et al., A Metric Learning Reality Check, ECCV 2020, https://arxiv.org/abs/2003.08505, with
# the published best settings: 14 algorithms on three data sets, on CUB-200-2011 also with batches of 256, four folds
# each. See docs/run_scripts.md.
#
#   ./run_scripts/Reality_Check_Runs.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every run
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

seeds=(0)
for data in CUB CARS SOP CUB256; do
    case $data in
        CUB)    recipe=cub200 ;;
        CARS)   recipe=cars196 ;;
        SOP)    recipe=online_products ;;
        CUB256) recipe=cub200_bs256 ;;
    esac
    run() {
        for fold in 0 1 2 3; do
            every_seed "${data}_$1_fold$fold" --config configs/mlrc/$recipe.yaml configs/mlrc/$recipe/$2.yaml \
                --fold $fold --evaluate_on_gpu --project RealityCheck
        done
    }

    run Contrastive     contrastive
    run Triplet         triplet
    run NTXent          ntxent
    run ProxyNCA        proxynca
    run Margin          margin
    run Margin_class    margin_class
    run Softmax         softmax
    run CosFace         cosface
    run ArcFace         arcface
    run FastAP          fastap
    run SNR_Contrastive snr_contrastive
    run MS              multisimilarity
    run MS_Miner        multisimilarity_miner
    run SoftTriple      softtriple
done
