#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Every run of Roth et al., Revisiting Training Strategies and Generalization Performance in Deep Metric Learning, ICML
# 2020, https://arxiv.org/abs/2002.08473: the baselines, and runs with the regularisation of the miner rho_distance.
# All flags that are not set here have the defaults of parameters.py. See docs/run_scripts.md.
#
#   ./Revisit_Runs.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every run
source "$(dirname "${BASH_SOURCE[0]}")/run_scripts/run_lines.sh"

for data in CUB CARS SOP; do
    case $data in
        CUB)  flags=(--dataset cub200) nbins=65 softmax_lr=0.00001 p=(0.4 0.4 0.35 0.4 0.3) ;;
        CARS) flags=(--dataset cars196) nbins=65 softmax_lr=0.00001 p=(0.35 0.35 0.35 0.35 0.35) ;;
        SOP)  flags=(--dataset online_products --n_epochs 100) nbins=11 softmax_lr=0.002 p=(0.15 0.15 0.15 0.15 0.15) ;;
    esac
    run() { every_seed "${data}_$1" "${flags[@]}" --evaluate_on_gpu --project RevisitDML "${@:2}"; }
    regularised() { run "Rho_$1" --batch_mining rho_distance --miner_rho_distance_cp "${@:2}"; }

    run Npair                --loss npair           --batch_mining npair    --arch resnet50_frozen
    run GenLifted            --loss lifted          --batch_mining lifted   --arch resnet50_frozen
    if [ $data != SOP ]; then
        run ProxyNCA         --loss proxynca
        run SoftTriple       --loss softtriplet
    fi
    run Histogram            --loss histogram       --loss_histogram_nbins $nbins
    run Contrastive_Distance --loss contrastive     --batch_mining distance
    run Angular              --loss angular         --batch_mining npair    --arch resnet50_frozen
    run ArcFace              --loss arcface
    run Triplet_Random       --loss triplet         --batch_mining random
    run Triplet_Semihard     --loss triplet         --batch_mining semihard
    run Triplet_Softhard     --loss triplet         --batch_mining softhard
    run Triplet_Distance     --loss triplet         --batch_mining distance
    run Quadruplet_Distance  --loss quadruplet      --batch_mining distance
    run Margin_b06_Distance  --loss margin          --batch_mining distance --loss_margin_beta 0.6
    run Margin_b12_Distance  --loss margin          --batch_mining distance --loss_margin_beta 1.2
    run SNR_Distance         --loss snr             --batch_mining distance
    run MS                   --loss multisimilarity
    run Softmax              --loss softmax         --loss_softmax_lr $softmax_lr

    regularised Contrastive ${p[0]} --loss contrastive
    regularised Margin_b06  ${p[1]} --loss margin --loss_margin_beta 0.6
    regularised Margin_b12  ${p[2]} --loss margin --loss_margin_beta 1.2
    regularised Triplet     ${p[3]} --loss triplet
    regularised SNR         ${p[4]} --loss snr
done
