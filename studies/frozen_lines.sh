# What Frozen_Searches.sh and Frozen_Runs.sh share: data and network, and every loss that needs embeddings and labels
# only, with the flags that its search tunes. Not here: happier needs super-classes and s2sd larger embeddings; antico,
# center, hier and tcm are terms beside another loss.
source "$(dirname "${BASH_SOURCE[0]}")/photos_lines.sh"

settings=$(dirname "${BASH_SOURCE[0]}")/settings/frozen.txt           # lines 'SET LOSS FLAG...'
frozen=(--dataset folder --arch efficientnet_lite0_frozen_normalize --freeze backbone --augmentation none
    --input_size 112 --eval_fit stretch --n_epochs 15 --check_untrained_accuracy false --no_train_metrics --kernels 0
    --pictures none)
raw=(--arch efficientnet_lite0_frozen)                                # for losses of embeddings without normalisation

# losses: calls loss NAME FLAG... --tune FLAG LOW HIGH ... for each of them.
losses() {
    loss Angular          --loss angular --batch_mining npair "${raw[@]}" --tune loss_angular_alpha 25 60
    loss ArcFace          --loss arcface \
        --tune loss_arcface_angular_margin 0 1 --tune loss_arcface_feature_scale 4 64 log
    loss Circle           --loss circle --tune loss_circle_margin 0.1 0.6 --tune loss_circle_gamma 16 256 log
    loss Contextual       --loss contextual --tune loss_contextual_context_weight 0.1 0.9
    loss Contrastive      --loss contrastive --batch_mining distance \
        --tune loss_contrastive_pos_margin 0 0.6 --tune loss_contrastive_neg_margin 0.6 1.4
    loss CosFace          --loss cosface --tune loss_cosface_margin 0 0.6 --tune loss_cosface_scale 8 128 log
    loss DCL              --loss dcl --tune loss_dcl_temperature 0.02 0.5 log
    loss DR_MS            --loss dr_multisimilarity \
        --tune loss_dr_multisimilarity_gamma 0 0.5 --tune loss_dr_multisimilarity_neg_weight 1 100 log
    loss DR_ProxyNCA      --loss dr_proxynca --tune loss_dr_proxynca_gamma 0 0.5
    loss DR_Triplet       --loss dr_triplet --batch_mining distance \
        --tune loss_dr_triplet_gamma 0 0.5 --tune loss_dr_triplet_margin 0.05 1 log
    loss DynamicArcFace   --loss dynamic_arcface --tune loss_dynamic_arcface_feature_scale 8 128 log
    loss FastAP           --loss fastap --tune loss_fastap_nbins 5 50 int
    loss Histogram        --loss histogram --tune loss_histogram_nbins 17 129 int
    loss Hyperbolic       --loss hyperbolic --tune loss_hyperbolic_temperature 0.02 0.5 log
    loss LDAM             --loss ldam --tune loss_ldam_max_margin 0 1 --tune loss_ldam_scale 4 64 log
    loss Lifted           --loss lifted --batch_mining lifted "${raw[@]}" --tune loss_lifted_neg_margin 0.5 2
    loss LiftedStructure  --loss liftedstructure "${raw[@]}" --tune loss_liftedstructure_neg_margin 0.5 2
    loss LinearClassifier --loss linear_classifier --tune loss_linear_classifier_lr 0.00001 0.01 log
    loss Margin           --loss margin --batch_mining distance \
        --tune loss_margin_margin 0.05 0.5 --tune loss_margin_beta 0.6 1.4
    loss MFCont           --loss mfcont --tune loss_mfcont_pos_margin 0 0.2 --tune loss_mfcont_neg_margin 0.1 0.6
    loss MFCWMS           --loss mfcwms --tune loss_mfcwms_margin 0.5 1 --tune loss_mfcwms_beta 20 160 log
    loss MS               --loss multisimilarity \
        --tune loss_multisimilarity_neg_weight 1 100 log --tune loss_multisimilarity_thresh 0 1
    loss NIR              --loss nir --tune loss_nir_w_align 0.001 0.1 log
    loss Npair            --loss npair --batch_mining npair "${raw[@]}" --tune loss_npair_l2 0.0005 0.05 log
    loss NTXent           --loss ntxent --tune loss_ntxent_temperature 0.01 0.5 log
    loss OProxy           --loss oproxy --tune loss_oproxy_pos_alpha 8 64 log --tune loss_oproxy_neg_alpha 8 64 log
    loss PFML             --loss pfml --tune loss_pfml_alpha 1 8 --tune loss_pfml_delta 0.05 0.5 log
    loss ProxyAnchor      --loss proxyanchor \
        --tune loss_proxyanchor_margin 0 0.5 --tune loss_proxyanchor_alpha 8 64 log
    loss ProxyNCA         --loss proxynca --tune loss_proxynca_scale 1 20 log
    loss ProxyNCApp       --loss proxynca_pp --tune loss_proxynca_pp_scale 1 20 log
    loss Quadruplet       --loss quadruplet --batch_mining distance \
        --tune loss_quadruplet_margin_alpha_1 0.05 1 log --tune loss_quadruplet_margin_alpha_2 0.05 1 log
    loss RecallAtK        --loss recallatk \
        --tune loss_recallatk_k_temperature 0.1 10 log --tune loss_recallatk_rank_temperature 0.005 0.1 log
    loss ROADMAP          --loss roadmap --tune loss_roadmap_lambda 0 1 --tune loss_roadmap_tau 0.005 0.05 log
    loss SmoothAP         --loss smoothap --tune loss_smoothap_temperature 0.005 0.1 log
    loss SNR              --loss snr --batch_mining distance --tune loss_snr_margin 0.05 1 log
    loss SNR_Contrastive  --loss snr_contrastive \
        --tune loss_snr_contrastive_pos_margin 0 0.2 --tune loss_snr_contrastive_neg_margin 0.2 2
    loss Softmax          --loss softmax \
        --tune loss_softmax_temperature 0.02 0.5 log --tune loss_softmax_lr 0.00001 0.01 log
    loss SoftTriple       --loss softtriplet \
        --tune loss_softtriplet_lambda 4 32 log --tune loss_softtriplet_gamma 0.02 0.5 log
    loss SubcenterArcFace --loss subcenter_arcface \
        --tune loss_subcenter_arcface_angular_margin 0 1 --tune loss_subcenter_arcface_feature_scale 4 64 log
    loss SupCon           --loss supcon --tune loss_supcon_temperature 0.01 0.5 log
    loss Triplet          --loss triplet --batch_mining distance --tune loss_triplet_margin 0.05 1 log
}
