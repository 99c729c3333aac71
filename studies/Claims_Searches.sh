#!/usr/bin/env bash
# The searches of the claims: the settings of the controls, and then grids of gamma and of rho's probability, on the
# classes that are not test classes. Half A tests the second half of the classes of Omniglot, half B the first half, so
# that a setting has never seen the test classes of its half. As in Musgrave et al. (2020), only settings of the loss are
# tuned; the network's learning rate is the same for all. docs/results.md has the order of all steps.
#
#   ./studies/Claims_Searches.sh [--list] [FLAG ...]      # --list prints the commands; the flags are added to every search
#   DATA=Datasets STUDIES=Studies HALVES='A B' SECTIONS='controls grids' ./studies/Claims_Searches.sh
#
# grids needs studies/settings/best.txt (python -m studies.settings best); again repeats two of the searches with another
# seed. The same command continues searches that were stopped. A trial takes about 7 seconds on two cores, each fold on one: 16 trials of 10 losses and two halves, 40 minutes.
source "$(dirname "${BASH_SOURCE[0]}")/../run_scripts/run_lines.sh"
source "$(dirname "${BASH_SOURCE[0]}")/claims_lines.sh"

program=Hyperparameter_Search.py
sections=${SECTIONS:-controls}
search() {                                               # search NAME FLAG...: half of the classes trains for 120 batches
    line --study_path "${STUDIES:-Studies}/Claims_Omniglot_${half}_$1" "${omniglot[@]}" --iterations_per_epoch 24 \
        --n_folds 2 --workers 2 --n_epochs 5 --tau 3 "${@:2}"
}
control() { search "$1" "${@:2}" --n_trials 16 --pruner median; }
grid() {                                                 # grid NAME CONTROL FLAG...: five values, 0 among them
    local tuned
    tuned=$(setting best "$half" "$2")
    search "$1" "${@:3}" ${tuned//loss_$2_/loss_${4}_} --sampler grid --pruner none --n_trials 5
}

tuned_contrastive=("${contrastive[@]}" --tune loss_contrastive_neg_margin 0.6 1.4 --tune loss_contrastive_pos_margin 0 0.6)
tuned_multisimilarity=("${multisimilarity[@]}" --tune loss_multisimilarity_neg_weight 1 100 log
    --tune loss_multisimilarity_thresh 0 1)
for half in ${HALVES:-A B}; do
    half_of $half
    if [[ " $sections " == *' controls '* ]]; then
        control contrastive     "${tuned_contrastive[@]}"
        control triplet         "${triplet[@]}"         --tune loss_triplet_margin 0.05 1 log
        control margin          "${margin[@]}"          --tune loss_margin_margin 0.05 0.5 --tune loss_margin_beta 0.6 1.4
        control snr             "${snr[@]}"             --tune loss_snr_margin 0.05 1 log
        control ntxent          "${ntxent[@]}"          --tune loss_ntxent_temperature 0.01 0.5 log
        control multisimilarity "${tuned_multisimilarity[@]}"
        control proxyanchor     "${proxyanchor[@]}"     --tune loss_proxyanchor_margin 0 0.5 \
            --tune loss_proxyanchor_alpha 8 64 log
        control arcface         "${arcface[@]}"         --tune loss_arcface_angular_margin 0 1 \
            --tune loss_arcface_feature_scale 4 64 log
        control dr_triplet      "${dr_triplet[@]}"      --loss_dr_triplet_gamma 0 --tune loss_dr_triplet_margin 0.05 1 log
        control dr_proxynca     "${dr_proxynca[@]}"     --loss_dr_proxynca_gamma 0 \
            --tune loss_dr_proxynca_lrmulti 0.3 30 log
    fi
    if [[ " $sections " == *' again '* ]]; then
        control contrastive_again     "${tuned_contrastive[@]}"     --seed 1
        control multisimilarity_again "${tuned_multisimilarity[@]}" --seed 1
    fi
    if [[ " $sections " == *' grids '* ]]; then
        for loss in contrastive triplet margin snr; do
            grid ${loss}_rho $loss --loss $loss --batch_mining rho_distance --tune miner_rho_distance_cp 0,0.05,0.1,0.2,0.35
        done
        for loss in dr_triplet dr_proxynca dr_multisimilarity; do
            flags="$loss[@]"
            grid ${loss}_gamma ${loss/dr_multi/multi} "${!flags}" --tune loss_${loss}_gamma 0,0.1,0.2,0.3,0.5
        done
    fi
done
