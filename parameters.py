"""
Every flag of main.py, grouped; the only place with defaults.

A flag that belongs to one method is named after it: --loss_<loss>_<parameter>, --miner_<miner>_<parameter>,
--data_<sampler>_<parameter>. Every part of the program gets the whole namespace.
"""
from pathlib import Path

import evaluation
from architectures import ARCHITECTURES, PREFIXES
from batch_mining import BATCHMINERS
from criteria import CRITERIA
from datasampler import SAMPLERS
from datasets import DATASETS, splits
from datasets.transforms import AUGMENTATIONS
from evaluation import METRICS, ranking
from evaluation.figures import PICTURES
from utilities import checkpoint, run_folder
from utilities.command_line import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    REAL,
    WHOLE,
    Parser,
    known,
    number,
    read_config,
    switch,
    tokens,
    yaml_mapping,
)
from utilities.errors import UserError

SECRETS = ('wandb_key',)                                # never written anywhere
# what to do, not part of a run's settings
MODES = ('config', 'reproduce', 'resume', 'evaluate', 'embed', 'draw', 'untrained')


def run_parameters(parser):
    group = parser.add_argument_group('what to do (by default: train)')
    group.add_argument('--config', nargs='+', metavar='FILE', default=[],
                       help='YAML files of flag names and values, merged left to right; the command line wins')
    group.add_argument('--reproduce', metavar='RUN_FOLDER', help='start a new run with the settings of that one')
    group.add_argument('--resume', metavar='RUN_FOLDER',
                       help='continue a run exactly where it was stopped; a larger --n_epochs extends a finished one')
    group.add_argument('--untrained', metavar='RUN_FOLDER',
                       help="do not evaluate the untrained network, but take its metrics from that run, which has the "
                            'same seed, data, network and evaluation')
    group.add_argument('--evaluate', metavar='RUN_FOLDER_OR_CHECKPOINT',
                       help='train nothing; print the metrics of a trained network (of a folder: the last one)')
    group.add_argument('--embed', nargs=2, metavar=('RUN_FOLDER_OR_CHECKPOINT', 'OUT.npz'),
                       help='train nothing; write embeddings, labels and paths of a trained network')
    group.add_argument('--draw', nargs=2, metavar=('RUN_FOLDER_OR_CHECKPOINT', 'FOLDER'),
                       help='train nothing; draw the --pictures of a trained network into a folder')
    group.add_argument('--seed', type=COUNT, default=1, help='all that is random is a function of it')
    switch(group, '--deterministic', help='repeatable arithmetic also on a GPU, at a cost; on the CPU it always is')
    switch(group, '--tf32', help='faster, less exact float32 products on NVIDIA GPUs')
    group.add_argument('--device', choices=['auto', 'cpu', 'cuda', 'mps'], default='auto', help='what to compute on')
    group.add_argument('--gpu', nargs='+', type=COUNT, default=[0], help='index of the NVIDIA GPU')
    group.add_argument('--kernels', type=COUNT, default=6,
                       help='data workers, at most one per processor core; they do not change the results')


def data_parameters(parser):
    group = parser.add_argument_group('data')
    group.add_argument('--dataset', default='cub200', help=f'one of {", ".join(DATASETS)}')
    group.add_argument('--source_path', '--source', default='../../Datasets',
                       help="the folder that holds the data sets' folders; for --dataset folder: that holds images/")
    group.add_argument('--csv', metavar='FILE', help='for --dataset folder: a table of path,label[,split]')
    switch(group, '--download', help='fetch the data set first, where it has a stable public address')
    switch(group, '--skip_bad_images', help='check every image at the start, and leave out those that cannot be read')
    group.add_argument('--image_cache', metavar='FOLDER', help='keep decoded images there for all runs on a machine')
    group.add_argument('--split_scheme', choices=[*splits.SCHEMES],
                       help='half: classes that train, classes that test; class_folds: and a fold of classes that '
                            'validates; mlrc: the class lists of Musgrave et al.; closed_set: folds of images of every '
                            "class; predefined: the data set's own parts; by default predefined where there are such, "
                            'else half')
    group.add_argument('--fold', metavar='K', type=COUNT, default=0, help='the fold that validates, from 0')
    group.add_argument('--n_folds', type=number(int, 2), default=4, help='into which what does not test is cut')
    group.add_argument('--n_training_folds', type=POSITIVE_INT,
                       help='how many of these folds validate, the first ones; by default all')
    group.add_argument('--test_size', type=number(float, 0, 1, above=True), default=0.5,
                       help='share of the classes (of closed_set: of the images of each class) that tests')
    group.add_argument('--test_start', type=FRACTION, default=0.5,
                       help='where this share begins in the sorted classes; beyond the last it goes on with the first')
    switch(group, '--use_tv_split', help='cut a validation split off the training split')
    switch(group, '--tv_split_by_samples', help='cut off samples of every class instead of whole classes')
    group.add_argument('--tv_split_perc', type=number(float, 0, 1, above=True), default=0.8,
                       help='the share of the training split that still trains')
    group.add_argument('--augmentation', default='base',
                       help=f'of the training images, one of {", ".join(AUGMENTATIONS)}; base: random crops and flips '
                            '(for characters: small affine changes); adv: and colours; big: base with 256 pixels; red: '
                            'crops without a change of scale; mlrc: that of Musgrave et al.')


def network_parameters(parser):
    group = parser.add_argument_group('network')
    group.add_argument('--arch', default='resnet50_frozen_normalize',
                       help=f'one of {", ".join(ARCHITECTURES)}, or any network of a library as '
                            f'{", ".join(f"{prefix}:NAME" for prefix in PREFIXES)}; with _frozen appended, BatchNorm '
                            'layers keep their running statistics; with _normalize, embeddings have norm 1')
    group.add_argument('--embed_dim', type=POSITIVE_INT, default=128, help='dimension D of the embeddings')
    group.add_argument('--embed_layers', nargs='*', type=POSITIVE_INT, default=[],
                       help='widths of hidden layers between backbone and embedding')
    switch(group, '--not_pretrained', help='start from random weights')
    group.add_argument('--weights', metavar='FILE', help="the backbone's pretrained weights, a state dict")
    group.add_argument('--input_size', type=POSITIVE_INT,
                       help="side of the input images in pixels, instead of the network's own")
    group.add_argument('--input_mean', nargs='+', type=REAL, help='mean per channel of images in [0, 1], likewise')
    group.add_argument('--input_std', nargs='+', type=POSITIVE, help='standard deviation per channel, likewise')
    switch(group, '--input_bgr', help='channels in the order blue, green, red, likewise', default=None)


def training_parameters(parser):
    group = parser.add_argument_group('training')
    group.add_argument('--n_epochs', type=COUNT, default=150, help='0: only evaluate the untrained network')
    group.add_argument('--iterations_per_epoch', type=COUNT, default=0,
                       help='batches per epoch; 0: as many as the training images fill')
    group.add_argument('--bs', type=POSITIVE_INT, default=112, help='images per batch')
    group.add_argument('--lr', type=NOT_NEGATIVE, default=0.00001, help='learning rate of the network')
    group.add_argument('--fc_lr', type=REAL, default=-1.0, help='learning rate of the embedding layer; negative: --lr')
    group.add_argument('--decay', type=NOT_NEGATIVE, default=0.0004, help='weight decay of the network')
    group.add_argument('--loss_decay', type=NOT_NEGATIVE, default=0.0, help='weight decay of the criterion')
    group.add_argument('--optim', choices=['adam', 'adamw', 'sgd', 'rmsprop'], default='adam', help='optimizer')
    group.add_argument('--momentum', type=FRACTION, default=0.9, help='of sgd and rmsprop')
    group.add_argument('--scheduler', choices=['none', 'step', 'cosine'], default='step',
                       help='step: lr times gamma after each epoch of tau; cosine: to 0 over n_epochs')
    group.add_argument('--gamma', type=NOT_NEGATIVE, default=0.3, help='factor of the step schedule')
    group.add_argument('--tau', nargs='+', type=POSITIVE_INT, default=[1000], help='epochs of the step schedule')
    group.add_argument('--warmup', type=COUNT, default=0,
                       help='number of first epochs that train the embedding layer and the criterion only; the '
                            'backbone and its BatchNorm statistics stay as they are')
    group.add_argument('--patience', type=POSITIVE_INT,
                       help='stop when the first storage metric on the validation split is older than this many epochs')


def batch_creation_parameters(parser):
    group = parser.add_argument_group('batch creation')
    group.add_argument('--data_sampler', default='class_random', help=f'one of {", ".join(SAMPLERS)}')
    group.add_argument('--samples_per_class', type=POSITIVE_INT, default=2, help='images of each class in a batch')
    switch(group, '--data_cover_epoch', help='class_random: an epoch visits every class once')
    group.add_argument('--data_hierarchical_superclasses', type=POSITIVE_INT, default=2,
                       help='super-classes in a batch; more, where these have too few classes')
    group.add_argument('--data_batchmatch_bigbs', type=POSITIVE_INT, default=512,
                       help='size of the big batch that is summarised')
    group.add_argument('--data_batchmatch_ncomps', type=POSITIVE_INT, default=10, help='number of candidate batches')
    switch(group, '--data_storage_no_update', help='do not update the stored embeddings from the training batches')
    group.add_argument('--data_d2_coreset_lambda', type=REAL, default=1.0,
                       help='exponent of the distances, against the density')
    group.add_argument('--data_gc_coreset_lim', type=REAL, default=1e-9,
                       help='greedy coreset: images no farther than this from an anchor are covered')
    group.add_argument('--data_sampler_lowproj_dim', type=WHOLE, default=-1, help='of a random projection; -1: none')
    group.add_argument('--data_sim_measure', choices=['euclidean', 'cosine'], default='euclidean',
                       help='distance of the stored embeddings; cosine: after normalising them')
    switch(group, '--data_gc_softened', help='greedy coreset: random among the farthest 3 percent')
    switch(group, '--data_idx_full_prec', help='embed all training images anew before each epoch')
    group.add_argument('--data_mb_mom', type=REAL, default=-1.0, help="of the stored embeddings' changes; -1: none")
    group.add_argument('--data_mb_lr', type=REAL, default=1.0,
                       help='how far the stored embeddings run ahead with that momentum')


def batch_mining_parameters(parser):
    group = parser.add_argument_group('batch mining')
    group.add_argument('--batch_mining', default='distance',
                       help=f'one of {", ".join(BATCHMINERS)}, or pml:NAME, a class of pytorch-metric-learning')
    for miner in ('distance', 'rho_distance'):
        group.add_argument(f'--miner_{miner}_lower_cutoff', type=number(float, 0, 2), default=0.5,
                           help='smaller distances weigh as much as this one')
        group.add_argument(f'--miner_{miner}_upper_cutoff', type=NOT_NEGATIVE, default=1.4,
                           help='without effect, as in the public code')
    group.add_argument('--miner_rho_distance_cp', type=FRACTION, default=0.2,
                       help='probability of a triplet that pushes a positive away')
    group.add_argument('--miner_semihard_margin', type=POSITIVE,
                       help="width of the window on squared distances; by default the loss's margin, or 0.2")
    group.add_argument('--miner_easyhard_pos', choices=['easy', 'hard'], default='easy', help='nearest or farthest')
    group.add_argument('--miner_easyhard_neg', choices=['semihard', 'hard'], default='semihard',
                       help='hard: the nearest; semihard: the nearest of those farther than the positive')
    group.add_argument('--miner_multisimilarity_epsilon', type=REAL, default=0.1, help='in units of cosine')
    add = group.add_argument
    add('--miner_parametric_mode', choices=['uniform', 'hards', 'semihards', 'veryhards'], default='uniform',
        help='distances that negatives are drawn from: all, up to 0.5, 0.3 to 0.7, up to 0.3')
    add('--miner_parametric_n_support', type=number(int, 2), default=30, help='edges of the bins of distances')
    add('--miner_parametric_support_lim', nargs=2, type=NOT_NEGATIVE, default=[0.1, 1.4],
        help='first and last edge; the bins there take all that is beyond')
    switch(group, '--miner_parametric_adapt',
           help='PADS: a policy adapts the distribution to what becomes of validation metrics (--use_tv_split)')
    add('--miner_parametric_init', choices=['uniform_low', 'uniform', 'hards', 'semihards', 'veryhards'],
        default='uniform_low', help='distribution that PADS starts from; uniform_low: distances from 0.3 to 0.7')
    add('--miner_parametric_update_every', type=POSITIVE_INT, default=30,
        help='training steps between two updates of the policy')
    add('--miner_parametric_actions', nargs='+', type=POSITIVE, default=[0.8, 1.0, 1.25],
        help="factors of a bin's weight that the policy chooses from")
    add('--miner_parametric_policy_lr', type=NOT_NEGATIVE, default=0.01, help='learning rate of the policy')
    add('--miner_parametric_policy_size', nargs='+', type=POSITIVE_INT, default=[128, 128],
        help="widths of the policy's hidden layers")
    add('--miner_parametric_history', type=POSITIVE_INT, default=20,
        help='number of last validations that the policy sees')
    add('--miner_parametric_reward', choices=['recall_nmi', 'recall'], default='recall_nmi',
        help='whether recall@1, or its mean with NMI, is better than at the last update')
    add('--miner_parametric_learning', choices=['ppo', 'reinforce'], default='ppo',
        help="how the policy learns: PPO with a value head, or REINFORCE with the rewards' moving average as baseline")
    add('--miner_parametric_ppo_clip', type=FRACTION, default=0.2, help='of the ratio of new and old chances')
    add('--miner_parametric_old_update', type=POSITIVE_INT, default=5,
        help="updates of the policy between two of PPO's old policy")
    add('--miner_parametric_baseline_rate', type=FRACTION, default=0.05, help="of reinforce's moving average")
    switch(group, '--miner_parametric_no_self_reg',
           help='PADS: draw negatives from other classes only, and positives other than the anchor')
    group.add_argument('--miner_pml_args', nargs='+', type=yaml_mapping, default=[], metavar='YAML',
                       help="arguments of pml:NAME, as '{epsilon: 0.2}'; one for each such miner, or one for all")


def loss_parameters(parser):
    group = parser.add_argument_group('losses')
    group.add_argument('--loss', default='margin',
                       help=f'one of {", ".join(CRITERIA)}, or pml:NAME, a class of pytorch-metric-learning; a '
                            'sum as a+b, with miners by position: --batch_mining c+d')
    add = group.add_argument
    add('--loss_weights', nargs='+', type=REAL, default=[], help='of the losses of a sum; by default 1 each')
    add('--dr_weight', type=NOT_NEGATIVE, default=0.0,
        help='weight of direction regularisation (Mohan et al.) for any loss that takes a miner')
    add('--xbm_size', type=COUNT, default=0, help='entries of a cross-batch memory; 0: none')
    add('--xbm_weight', type=NOT_NEGATIVE, default=1.0, help="weight of the memory's part of the loss")
    add('--xbm_start', type=COUNT, default=1000, help='batches before the memory is used')
    add('--loss_pml_args', nargs='+', type=yaml_mapping, default=[], metavar='YAML',
        help="arguments of pml:NAME, as '{margin: 0.1, distance: {LpDistance: {power: 2}}}'; one for each, or for all")
    add('--loss_pml_lr', type=REAL, default=-1.0, help='learning rate of the parameters of pml:NAME; negative: --lr')
    add('--loss_contrastive_pos_margin', type=REAL, default=0.0, help='distance under which positives do not count')
    add('--loss_contrastive_neg_margin', type=REAL, default=1.0, help='distance over which negatives do not count')
    switch(group, '--loss_contrastive_active_only', help='mean over the pairs that count (Musgrave et al.)')
    add('--loss_triplet_margin', type=REAL, default=0.2, help='in units of distance to the power')
    add('--loss_triplet_power', type=POSITIVE, default=2.0, help='of the distances; 1 in Musgrave et al.')
    switch(group, '--loss_triplet_active_only', help='mean over the triplets that violate the margin')
    add('--loss_margin_margin', type=REAL, default=0.2, help='half the width of the band around the boundary')
    add('--loss_margin_beta', type=REAL, default=1.2, help='the boundary at the start, a distance')
    add('--loss_margin_beta_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the boundaries')
    add('--loss_margin_nu', type=REAL, default=0.0, help="weight of the boundaries' sum")
    switch(group, '--loss_margin_beta_constant', help='do not train the boundary')
    switch(group, '--loss_margin_beta_shared', help='one boundary for all classes')
    add('--loss_proxynca_lrmulti', type=NOT_NEGATIVE, default=50.0, help='learning rate of the proxies over --lr')
    add('--loss_proxynca_scale', type=POSITIVE, default=3.0, help='norm of embeddings and proxies')
    add('--loss_npair_negatives', choices=['all', 'pairs'], default='all',
        help="all samples of other classes, or (the paper) the positives of one pair per class")
    add('--loss_npair_l2', type=NOT_NEGATIVE, default=0.005, help="weight of the embeddings' norms")
    add('--loss_angular_alpha', type=REAL, default=45.0, help='angle in degrees')
    add('--loss_angular_npair_ang_weight', type=REAL, default=2.0, help='weight of the angular term')
    add('--loss_angular_npair_l2', type=NOT_NEGATIVE, default=0.005, help="weight of the embeddings' norms")
    add('--loss_multisimilarity_pos_weight', type=POSITIVE, default=2.0, help='sharpness of the pull on positives')
    add('--loss_multisimilarity_neg_weight', type=POSITIVE, default=40.0, help='sharpness of the push on negatives')
    add('--loss_multisimilarity_margin', type=REAL, default=0.1, help='of the mining, a cosine; 2 or more: none')
    add('--loss_multisimilarity_thresh', type=REAL, default=0.5, help='the cosine that separates the two')
    add('--loss_lifted_neg_margin', type=REAL, default=1.0, help='distance that negatives should have')
    add('--loss_lifted_l2', type=NOT_NEGATIVE, default=0.005, help="weight of the embeddings' norms")
    add('--loss_liftedstructure_neg_margin', type=REAL, default=1.0, help='distance that negatives should have')
    add('--loss_liftedstructure_l2', type=NOT_NEGATIVE, default=0.0, help="weight of the embeddings' norms")
    add('--loss_quadruplet_margin_alpha_1', type=REAL, default=0.2, help='margin of anchor, positive and negative')
    add('--loss_quadruplet_margin_alpha_2', type=REAL, default=0.2, help='margin of the two negatives')
    add('--loss_softtriplet_n_centroids', type=POSITIVE_INT, default=2, help='centres per class')
    add('--loss_softtriplet_margin_delta', type=REAL, default=0.01, help='margin of the own class')
    add('--loss_softtriplet_gamma', type=POSITIVE, default=0.1, help="temperature over a class's centres")
    add('--loss_softtriplet_lambda', type=REAL, default=8.0, help='scale of the similarities')
    add('--loss_softtriplet_reg_weight', type=NOT_NEGATIVE, default=0.2, help='weight that draws centres together')
    add('--loss_softtriplet_lrmulti', type=NOT_NEGATIVE, default=1.0, help='learning rate of the centres over --lr')
    add('--loss_softmax_lr', type=NOT_NEGATIVE, default=0.00001, help='learning rate of the class vectors')
    add('--loss_softmax_temperature', type=POSITIVE, default=0.05, help='divides the cosines')
    add('--loss_histogram_nbins', type=number(int, 2), default=65, help='number of nodes in [-1, 1]')
    add('--loss_snr_margin', type=REAL, default=0.2, help='in units of the variance ratio')
    add('--loss_snr_reg_lambda', type=NOT_NEGATIVE, default=0.005, help='weight of the zero-mean term')
    add('--loss_arcface_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the class vectors')
    add('--loss_arcface_angular_margin', type=REAL, default=0.5, help='in radians')
    add('--loss_arcface_feature_scale', type=REAL, default=16.0, help='multiplies the cosines')
    add('--loss_proxyanchor_margin', type=REAL, default=0.1, help='a cosine')
    add('--loss_proxyanchor_alpha', type=POSITIVE, default=32.0, help='sharpness of pull and push')
    add('--loss_proxyanchor_lrmulti', type=NOT_NEGATIVE, default=100.0, help='learning rate of the proxies over --lr')
    add('--loss_ntxent_temperature', type=POSITIVE, default=0.07, help='divides the cosines')
    add('--loss_cosface_margin', type=REAL, default=0.35, help='a cosine')
    add('--loss_cosface_scale', type=POSITIVE, default=64.0, help='multiplies the cosines')
    add('--loss_cosface_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the class vectors')
    add('--loss_fastap_nbins', type=POSITIVE_INT, default=10, help='number of intervals of squared distances in [0, 4]')
    add('--loss_snr_contrastive_pos_margin', type=REAL, default=0.0, help='ratio under which positives do not count')
    add('--loss_snr_contrastive_neg_margin', type=REAL, default=1.0, help='ratio over which negatives do not count')
    add('--loss_snr_contrastive_reg_lambda', type=NOT_NEGATIVE, default=0.0, help='weight of the zero-mean term')
    add('--loss_dr_triplet_margin', type=REAL, default=0.278, help='in units of distance')
    add('--loss_dr_triplet_gamma', type=NOT_NEGATIVE, default=0.492, help='weight of the direction')
    add('--loss_dr_proxynca_gamma', type=NOT_NEGATIVE, default=0.3, help='weight of the direction')
    add('--loss_dr_proxynca_scale', type=NOT_NEGATIVE, default=0.0,
        help='0: distances of raw vectors, as published; above: of vectors of this norm, squared, as proxynca')
    add('--loss_dr_proxynca_lrmulti', type=NOT_NEGATIVE, default=50.0, help='learning rate of the proxies over --lr')
    add('--loss_dr_multisimilarity_pos_weight', type=POSITIVE, default=2.0, help='sharpness of the pull on positives')
    add('--loss_dr_multisimilarity_neg_weight', type=POSITIVE, default=50.0, help='sharpness of the push on negatives')
    add('--loss_dr_multisimilarity_margin', type=REAL, default=0.1, help='of the mining, a cosine; 2 or more: none')
    add('--loss_dr_multisimilarity_thresh', type=REAL, default=0.6, help='the cosine that separates the two')
    add('--loss_dr_multisimilarity_gamma', type=NOT_NEGATIVE, default=0.28, help='weight of the direction')
    add('--loss_proxynca_pp_scale', type=POSITIVE, default=3.0, help='norm of embeddings and proxies')
    add('--loss_proxynca_pp_lrmulti', type=NOT_NEGATIVE, default=50.0, help='learning rate of the proxies over --lr')
    add('--loss_circle_margin', type=REAL, default=0.4, help='relaxation, a cosine')
    add('--loss_circle_gamma', type=POSITIVE, default=80.0, help='scale')
    add('--loss_supcon_temperature', type=POSITIVE, default=0.1, help='divides the cosines')
    add('--loss_subcenter_arcface_n_centers', type=POSITIVE_INT, default=3, help='centres per class')
    add('--loss_subcenter_arcface_angular_margin', type=REAL, default=0.5, help='in radians')
    add('--loss_subcenter_arcface_feature_scale', type=POSITIVE, default=64.0, help='multiplies the cosines')
    add('--loss_subcenter_arcface_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the centres')
    add('--loss_smoothap_temperature', type=POSITIVE, default=0.01, help='of the comparisons of cosines')
    add('--loss_recallatk_k', nargs='+', type=POSITIVE_INT, default=[1, 2, 4, 8, 16], help='each at most the batch')
    add('--loss_recallatk_k_temperature', type=POSITIVE, default=1.0, help='of the comparisons of ranks with k')
    add('--loss_recallatk_rank_temperature', type=POSITIVE, default=0.01, help='of the comparisons of cosines')
    switch(group, '--loss_recallatk_simix', help="add virtual samples between each class's pairs")
    add('--loss_roadmap_tau', type=POSITIVE, default=0.01, help='temperature of the step of negatives')
    add('--loss_roadmap_rho', type=NOT_NEGATIVE, default=100.0, help='slope beyond delta')
    add('--loss_roadmap_delta', type=NOT_NEGATIVE, default=0.05, help='cosine difference where the slope starts')
    add('--loss_roadmap_offset', type=REAL, default=-1.0, help='value there; negative: the continuous one')
    add('--loss_roadmap_lambda', type=FRACTION, default=0.5, help='weight of the calibration')
    add('--loss_roadmap_pos_margin', type=REAL, default=0.9, help='cosine that positives should have')
    add('--loss_roadmap_neg_margin', type=REAL, default=0.6, help='cosine that negatives may have')
    add('--loss_hyperbolic_c', type=NOT_NEGATIVE, default=0.1, help='curvature; 0: the sphere, with cosines')
    add('--loss_hyperbolic_temperature', type=POSITIVE, default=0.2, help='divides the distances')
    add('--loss_hyperbolic_clip_r', type=NOT_NEGATIVE, default=2.3, help='norm to which embeddings are cut; 0: not')


def evaluation_parameters(parser):
    group = parser.add_argument_group('evaluation')
    group.add_argument('--evaluation_metrics', nargs='+', metavar='METRIC', default=[
        'e_recall@1', 'e_recall@2', 'e_recall@4', 'nmi', 'f1', 'mAP_1000', 'mAP_lim', 'mAP_c',
        'dists@intra', 'dists@inter', 'dists@intra_over_inter',
        'rho_spectrum@0', 'rho_spectrum@-1', 'rho_spectrum@1', 'rho_spectrum@2', 'rho_spectrum@10',
        'map_at_r', 'precision_at_1', 'r_precision'], help=f'of {", ".join(METRICS)}; with c_ in front, on cosines')
    group.add_argument('--storage_metrics', nargs='+', metavar='METRIC', default=['e_recall@1'],
                       help='the best network by each of these on each split is kept; the first one selects')
    group.add_argument('--splits_to_eval', nargs='+', choices=['train', 'val', 'test'],
                       help='by default all there are (train: unless --no_train_metrics)')
    switch(group, '--no_train_metrics', help='do not evaluate the training split')
    group.add_argument('--eval_every', type=POSITIVE_INT, default=1, help='in epochs; the last one always is')
    switch(group, '--evaluate_on_gpu', help='compute the metrics on the GPU as well, where there is one')
    group.add_argument('--cluster_every', type=POSITIVE_INT, default=1,
                       help='in epochs: nmi, ami and f1 in these and in the last one only')
    group.add_argument('--bootstrap', metavar='N', type=COUNT, default=0,
                       help='95 percent intervals of the retrieval metrics, from N resamples of the classes')
    group.add_argument('--ranking_backend', choices=ranking.BACKENDS, default='auto',
                       help='how to rank; the quickest by default, all with equal results')
    switch(group, '--knn_approx', help='rank by an approximate search, where an exact one takes too long')
    switch(group, '--eval_normalize', help='evaluate L2-normalised embeddings')
    switch(group, '--eval_features', help="evaluate the backbone's pooled features instead of the embeddings")
    group.add_argument('--pca', metavar='D', type=COUNT, default=0,
                       help='evaluate the first D principal components; 0: all dimensions')
    group.add_argument('--eval_autocast', choices=['bfloat16', 'float16'],
                       help='embed in mixed precision when evaluating; the metrics are computed in float32')
    group.add_argument('--eval_reference', choices=['self', 'train', 'all'], default='self',
                       help='where test and validation queries are searched for: in their own split, in the training '
                            'split, or in both')
    group.add_argument('--eval_level', nargs='+', choices=evaluation.LEVELS, default=['class'],
                       help='class: as labelled; parent: super-classes; within: classes, searched for in their '
                            'super-class only')
    group.add_argument('--evaltypes', nargs='+', choices=['discriminative'], default=['discriminative'],
                       help='which of the embeddings to evaluate; networks here have one')
    group.add_argument('--pictures', nargs='+', choices=['none', *PICTURES], metavar='PICTURE',
                       default=['retrieval', 'spectrum', 'distances', 'classes'],
                       help='of the test split after the last epoch, for papers, into plots/: none, '
                            f'{", ".join(PICTURES)}')
    switch(group, '--projector', help="write the last epoch's test embeddings for TensorBoard's projector")


def record_parameters(parser):
    group = parser.add_argument_group('records')
    group.add_argument('--save_path', default='Training_Results', help='run folders go to <save_path>/<dataset>/')
    group.add_argument('--savename', default='group_plus_seed', help='run folder; by default <group>_s<seed>')
    switch(group, '--log_online', help='log to --online_backend as well; without key or network, into the run folder')
    group.add_argument('--online_backend', choices=['wandb', 'comet_ml', 'none'], default='wandb', help='where to')
    group.add_argument('--wandb_key', help='W&B key; better in the environment, WANDB_API_KEY, or by `wandb login`')
    group.add_argument('--project', default='Sample_Project', help='project at the backend')
    group.add_argument('--group', default='Sample_Group', help='name of a setting, shared by its seeds')


def build():
    parser = Parser(prog='main.py', usage='main.py [FLAG ...]',
                    description='Trains an embedding network on some classes, judges it on classes it has never seen.')
    for add in (run_parameters, data_parameters, network_parameters, training_parameters, batch_creation_parameters,
                batch_mining_parameters, loss_parameters, evaluation_parameters, record_parameters):
        add(parser)
    return parser


def parse(arguments, defaults=None):
    """
    The command line's arguments, a list of strings -> the namespace.

    {flag: value} of `defaults` come first, then the settings of a run folder (--resume, --reproduce, --evaluate,
    --embed, --draw), then those of the --config files, and the command line wins. Raises UserError for whatever the
    user must change.
    """
    parser = build()
    given = parser.parse_args(arguments)
    folders = [given.resume, given.reproduce, given.evaluate, *(given.embed or [])[:1], *(given.draw or [])[:1]]
    folders = [folder for folder in folders if folder]
    if len(folders) > 1:
        raise UserError('--resume, --reproduce, --evaluate, --embed and --draw: give one of them')
    settings = dict(defaults or {})
    for folder in folders:
        settings |= known(parser, flags_of(folder), folder, MODES)
    for file in given.config:
        settings |= read_config(parser, file, MODES)
    opt = parser.parse_args([*tokens(settings), *arguments])
    check(opt)
    check_splits(parser, opt)
    return opt


def flags_of(place):
    """The settings of a run folder, or of the run that a checkpoint file is of."""
    return checkpoint.load(place)['settings'] if Path(place).is_file() else run_folder.read(place)['flags']


def settings_of(opt):
    """The flags as they go into records: without secrets, and without what was asked of this process only."""
    return {name: value for name, value in vars(opt).items() if name not in (*SECRETS, *MODES)}


def check_splits(parser, opt):
    """Refuses flags that the split scheme would not look at, and a fold that it does not have."""
    used_by = dict.fromkeys(('fold', 'n_folds', 'n_training_folds'), splits.FOLDED)
    used_by |= dict.fromkeys(('test_size', 'test_start'), splits.RANGED)
    for flag, schemes in used_by.items():
        if getattr(opt, flag) != parser.get_default(flag) and opt.split_scheme not in schemes:
            raise UserError(f'--{flag} {getattr(opt, flag)} goes with --split_scheme {", ".join(schemes)}'
                            + (f', not with {opt.split_scheme}' if opt.split_scheme else '; give one of them'))
    if opt.test_size == 1:
        raise UserError('--test_size 1 leaves nothing to train on; use a smaller share, such as 0.5')
    if opt.split_scheme in splits.FOLDED:
        if opt.use_tv_split:
            raise UserError(f'--use_tv_split: --split_scheme {opt.split_scheme} validates on --fold {opt.fold}; leave '
                            'one of them out')
        if (opt.n_training_folds or 0) > opt.n_folds:
            raise UserError(f'--n_training_folds {opt.n_training_folds}: there are only --n_folds {opt.n_folds}')
        n_folds = opt.n_training_folds or opt.n_folds
        if opt.fold >= n_folds:
            flag = 'n_training_folds' if opt.n_training_folds else 'n_folds'
            raise UserError(f'--fold {opt.fold}: with --{flag} {n_folds}, folds are numbered from 0 to {n_folds - 1}')


def check(opt):
    """Refuses combinations that cannot work, as far as the flags alone show it; """
    evaluation.check_metrics(opt)
    if opt.csv and opt.dataset != 'folder':
        raise UserError(f'--csv goes with --dataset folder, not with {opt.dataset}')
    if opt.tv_split_perc == 1 and opt.use_tv_split:
        raise UserError('--tv_split_perc 1 leaves nothing to validate on; use a smaller share, such as 0.8')
    low, high = opt.miner_parametric_support_lim
    if low >= high:
        raise UserError(f'--miner_parametric_support_lim {low} {high}: the first must be less than the second')
    if opt.splits_to_eval and 'train' in opt.splits_to_eval and opt.no_train_metrics:
        raise UserError('--splits_to_eval train and --no_train_metrics exclude each other')
    for flag in ('group', 'savename'):
        name = getattr(opt, flag)
        if Path(name).name != name or name in ('', '..'):
            raise UserError(f'--{flag} {name}: it names a folder and must not hold a slash')
