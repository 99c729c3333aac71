# What studies/Claims_Searches.sh and studies/Claims_Runs.sh share: data, network, and the flags of each loss.
data=${DATA:-Datasets}
half_of() {                                              # sets `omniglot` to the flags of half A or B
    omniglot=(--dataset omniglot --source_path "$data" --arch conv4_normalize --not_pretrained --input_size 16 --embed_dim 64 --bs 112
        --samples_per_class 4 --lr 0.003 --scheduler step --gamma 0.1 --kernels 0 --pictures none)
    if [ "$1" = B ]; then omniglot+=(--test_start 0); fi
}
# setting KIND HALF NAME: the flags in the line 'HALF NAME FLAG...' of studies/settings/KIND.txt
setting() {
    local file
    file="$(dirname "${BASH_SOURCE[0]}")/settings/$1.txt"
    if ! grep -q "^$2 $3 " "$file" 2> /dev/null; then
        echo "$file has no line '$2 $3 ...': run the searches first, and then python -m studies.settings $1" >&2
        exit 2
    fi
    grep "^$2 $3 " "$file" | cut -d ' ' -f 3-
}

# proxies and class weights have the learning rate 0.01
contrastive=(--loss contrastive --batch_mining distance)
triplet=(--loss triplet --batch_mining distance)
margin=(--loss margin --batch_mining distance)
snr=(--loss snr --batch_mining distance)
ntxent=(--loss ntxent)
multisimilarity=(--loss multisimilarity)
proxyanchor=(--loss proxyanchor --loss_proxyanchor_lrmulti 3.3333)
arcface=(--loss arcface --loss_arcface_lr 0.01)
dr_triplet=(--loss dr_triplet --batch_mining distance)
dr_proxynca=(--loss dr_proxynca --loss_dr_proxynca_lrmulti 3.3333)
dr_multisimilarity=(--loss dr_multisimilarity)
