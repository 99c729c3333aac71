#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Frozen backbones without training: their pooled features as they are (kNN), and their principal components (PCA),
# fitted to the training classes. See docs/run_scripts.md.
#
#   ./run_scripts/Baseline_Runs.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every run
#   ARCHS='resnet50 timm:vit_small_patch16_224.dino' DATASETS='cub200 cars196' EMBED_DIM=512 ./run_scripts/Baseline_Runs.sh
source "$(dirname "${BASH_SOURCE[0]}")/run_lines.sh"

read -ra archs <<< "${ARCHS:-resnet50 bninception timm:vit_small_patch16_224 timm:vit_small_patch16_224.dino \
timm:vit_base_patch16_clip_224.openai}"
read -ra datasets <<< "${DATASETS:-cub200}"
dim=${EMBED_DIM:-128}

seeds=(0)                                 # nothing is random but the clusters of nmi and f1
for dataset in "${datasets[@]}"; do
    for arch in "${archs[@]}"; do
        run() {
            every_seed "Frozen_${arch//:/_}_$1" --dataset "$dataset" --arch "${arch}_frozen_normalize" --n_epochs 0 "${@:2}"
        }

        run kNN --eval_features --eval_normalize
        run "PCA$dim" --embed_init pca --embed_dim "$dim"
    done
done
