#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# Losses and a miner of this program, and those of pytorch-metric-learning (pml) with the same arguments and learning
# rates: paired runs that train an embedding layer on the features of a frozen MobileNetV2, of grocery photos.
# docs/comparison.md has the results.
#
#   ./studies/Equality_Runs.sh [--list] [FLAG ...]       # --list prints the commands; the flags go to every run
#   DATA=Datasets SECTIONS='same random starts long' SEEDS='0 1 2' ./studies/Equality_Runs.sh
#
# same: losses for which both sides have the same random numbers. random: losses and a miner for which they have not.
# starts: losses with class weights or proxies, at other learning rates of these; long: with 25 epochs instead of 5.
# DATA has the folder grocery/images (docs/data.md), and mobilenet_v2_imagenet.pth. A run takes 7 to 10 seconds on one
# thread, most of it for the features, which are those of all runs.
source "$(dirname "${BASH_SOURCE[0]}")/../run_scripts/run_lines.sh"

data=${DATA:-Datasets}
sections=${SECTIONS:-same random starts long}
read -ra all_seeds <<< "${SEEDS:-$(seq -s ' ' 0 59)}"
lr=0.0004                                                # of the embedding layer

# in_section SECTION N: returns whether the section is selected, and sets `seeds` to the first N seeds.
in_section() {
    seeds=("${all_seeds[@]:0:$2}")
    [[ " $sections " == *" $1 "* ]]
}

# ours NAME FLAG... and pml NAME FLAG...: the runs Equality_<NAME>_ours and Equality_<NAME>_pml.
embedding_layer() {
    every_seed "Equality_$1" --dataset folder --source_path "$data/grocery" --arch mobilenet_v2_frozen_normalize \
        --weights "$data/mobilenet_v2_imagenet.pth" --input_mean 0.5 --input_std 0.5 --input_size 64 \
        --freeze backbone --augmentation none --bs 80 --samples_per_class 4 --lr $lr --n_epochs 5 --eval_every 5 \
        --no_train_metrics --pictures none --kernels 0 \
        --evaluation_metrics e_recall@1 map_at_r "${@:2}"
}
ours() { embedding_layer "$1_ours" "${@:2}"; }
pml() { embedding_layer "$1_pml" "${@:2}"; }
multiple() { awk "BEGIN { print $1 / $lr }"; }           # --loss_<loss>_lrmulti of a learning rate

plain='normalize_embeddings: false'
mean='reducer: {MeanReducer: {}}'
angle='margin: 28.64788975654116'                        # 0.5, in degrees
triplets="{margin: 0.2, distance: {LpDistance: {power: 2, $plain}}, $mean}"
regularizer='weight_regularizer: {SparseCentersRegularizer: {num_classes: 40, centers_per_class: 2}}'

# of_ours SUFFIX RATE, of_pml SUFFIX RATE and proxies SUFFIX RATE: the losses with class weights or proxies, at this
# learning rate of these.
of_ours() {
    ours arcface$1           --loss arcface           --loss_arcface_lr $2
    ours cosface$1           --loss cosface           --loss_cosface_lr $2
    ours softmax$1           --loss softmax           --loss_softmax_lr $2
    ours subcenter_arcface$1 --loss subcenter_arcface --loss_subcenter_arcface_lr $2
    ours softtriplet$1       --loss softtriplet       --loss_softtriplet_lrmulti "$(multiple $2)"
}
of_pml() {
    # with a miner, the library would weight samples by their number of tuples
    local flags=(--batch_mining none --loss_pml_lr $2)
    pml arcface$1            --loss pml:ArcFaceLoss "${flags[@]}" --loss_pml_args "{$angle, scale: 16}"
    pml cosface$1            --loss pml:CosFaceLoss "${flags[@]}" --loss_pml_args '{margin: 0.35, scale: 64}'
    pml softmax$1            --loss pml:NormalizedSoftmaxLoss "${flags[@]}" --loss_pml_args '{temperature: 0.05}'
    pml subcenter_arcface$1  --loss pml:SubCenterArcFaceLoss "${flags[@]}" \
        --loss_pml_args "{$angle, scale: 64, sub_centers: 3}"
}
proxies() {
    ours proxyanchor$1       --loss proxyanchor       --loss_proxyanchor_lrmulti "$(multiple $2)"
    ours proxynca_pp$1       --loss proxynca_pp       --loss_proxynca_pp_lrmulti "$(multiple $2)"
    pml proxynca_pp$1        --loss pml:ProxyNCALoss  --batch_mining none --loss_pml_lr $2 \
        --loss_pml_args '{softmax_scale: 9}'
}

if in_section same 30; then
    ours contrastive         --loss contrastive --batch_mining distance
    pml contrastive          --loss pml:ContrastiveLoss --batch_mining distance \
        --loss_pml_args "{pos_margin: 0, neg_margin: 1, distance: {LpDistance: {$plain}}, $mean}"
    ours multisimilarity     --loss multisimilarity
    pml multisimilarity      --loss pml:MultiSimilarityLoss --loss_pml_args '{alpha: 2, beta: 40, base: 0.5}' \
        --batch_mining pml:MultiSimilarityMiner --miner_pml_args '{epsilon: 0.1}'
    ours ntxent              --loss ntxent
    pml ntxent               --loss pml:NTXentLoss --batch_mining none --loss_pml_args '{temperature: 0.07}'
    proxies '' 0.01
    pml proxyanchor          --loss pml:ProxyAnchorLoss --batch_mining none --loss_pml_lr 0.01 \
        --loss_pml_args '{margin: 0.1, alpha: 32}'
    ours proxynca_pp_slow    --loss proxynca_pp --loss_proxynca_pp_lrmulti "$(multiple 0.00125)"      # as below
    # with the default miner of --batch_mining, whose triplets select pairs or weight samples
    pml multisimilarity_mined --loss pml:MultiSimilarityLoss --loss_pml_args '{alpha: 2, beta: 40, base: 0.5}'
    pml ntxent_mined         --loss pml:NTXentLoss --loss_pml_args '{temperature: 0.07}'
    pml arcface_mined        --loss pml:ArcFaceLoss --loss_pml_args "{$angle, scale: 16}" --loss_pml_lr 0.01
fi

if in_section random 60; then
    # the miner alone differs: our loss with each miner, which take several positives per anchor and cut no distance off
    ours triplet             --loss triplet --batch_mining distance --miner_distance_positives all
    pml triplet              --loss triplet --batch_mining pml:DistanceWeightedMiner \
        --miner_pml_args '{nonzero_loss_cutoff: 2}'
    # both differ, and the miners have the defaults of each side
    ours triplet_defaults    --loss triplet --batch_mining distance
    pml triplet_defaults     --loss pml:TripletMarginLoss --loss_pml_args "$triplets" \
        --batch_mining pml:DistanceWeightedMiner
    of_ours '' 0.01
    of_pml '' 0.01
    pml softtriplet          --loss pml:SoftTripleLoss --batch_mining none --loss_pml_lr 0.01 \
        --loss_pml_args "{centers_per_class: 2, la: 8, $regularizer, weight_reg_weight: 0.2}"
    # the learning rate at which Adam turns our class weights as fast as pml's at 0.01: 0.01 times the standard
    # deviation at the start, (3 · 128)^(-1/2) or 1/8; pml's is 1
    ours arcface_slow           --loss arcface           --loss_arcface_lr 0.00051031
    ours cosface_slow           --loss cosface           --loss_cosface_lr 0.00051031
    ours softmax_slow           --loss softmax           --loss_softmax_lr 0.00051031
    ours subcenter_arcface_slow --loss subcenter_arcface --loss_subcenter_arcface_lr 0.00051031
fi

if in_section starts 10; then
    for rate in 0.0001 0.001 0.1; do
        of_ours _$rate $rate
        of_pml _$rate $rate
        proxies _$rate $rate
    done
fi

if in_section long 10; then
    for rate in 0.0001 0.001 0.01; do
        flags=(--n_epochs 25 --eval_every 25)
        ours arcface_long_$rate --loss arcface --loss_arcface_lr $rate "${flags[@]}"
        pml arcface_long_$rate  --loss pml:ArcFaceLoss --loss_pml_args "{$angle, scale: 16}" --loss_pml_lr $rate \
            --batch_mining none "${flags[@]}"
        ours softmax_long_$rate --loss softmax --loss_softmax_lr $rate "${flags[@]}"
        pml softmax_long_$rate  --loss pml:NormalizedSoftmaxLoss --loss_pml_args '{temperature: 0.05}' \
            --loss_pml_lr $rate --batch_mining none "${flags[@]}"
    done
fi
