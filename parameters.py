"""
Every flag of main.py, grouped; the only place with defaults.

A flag that belongs to one method is named after it: --loss_<loss>_<parameter>, --miner_<miner>_<parameter>,
--data_<sampler>_<parameter>. Every part of the program gets the whole namespace.
"""
import argparse
import re
from pathlib import Path

import datasampler
import evaluation
from architectures import ARCHITECTURES, PREFIXES, embedding_layer, pooling
from batch_mining import BATCHMINERS
from criteria import CRITERIA, takes_miner
from datasampler import SAMPLERS
from datasets import DATASETS, splits
from datasets.transforms import AUGMENTATIONS
from evaluation import METRICS, PICTURES, ranking
from records import checkpoint, reading, run_folder
from utilities import combination, pml
from utilities.command_line import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    REAL,
    WHOLE,
    Parser,
    given,
    known,
    number,
    of_groups,
    read_config,
    switch,
    tokens,
    yaml_mapping,
)
from utilities.errors import UserError

# never written anywhere: {flag: the environment variable by which processes that this one starts get it}
SECRETS = {'wandb_key': 'WANDB_API_KEY'}
# what --resume may change, besides the evaluation, the learning rates of criteria, and what belongs to the machine
RESUMABLE = ('n_epochs', 'patience', 'lr', 'fc_lr', 'decay', 'loss_decay', 'scheduler', 'gamma', 'tau', 'csv',
             'weights', 'micro_bs', 'compile', 'clip_grad', 'clip_grad_value', 'lr_floor', 'cosine_delay', 'lr_warmup',
             'lr_warmup_unit', 'onecycle_peak', 'daml_lr')
RATES = re.compile(r'loss_\w+_(lr|lrmulti)')
# flags of data and evaluation that the metrics of the untrained network do not depend on
AFTERWARDS = ('n_training_folds', 'crop_scale', 'crop_ratio', 'color_jitter', 'randaugment', 'random_erasing',
              'augment_on_gpu', 'storage_metrics', 'eval_every', 'cluster_every', 'ranking_backend', 'pictures',
              'projector', 'keep_features', 'overlap_threshold')
# flags of the parametric miner that matter with --miner_parametric_adapt only
PADS = [f'miner_parametric_{name}' for name in (
    'init', 'update_every', 'actions', 'policy_lr', 'policy_size', 'history', 'reward', 'learning', 'ppo_clip',
    'old_update', 'baseline_rate', 'no_self_reg')]
# what to do, not part of a run's settings
MODES = ('config', 'reproduce', 'resume', 'auto_resume', 'evaluate', 'embed', 'draw', 'export', 'check_overlap',
         'untrained')


def run_parameters(parser):
    group = parser.add_argument_group('what to do (by default: train)')
    group.add_argument('--config', nargs='+', metavar='FILE', default=[],
                       help='YAML files of flag names and values, merged from left to right; the command line '
                            'overrides them')
    group.add_argument('--reproduce', metavar='RUN_FOLDER', help='start a new run with the settings of this run')
    group.add_argument('--resume', metavar='RUN_FOLDER',
                       help='continue this run exactly where it stopped; a larger --n_epochs extends a finished run')
    switch(group, '--auto_resume',
           help='continue the run of this --group and --seed where it stopped if there is one with the same settings, '
                'otherwise start it; a larger --n_epochs extends it, and a finished run is left as it is')
    group.add_argument('--untrained', metavar='RUN_FOLDER',
                       help='copy the metrics of the untrained network from this run instead of computing them; it '
                            'must have the same seed, data, network and evaluation flags')
    group.add_argument('--evaluate', metavar='RUN_FOLDER_OR_CHECKPOINT',
                       help='do not train; print the metrics of a trained network (of a run folder, its last '
                            'checkpoint)')
    group.add_argument('--embed', nargs=2, metavar=('RUN_FOLDER_OR_CHECKPOINT', 'OUT.npz'),
                       help='do not train; write the embeddings of a trained network, their norms before they are '
                            'normalised, labels and paths to a file')
    group.add_argument('--draw', nargs=2, metavar=('RUN_FOLDER_OR_CHECKPOINT', 'FOLDER'),
                       help='do not train; save the --pictures of a trained network in a folder')
    group.add_argument('--export', nargs=2, metavar=('RUN_FOLDER_OR_CHECKPOINT', 'FILE'),
                       help='do not train; write a trained network to a file for other programs, .pt2 (torch.export) '
                            'or .onnx, which turns uint8 images, resized and cropped, into embeddings')
    group.add_argument('--check_overlap', metavar='RUN_FOLDER_OR_DATA_SET',
                       help='do not train; write to overlap.csv the pairs of images of different splits that are '
                            'copies of one file, or whose features have a cosine similarity of at least '
                            '--overlap_threshold; the features are computed by the trained network of a run folder, '
                            'or, for the name of a --dataset, by the network of the other flags')
    group.add_argument('--seed', type=COUNT, default=1, help='seed of all random numbers of the run')
    switch(group, '--deterministic',
           help='make the arithmetic repeatable on a GPU too, which is slower; on the CPU it is always repeatable')
    switch(group, '--tf32', help='compute float32 products in TF32 on NVIDIA GPUs: faster, but less precise')
    switch(group, '--system_malloc',
           help='let the C library return freed memory to the operating system at once; by default the run keeps it '
                'for reuse, which is faster on the CPU and takes more memory; it does not change the results')
    group.add_argument('--device', choices=['auto', 'cpu', 'cuda', 'mps'], default='auto',
                       help='device to compute on; auto: an NVIDIA GPU if available, else an Apple GPU, else the CPU')
    group.add_argument('--gpu', nargs='+', type=COUNT, default=[0],
                       help='index of the NVIDIA GPU, counted from 0; several indices start one process for each, '
                            'which train one run together (on the CPU if there is no GPU)')
    group.add_argument('--kernels', type=COUNT, default=6,
                       help='number of data loading processes, at most one per processor core; 0 loads in the main '
                            'process; it does not change the results')


def data_parameters(parser):
    group = parser.add_argument_group('data')
    group.add_argument('--dataset', default='cub200', help=f'data set, one of {", ".join(DATASETS)}')
    group.add_argument('--source_path', '--source', default='../../Datasets',
                       help='folder that contains the folders of the data sets; for --dataset folder, the one that '
                            'contains images/')
    group.add_argument('--csv', metavar='FILE',
                       help='for --dataset folder: CSV file with the columns path, label and, optionally, split and '
                            'one or several whose names begin with superclass; by default the classes are the folders '
                            'in images/')
    switch(group, '--download', help='download the data set first, if it has a stable public address')
    switch(group, '--skip_bad_images', help='check every image at the start and leave out those that cannot be read')
    group.add_argument('--image_cache', metavar='FOLDER',
                       help='folder for decoded images, shared by all runs on a machine; by default images are '
                            'decoded each time')
    switch(group, '--image_cache_check',
           help='compare every image in --image_cache with its checksum at the start; by default only a sample')
    group.add_argument('--decode', choices=['exact', 'fast'], default='exact',
                       help='how images are decoded and resized; exact: with exactly the pixels that Pillow gives; '
                            'fast: JPEG files are decoded at 1/2, 1/4 or 1/8 of their size where this is enough for '
                            '--input_size, and other images are resized by torch, which changes pixels slightly')
    group.add_argument('--split_scheme', choices=[*splits.SCHEMES],
                       help='how the data are split; half: training and test classes; class_folds: also folds of '
                            'validation classes; mlrc: the class lists of Musgrave et al.; closed_set: every class is '
                            'in all splits, with folds of images; predefined: the official split of the data set; by '
                            'default predefined if there is an official split, else half')
    group.add_argument('--fold', metavar='K', type=COUNT, default=0,
                       help='index of the validation fold, from 0, for a --split_scheme with folds')
    group.add_argument('--n_folds', type=number(int, 2), default=4,
                       help='number of folds, for a --split_scheme with folds')
    group.add_argument('--n_training_folds', type=POSITIVE_INT,
                       help='number of folds that may be used for validation, the first ones; by default all')
    group.add_argument('--test_size', type=FRACTION, default=0.5,
                       help='fraction of the classes (closed_set: of the images of each class) in the test split; 0 '
                            'makes all of them training classes')
    group.add_argument('--test_start', type=FRACTION, default=0.5,
                       help='where the test range starts, as a fraction of the sorted classes; at the end it wraps '
                            'around')
    switch(group, '--use_tv_split', help='split a validation set off the training set')
    switch(group, '--tv_split_by_samples',
           help='with --use_tv_split: validate on samples of every class instead of on whole classes')
    group.add_argument('--tv_split_perc', type=number(float, 0, 1, above=True), default=0.8,
                       help='with --use_tv_split: fraction of the training set that remains for training')
    group.add_argument('--augmentation', default='base',
                       help=f'augmentation of the training images, one of {", ".join(AUGMENTATIONS)}; base: random '
                            'crops and flips (for images of characters: small affine changes); adv: base with random '
                            'colours; big: base with 256 pixels; red: crops without random scaling; mlrc: that of '
                            'Musgrave et al.; none: as in evaluation without --eval_resize and --eval_size; '
                            'characters: small affine changes')
    group.add_argument('--crop_scale', nargs=2, type=number(float, 0, 1, above=True), metavar=('MIN', 'MAX'),
                       help='smallest and largest area of the random crops of --augmentation base, adv, big and mlrc, '
                            'as fractions of the image; by default 0.08 and 1, for mlrc 0.16 and 1')
    group.add_argument('--crop_ratio', nargs=2, type=POSITIVE, metavar=('MIN', 'MAX'),
                       help='smallest and largest ratio of width to height of these crops; by default 3/4 and 4/3, for '
                            'mlrc 0.75 and 1.33')
    group.add_argument('--color_jitter', nargs=4, type=NOT_NEGATIVE,
                       metavar=('BRIGHTNESS', 'CONTRAST', 'SATURATION', 'HUE'),
                       help='change the colours of the training images: brightness, contrast and saturation are '
                            'multiplied by random factors from 1 - x to 1 + x, where x is the number given, and the '
                            'hue is shifted by up to HUE turns of the colour circle (at most 0.5); by default only '
                            '--augmentation adv changes colours, by 0.2 each, which this flag replaces')
    group.add_argument('--randaugment', nargs=2, type=COUNT, metavar=('N', 'M'),
                       help='apply N random operations of magnitude M (0 to 30) to each training image, as RandAugment '
                            'does (Cubuk et al., 2020); by default none')
    group.add_argument('--random_erasing', type=FRACTION, default=0.0, metavar='P',
                       help='probability with which a random rectangle of a training image, 2 to 33 percent of its '
                            'area, is filled with the mean colour of ImageNet (Zhong et al., 2020); by default 0')
    group.add_argument('--interpolation', choices=['bilinear', 'bicubic'], default='bilinear',
                       help='interpolation with which images and crops are resized, in training and evaluation')
    group.add_argument('--eval_size', type=POSITIVE_INT,
                       help='height and width of the images in evaluation, in pixels; by default as in training '
                            '(--input_size)')
    group.add_argument('--eval_resize', type=POSITIVE_INT,
                       help='length in pixels to which the shorter side of an image is resized in evaluation, before '
                            'the centre is cropped; by default 256 for images of 224 to 256 pixels, else 8/7 of their '
                            'size; no effect with --augmentation characters, which does not crop')
    switch(group, '--augment_on_gpu',
           help='compute the crops, flips, colours and erasing of the training images on the --device; the random '
                'numbers stay the same, and pixels differ by rounding; affine changes of characters stay on the CPU')


def frozen_part(text):
    """An argparse type: none, backbone, stem or a number of blocks, as text."""
    if text not in ('none', 'backbone', 'stem') and not text.isdecimal():
        raise argparse.ArgumentTypeError(f'expected none, backbone, stem or a number of blocks, not {text}')
    return text


def network_parameters(parser):
    group = parser.add_argument_group('network')
    group.add_argument('--arch', default='resnet50_frozen_normalize',
                       help=f'network, one of {", ".join(ARCHITECTURES)}, or any network of a library as '
                            f'{", ".join(f"{prefix}:NAME" for prefix in PREFIXES)}; append _frozen to keep the '
                            'running statistics of BatchNorm layers, _normalize for embeddings of norm 1, and _double '
                            'for --pool avg_max')
    group.add_argument('--embed_dim', type=POSITIVE_INT, default=128, help='dimension of the embeddings')
    group.add_argument('--cascade', nargs='+', type=POSITIVE_INT, default=[], metavar='N',
                       help='numbers of blocks of the backbone, counted as by --freeze, after which further embeddings '
                            'are computed (Yuan et al.); the network returns the concatenation of these and of the '
                            'last embedding, each with an equal part of --embed_dim; each is trained with the pairs or '
                            'triplets that are hardest in the embedding before it; by default there is only the last '
                            'embedding')
    group.add_argument('--embed_layers', nargs='*', type=POSITIVE_INT, default=[],
                       help='widths of hidden layers between the backbone and the embedding; by default there are none')
    group.add_argument('--pool', choices=pooling.POOLINGS,
                       help='pooling of the backbone; avg, max, avg_max, gem: mean, maximum, sum of both, or '
                            'generalised mean with a trainable exponent of the last feature maps of a convolutional '
                            'network; token, patches, token_patches: class token, mean of the patch tokens, or both, '
                            "of a ViT; the default is the network's own pooling")
    group.add_argument('--embed_norm', choices=['none', *embedding_layer.NORMS], default='none',
                       help='normalisation layer between the pooled features and the embedding layer; layer: '
                            'LayerNorm; batch: BatchNorm, whose statistics are updated even in a _frozen network')
    switch(group, '--embed_norm_affine', help='give the layer of --embed_norm a trainable scale and shift')
    switch(group, '--embed_bias', default=True,
           help='whether the embedding layer has a bias; --embed_bias false removes it')
    group.add_argument('--embed_init', choices=['default', *embedding_layer.INITS, *embedding_layer.FITTED],
                       default='default',
                       help="initial weights of the embedding layer; default: torch's random ones; orthogonal: random "
                            'orthogonal rows, with biases 0; kaiming: normally distributed with standard deviation '
                            '(2 / --embed_dim)^(1/2), with biases 0; identity: the first --embed_dim features, with '
                            'biases 0; pca, lda: the principal components or the linear discriminants of the features '
                            'of the training images; with --n_epochs 0, these are the baselines of linear adaptation')
    group.add_argument('--embed_lda_shrinkage', type=FRACTION, default=0.1,
                       help='--embed_init lda: weight of a multiple of the identity in the within-class covariance')
    group.add_argument('--freeze', type=frozen_part, default='none', metavar='none|backbone|stem|N',
                       help='part of the backbone that is not trained, whose BatchNorm statistics are fixed and which '
                            'has no dropout; stem: the first layer or the patch embedding; N: the stem and the first '
                            'N blocks; the default, none, trains all parameters')
    switch(group, '--keep_features', default=True,
           help='with --freeze backbone: compute the pooled features of the backbone once and keep them in memory, if '
                'this does not change the results; --keep_features false computes them in each epoch')
    group.add_argument('--lora_rank', type=COUNT, default=0,
                       help='rank of the adapters (LoRA) in the attention layers of a ViT, which are trained instead '
                            'of the weights of the backbone; 0 means no adapters')
    switch(group, '--not_pretrained', help='start from random instead of pretrained weights')
    group.add_argument('--weights', metavar='FILE',
                       help='file with pretrained weights of the backbone, a state dict; by default they are '
                            'downloaded')
    group.add_argument('--input_size', type=POSITIVE_INT,
                       help='height and width of the input images in pixels; by default as the network expects')
    group.add_argument('--input_mean', nargs='+', type=REAL,
                       help='mean of the input images per channel, for values in [0, 1]; by default as the network '
                            'expects')
    group.add_argument('--input_std', nargs='+', type=POSITIVE,
                       help='standard deviation of the input images per channel; by default as the network expects')
    switch(group, '--input_bgr',
           help='whether the channels are in the order blue, green, red; by default as the network '
                'expects', default=None)


def training_parameters(parser):
    group = parser.add_argument_group('training')
    group.add_argument('--n_epochs', type=COUNT, default=150,
                       help='number of training epochs; 0 only evaluates the untrained network')
    group.add_argument('--iterations_per_epoch', type=COUNT, default=0,
                       help='number of batches per epoch; 0 leaves it to the sampler, usually training images // --bs')
    group.add_argument('--bs', type=POSITIVE_INT, default=112,
                       help='number of images per batch; with --views N, each image counts N times')
    group.add_argument('--micro_bs', type=COUNT, default=0,
                       help='largest number of images that a process embeds at once; a larger batch is embedded in '
                            'pieces, twice, so that the memory of one piece is enough; the loss is that of the whole '
                            'batch; 0 means that the whole batch is embedded at once')
    group.add_argument('--amp', choices=['none', 'bfloat16', 'float16'], default='none',
                       help='mixed precision of the network in training; none: float32; losses are always computed in '
                            'float32')
    switch(group, '--compile', help='compile the network for training with torch.compile')
    group.add_argument('--clip_grad', type=POSITIVE,
                       help='largest norm of the gradient of all parameters; a gradient with a larger norm is scaled '
                            'down to this norm; by default there is no limit')
    group.add_argument('--clip_grad_value', type=POSITIVE,
                       help='largest absolute value of an element of a gradient; larger elements are set to it, after '
                            '--clip_grad; by default there is no limit')
    group.add_argument('--lr', type=NOT_NEGATIVE, default=0.00001, help='learning rate of the network')
    group.add_argument('--fc_lr', type=REAL, default=-1.0,
                       help='learning rate of the embedding layer; a negative value means --lr')
    group.add_argument('--decay', type=NOT_NEGATIVE, default=0.0004, help='weight decay of the network')
    group.add_argument('--layer_decay', type=FRACTION, default=1.0,
                       help='learning rate of each block of the backbone, as a multiple of that of the block after '
                            'it; the last block has --lr; 1 means the same rate for all blocks')
    group.add_argument('--decay_exclude', nargs='*', choices=['norms', 'biases'], default=[],
                       help='parameters of the network without weight decay; norms: those of normalisation layers; '
                            'biases: all biases; by default all parameters have --decay')
    group.add_argument('--loss_decay', type=NOT_NEGATIVE, default=0.0,
                       help='weight decay of the parameters of the loss')
    group.add_argument('--optim', choices=['adam', 'adamw', 'sgd', 'rmsprop'], default='adam', help='optimizer')
    group.add_argument('--adam_eps', type=POSITIVE, default=1e-8,
                       help='added to the denominator in the optimizers adam and adamw')
    group.add_argument('--adam_betas', nargs=2, type=number(float, 0, 0.9999999), default=[0.9, 0.999],
                       help='decays of the moving averages of gradients and squared gradients in the optimizers adam '
                            'and adamw')
    group.add_argument('--momentum', type=FRACTION, default=0.9, help='momentum of the optimizers sgd and rmsprop')
    group.add_argument('--scheduler', choices=['none', 'step', 'cosine', 'onecycle'], default='step',
                       help='schedule of all learning rates; step: multiplied by --gamma after each epoch in --tau; '
                            'cosine: annealed to --lr_floor over --n_epochs, changed after each epoch; onecycle: '
                            'raised from 1/25 of the rates to the rates, until --onecycle_peak of all steps, then '
                            'annealed to --lr_floor, changed in each step')
    group.add_argument('--lr_floor', type=FRACTION, default=0.0,
                       help='cosine and onecycle: last value of the learning rates, as a fraction of the rates')
    group.add_argument('--cosine_delay', type=COUNT, default=0,
                       help='cosine: number of epochs at the start that the annealing over --n_epochs does not count')
    group.add_argument('--onecycle_peak', type=FRACTION, default=0.3,
                       help='onecycle: fraction of all steps after which the learning rates are highest')
    group.add_argument('--lr_warmup', type=COUNT, default=0,
                       help='number of epochs or steps at the start of the training in which all learning rates are '
                            'raised in proportion to the number of the step, in addition to --scheduler; 0 means no '
                            'warm-up')
    group.add_argument('--lr_warmup_unit', choices=['epochs', 'steps'], default='epochs', help='unit of --lr_warmup')
    group.add_argument('--ema', type=FRACTION, metavar='DECAY',
                       help='decay per step of an exponential moving average of the weights; the averaged network is '
                            'evaluated and saved in addition to the network; by default there is no average')
    group.add_argument('--gamma', type=NOT_NEGATIVE, default=0.3,
                       help='factor of the learning rates in the step schedule')
    group.add_argument('--tau', nargs='+', type=POSITIVE_INT, default=[1000],
                       help='epochs after which the step schedule multiplies the learning rates by --gamma')
    group.add_argument('--warmup', type=COUNT, default=0,
                       help='number of epochs at the start in which only the embedding layer and the loss are '
                            'trained, and the backbone with its BatchNorm statistics stays as it is; 0 means none')
    group.add_argument('--patience', type=POSITIVE_INT,
                       help='stop when the best epoch, by the first storage metric on the validation split, is more '
                            'than this many epochs ago; by default a run does not stop early')


def batch_creation_parameters(parser):
    group = parser.add_argument_group('batch creation')
    group.add_argument('--data_sampler', default='class_random', help=f'batch sampler, one of {", ".join(SAMPLERS)}')
    group.add_argument('--samples_per_class', type=POSITIVE_INT, default=2,
                       help='number of images per class in a batch')
    group.add_argument('--views', metavar='N', type=POSITIVE_INT, default=1,
                       help='number of times that each image is in its batch, each time with its own augmentation; '
                            '--bs counts all of them and must be divisible by N')
    switch(group, '--unsupervised',
           help='make each training image a class of its own for the loss, the miner and the sampler, instead of using '
                'its label; --samples_per_class is then 1, and evaluation uses the labels')
    switch(group, '--data_cover_epoch', help='class_random: visit every class once per epoch')
    group.add_argument('--data_hierarchical_superclasses', type=POSITIVE_INT, default=2,
                       help='hierarchical: number of super-classes per batch; more are used if these have too few '
                            'classes')
    group.add_argument('--data_batchmatch_bigbs', type=POSITIVE_INT, default=512,
                       help='coreset and batchmatch samplers: number of images in the big batch that a batch is '
                            'selected from')
    group.add_argument('--data_batchmatch_ncomps', type=POSITIVE_INT, default=10,
                       help='batchmatch samplers: number of candidates per batch')
    switch(group, '--data_storage_no_update',
           help='do not update the memory bank with the embeddings of the training batches')
    group.add_argument('--data_d2_coreset_lambda', type=REAL, default=1.0,
                       help='d2_coreset: exponent of the distance to the anchors chosen before; a larger value spreads '
                            'the anchors')
    group.add_argument('--data_gc_coreset_lim', type=REAL, default=1e-9,
                       help='greedy_coreset: images within this distance of an anchor count as covered and are chosen '
                            'last')
    group.add_argument('--data_sampler_lowproj_dim', type=WHOLE, default=-1,
                       help='dimension of a random projection of the embeddings in the memory bank; -1 means no '
                            'projection')
    group.add_argument('--data_sim_measure', choices=['euclidean', 'cosine'], default='euclidean',
                       help='distance between embeddings of the memory bank; cosine: Euclidean after L2 normalisation')
    switch(group, '--data_gc_softened',
           help='greedy_coreset: choose each anchor at random from the farthest 3 percent of the images')
    switch(group, '--data_idx_full_prec', help='recompute the whole memory bank before each epoch')
    group.add_argument('--data_mb_mom', type=REAL, default=-1.0,
                       help='momentum of the changes of the embeddings in the memory bank; -1 means no momentum')
    group.add_argument('--data_mb_lr', type=REAL, default=1.0,
                       help='with --data_mb_mom: factor of the change that is added to each new embedding')


def batch_mining_parameters(parser):
    group = parser.add_argument_group('batch mining')
    group.add_argument('--batch_mining', default='distance',
                       help=f'miner, one of {", ".join(BATCHMINERS)}, or pml:NAME for a class of '
                            'pytorch-metric-learning')
    for miner in ('distance', 'rho_distance'):
        group.add_argument(f'--miner_{miner}_lower_cutoff', type=number(float, 0, 2), default=0.5,
                           help='smaller distances are treated as equal to this one')
        group.add_argument(f'--miner_{miner}_upper_cutoff', type=NOT_NEGATIVE, default=1.4,
                           help='without effect; kept for compatibility with the public code')
    group.add_argument('--miner_distance_positives', choices=['one', 'all'], default='one',
                       help='positives of each anchor in the miners distance and random_distance; one: a random one, '
                            'as in the public code of Roth et al.; all: every positive, each with its own negative, '
                            'as in Wu et al.')
    group.add_argument('--miner_rho_distance_cp', type=FRACTION, default=0.2,
                       help='probability that a triplet pushes a positive away from the anchor, in place of a negative')
    group.add_argument('--miner_semihard_margin', type=POSITIVE,
                       help='width of the window of semi-hard negatives, a difference of squared distances; by default '
                            'the margin of the loss in its own unit, or 0.2 for a loss without one')
    group.add_argument('--miner_easyhard_pos', choices=['easy', 'hard'], default='easy',
                       help='positive to choose; easy: the nearest; hard: the farthest')
    group.add_argument('--miner_easyhard_neg', choices=['semihard', 'hard'], default='semihard',
                       help='negative to choose; hard: the nearest; semihard: the nearest of those farther than the '
                            'positive')
    group.add_argument('--miner_multisimilarity_epsilon', type=REAL, default=0.1,
                       help='margin of the pair mining, in cosine similarity')
    add = group.add_argument
    add('--miner_parametric_mode', choices=['uniform', 'hards', 'semihards', 'veryhards'], default='uniform',
        help='without --miner_parametric_adapt: distances of the sampled negatives; uniform: all; hards: up to 0.5; '
             'semihards: 0.3 to 0.7; veryhards: up to 0.3')
    add('--miner_parametric_n_support', type=number(int, 2), default=30, help='number of edges of the distance bins')
    add('--miner_parametric_support_lim', nargs=2, type=NOT_NEGATIVE, default=[0.1, 1.4],
        help='first and last edge of the distance bins; the outer bins also cover all distances beyond')
    switch(group, '--miner_parametric_adapt',
           help='PADS: a policy adapts the distribution of negatives during training, learning from validation '
                'metrics; needs --use_tv_split')
    add('--miner_parametric_init', choices=['uniform_low', 'uniform', 'hards', 'semihards', 'veryhards'],
        default='uniform_low',
        help='PADS: initial distribution of negatives, as for --miner_parametric_mode; uniform_low: 0.3 to 0.7')
    add('--miner_parametric_update_every', type=POSITIVE_INT, default=30,
        help='PADS: number of training steps between two updates of the distribution')
    add('--miner_parametric_actions', nargs='+', type=POSITIVE, default=[0.8, 1.0, 1.25],
        help="PADS: factors of a bin's weight that the policy chooses from")
    add('--miner_parametric_policy_lr', type=NOT_NEGATIVE, default=0.01, help='PADS: learning rate of the policy')
    add('--miner_parametric_policy_size', nargs='+', type=POSITIVE_INT, default=[128, 128],
        help='PADS: widths of the hidden layers of the policy')
    add('--miner_parametric_history', type=POSITIVE_INT, default=20,
        help='PADS: number of past validations in the state that the policy sees')
    add('--miner_parametric_reward', choices=['recall_nmi', 'recall'], default='recall_nmi',
        help='PADS: the reward is the sign of the change, since the last update, of recall@1 or of its mean with NMI')
    add('--miner_parametric_learning', choices=['ppo', 'reinforce'], default='ppo',
        help='PADS: how the policy learns; ppo: PPO with a value head; reinforce: REINFORCE with the moving average '
             'of the rewards as baseline')
    add('--miner_parametric_ppo_clip', type=FRACTION, default=0.2,
        help='PADS: clipping range of the probability ratio in PPO')
    add('--miner_parametric_old_update', type=POSITIVE_INT, default=5,
        help='PADS: number of policy updates between two updates of the old policy in PPO')
    add('--miner_parametric_baseline_rate', type=FRACTION, default=0.05,
        help='PADS: rate of the moving average of the rewards in REINFORCE')
    switch(group, '--miner_parametric_no_self_reg',
           help='PADS: sample negatives from other classes only, and never the anchor as its own positive')
    group.add_argument('--miner_pml_args', nargs='+', type=yaml_mapping, default=[], metavar='YAML',
                       help="arguments of pml:NAME as YAML, such as '{epsilon: 0.2}'; one mapping for each such "
                            'miner, or one for all')


def loss_parameters(parser):
    group = parser.add_argument_group('losses')
    group.add_argument('--loss', default='margin',
                       help=f'loss, one of {", ".join(CRITERIA)}, or pml:NAME for a class of pytorch-metric-learning; '
                            'a+b is a sum of losses, whose miners are --batch_mining c+d')
    add = group.add_argument
    add('--loss_weights', nargs='+', type=REAL, default=[],
        help='weights of the losses in a sum of losses; by default 1 each')
    add('--dr_weight', type=NOT_NEGATIVE, default=0.0,
        help='weight of direction regularisation (Mohan et al.) for any loss that takes a miner; 0 means none')
    add('--cascade_fractions', nargs='+', type=FRACTION, default=[0.5, 0.2],
        help='for each number in --cascade, the fraction of the pairs or triplets of the first embedding that the '
             'further embedding is trained with; these are the hardest ones in the embedding before it')
    switch(group, '--daml',
           help='deep adversarial metric learning (Duan et al.) for any loss that takes a miner of triplets: a '
                'generator makes a hard negative for each triplet')
    add('--daml_weight', type=NOT_NEGATIVE, default=1.0,
        help='--daml: weight of the loss of the triplets with synthetic negatives (lambda in the paper)')
    add('--daml_real_weight', type=NOT_NEGATIVE, default=1.0,
        help='--daml: weight of the loss of the mined triplets; 0 means that only synthetic negatives are used')
    add('--daml_reg_weight', type=NOT_NEGATIVE, default=1.0,
        help='--daml: weight of the squared distance between the features of a synthetic negative and of the negative '
             'that it replaces, in the objective of the generator (lambda_1 in the paper)')
    add('--daml_adv_weight', type=NOT_NEGATIVE, default=50.0,
        help='--daml: weight of the term that makes synthetic negatives violate the margin, in the objective of the '
             'generator (lambda_2 in the paper)')
    add('--daml_margin', type=REAL, default=0.2,
        help='--daml: margin in the term of --daml_adv_weight, a squared distance of embeddings')
    add('--daml_layers', nargs='*', type=POSITIVE_INT, default=[512, 512],
        help='--daml: widths of the hidden layers of the generator')
    add('--daml_lr', type=REAL, default=-1.0,
        help='--daml: learning rate of the generator; a negative value means --lr')
    add('--daml_delay', type=COUNT, default=0,
        help='--daml: number of batches before the loss of the triplets with synthetic negatives is used; the '
             'generator is trained from the first batch')
    add('--xbm_size', type=COUNT, default=0,
        help='number of embeddings in the cross-batch memory bank; 0 means no memory bank')
    add('--xbm_weight', type=NOT_NEGATIVE, default=1.0,
        help='weight of the loss on pairs of a sample and an entry of the memory bank')
    add('--xbm_start', type=COUNT, default=1000, help='number of batches before the memory bank is used')
    add('--distill', metavar='RUN_FOLDER|ema',
        help='teacher, whose similarities between the images of a batch are distilled into the trained network, in '
             'addition to the loss (S2SD): a run folder, whose last network is used, or a checkpoint file; both stay '
             'fixed; or ema, the moving average of the weights (--ema); by default there is no teacher')
    add('--distill_w', type=NOT_NEGATIVE, default=50.0, help='weight of the distillation; 0 means no teacher')
    add('--distill_T', type=POSITIVE, default=1.0,
        help='temperature of the distillation; cosine similarities are divided by it')
    add('--class_sample_rate', type=number(float, 0, 1, above=True), default=1.0,
        help='softmax, arcface, cosface, subcenter_arcface: fraction of the training classes whose class weights are '
             'used in a step (partial softmax), which are the classes of the batch and a random sample of the others; '
             '1 means all classes')
    add('--loss_pml_args', nargs='+', type=yaml_mapping, default=[], metavar='YAML',
        help="arguments of pml:NAME as YAML, such as '{margin: 0.1, distance: {LpDistance: {power: 2}}}'; one mapping "
             'for each such loss, or one for all')
    add('--loss_pml_lr', type=REAL, default=-1.0,
        help='learning rate of the parameters of pml:NAME; a negative value means --lr')
    add('--loss_contrastive_pos_margin', type=REAL, default=0.0, help='distance below which positive pairs add no loss')
    add('--loss_contrastive_neg_margin', type=REAL, default=1.0, help='distance above which negative pairs add no loss')
    switch(group, '--loss_contrastive_active_only',
           help='average over the pairs with a non-zero loss only (Musgrave et al.)')
    add('--loss_triplet_margin', type=REAL, default=0.2,
        help='margin, in units of distance to the power --loss_triplet_power')
    add('--loss_triplet_power', type=POSITIVE, default=2.0,
        help='exponent of the distances: 2 for squared, 1 for plain distances as in Musgrave et al.')
    switch(group, '--loss_triplet_active_only', help='average over the margin-violating triplets only')
    add('--loss_margin_margin', type=REAL, default=0.2, help='margin on either side of beta, in units of distance')
    add('--loss_margin_beta', type=REAL, default=1.2,
        help='initial value of beta, the distance that separates positive from negative pairs')
    add('--loss_margin_beta_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of beta')
    add('--loss_margin_nu', type=REAL, default=0.0,
        help='weight of the regularisation that keeps beta small; 0 means none')
    switch(group, '--loss_margin_beta_constant', help='do not train beta')
    switch(group, '--loss_margin_beta_shared', help='use one beta for all classes instead of one per class')
    add('--loss_proxynca_lrmulti', type=NOT_NEGATIVE, default=50.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_proxynca_scale', type=POSITIVE, default=3.0, help='norm that embeddings and proxies are scaled to')
    add('--loss_npair_negatives', choices=['all', 'pairs'], default='all',
        help='negatives of an anchor; all: all samples of other classes; pairs: as in the paper, one pair per class, '
             'with the positives of the other pairs as negatives')
    add('--loss_npair_l2', type=NOT_NEGATIVE, default=0.005, help='weight of the mean norm of the embeddings')
    add('--loss_angular_alpha', type=REAL, default=45.0, help='upper bound of the angle at the negative, in degrees')
    add('--loss_angular_npair_ang_weight', type=REAL, default=2.0,
        help='weight of the angular loss, which is added to the N-pair loss')
    add('--loss_angular_npair_l2', type=NOT_NEGATIVE, default=0.005, help='weight of the mean norm of the embeddings')
    add('--loss_multisimilarity_pos_weight', type=POSITIVE, default=2.0,
        help='sharpness of the loss on positive pairs (alpha in the paper)')
    add('--loss_multisimilarity_neg_weight', type=POSITIVE, default=40.0,
        help='sharpness of the loss on negative pairs (beta in the paper)')
    add('--loss_multisimilarity_margin', type=REAL, default=0.1,
        help='margin of the pair mining, in cosine similarity; 2 or more means no mining')
    add('--loss_multisimilarity_thresh', type=REAL, default=0.5,
        help='cosine similarity that separates positive from negative pairs')
    add('--loss_lifted_neg_margin', type=REAL, default=1.0, help='distance that negatives should have at least')
    add('--loss_lifted_l2', type=NOT_NEGATIVE, default=0.005, help='weight of the mean norm of the embeddings')
    add('--loss_liftedstructure_neg_margin', type=REAL, default=1.0,
        help='distance that negatives should have at least')
    add('--loss_liftedstructure_l2', type=NOT_NEGATIVE, default=0.0,
        help='weight of the mean norm of the embeddings; 0 means none')
    add('--loss_quadruplet_margin_alpha_1', type=REAL, default=0.2,
        help='margin between the distances of the positive and of the negative pair of a triplet')
    add('--loss_quadruplet_margin_alpha_2', type=REAL, default=0.2,
        help='margin between the distance of the positive pair and that of two samples of two other classes')
    add('--loss_softtriplet_n_centroids', type=POSITIVE_INT, default=2, help='number of centres per class')
    add('--loss_softtriplet_margin_delta', type=REAL, default=0.01,
        help='margin, subtracted from the similarity to the own class')
    add('--loss_softtriplet_gamma', type=POSITIVE, default=0.1,
        help='temperature of the soft assignment to the centres of a class')
    add('--loss_softtriplet_lambda', type=REAL, default=8.0, help='factor of the similarities')
    add('--loss_softtriplet_reg_weight', type=NOT_NEGATIVE, default=0.2,
        help='weight of the regulariser that pulls the centres of a class together')
    add('--loss_softtriplet_lrmulti', type=NOT_NEGATIVE, default=1.0,
        help='learning rate of the centres, as a multiple of --lr')
    add('--loss_softmax_lr', type=NOT_NEGATIVE, default=0.00001, help='learning rate of the class weights')
    add('--loss_softmax_temperature', type=POSITIVE, default=0.05,
        help='temperature; cosine similarities are divided by it')
    add('--loss_histogram_nbins', type=number(int, 2), default=65,
        help='number of histogram nodes for cosine similarities from -1 to 1')
    add('--loss_snr_margin', type=REAL, default=0.2,
        help='margin, in units of the ratio of noise variance to signal variance')
    add('--loss_snr_reg_lambda', type=NOT_NEGATIVE, default=0.005,
        help='weight of the term that pulls the mean of each embedding to zero')
    add('--loss_arcface_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the class weights')
    add('--loss_arcface_angular_margin', type=REAL, default=0.5,
        help='margin, added to the angle to the own class, in radians')
    add('--loss_arcface_feature_scale', type=REAL, default=16.0, help='factor of the cosine similarities')
    add('--loss_proxyanchor_margin', type=REAL, default=0.1, help='margin, in cosine similarity')
    add('--loss_proxyanchor_alpha', type=POSITIVE, default=32.0,
        help='sharpness of the loss on positive and negative pairs')
    add('--loss_proxyanchor_lrmulti', type=NOT_NEGATIVE, default=100.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_ntxent_temperature', type=POSITIVE, default=0.07,
        help='temperature; cosine similarities are divided by it')
    add('--loss_cosface_margin', type=REAL, default=0.35,
        help='margin, subtracted from the cosine similarity to the own class')
    add('--loss_cosface_scale', type=POSITIVE, default=64.0, help='factor of the cosine similarities')
    add('--loss_cosface_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the class weights')
    add('--loss_fastap_nbins', type=POSITIVE_INT, default=10,
        help='number of histogram bins for squared distances from 0 to 4')
    add('--loss_snr_contrastive_pos_margin', type=REAL, default=0.0,
        help='ratio of variances below which positive pairs add no loss')
    add('--loss_snr_contrastive_neg_margin', type=REAL, default=1.0,
        help='ratio of variances above which negative pairs add no loss')
    add('--loss_snr_contrastive_reg_lambda', type=NOT_NEGATIVE, default=0.0,
        help='weight of the term that pulls the mean of each embedding to zero; 0 means none')
    add('--loss_dr_triplet_margin', type=REAL, default=0.278, help='margin, in units of distance')
    add('--loss_dr_triplet_gamma', type=NOT_NEGATIVE, default=0.492,
        help='weight of direction regularisation; 0 means none')
    add('--loss_dr_proxynca_gamma', type=NOT_NEGATIVE, default=0.3,
        help='weight of direction regularisation; 0 means none')
    add('--loss_dr_proxynca_scale', type=NOT_NEGATIVE, default=0.0,
        help='norm that embeddings and proxies are scaled to, with squared distances as in proxynca; 0 means no '
             'scaling and plain distances, as published')
    add('--loss_dr_proxynca_lrmulti', type=NOT_NEGATIVE, default=50.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_dr_multisimilarity_pos_weight', type=POSITIVE, default=2.0,
        help='sharpness of the loss on positive pairs (alpha in the paper)')
    add('--loss_dr_multisimilarity_neg_weight', type=POSITIVE, default=50.0,
        help='sharpness of the loss on negative pairs (beta in the paper)')
    add('--loss_dr_multisimilarity_margin', type=REAL, default=0.1,
        help='margin of the pair mining, in cosine similarity; 2 or more means no mining')
    add('--loss_dr_multisimilarity_thresh', type=REAL, default=0.6,
        help='cosine similarity that separates positive from negative pairs')
    add('--loss_dr_multisimilarity_gamma', type=NOT_NEGATIVE, default=0.28,
        help='weight of direction regularisation; 0 means none')
    add('--loss_proxynca_pp_scale', type=POSITIVE, default=3.0, help='norm that embeddings and proxies are scaled to')
    add('--loss_proxynca_pp_lrmulti', type=NOT_NEGATIVE, default=50.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_circle_margin', type=REAL, default=0.4, help='relaxation margin, in cosine similarity')
    add('--loss_circle_gamma', type=POSITIVE, default=80.0, help='factor of the weighted similarities')
    add('--loss_supcon_temperature', type=POSITIVE, default=0.1,
        help='temperature; cosine similarities are divided by it')
    add('--loss_subcenter_arcface_n_centers', type=POSITIVE_INT, default=3, help='number of centres per class')
    add('--loss_subcenter_arcface_angular_margin', type=REAL, default=0.5,
        help='margin, added to the angle to the own class, in radians')
    add('--loss_subcenter_arcface_feature_scale', type=POSITIVE, default=64.0, help='factor of the cosine similarities')
    add('--loss_subcenter_arcface_lr', type=NOT_NEGATIVE, default=0.0005, help='learning rate of the centres')
    add('--loss_smoothap_temperature', type=POSITIVE, default=0.01,
        help='temperature of the sigmoids that compare cosine similarities')
    add('--loss_recallatk_k', nargs='+', type=POSITIVE_INT, default=[1, 2, 4, 8, 16],
        help='values of k; those above the batch size are replaced by it')
    add('--loss_recallatk_k_temperature', type=POSITIVE, default=1.0,
        help='temperature of the sigmoids that compare ranks with k')
    add('--loss_recallatk_rank_temperature', type=POSITIVE, default=0.01,
        help='temperature of the sigmoids that compare cosine similarities')
    switch(group, '--loss_recallatk_simix',
           help='add virtual samples, random mixtures of two samples of a class (SiMix)')
    add('--loss_roadmap_tau', type=POSITIVE, default=0.01,
        help='temperature of the smooth step function that compares cosine similarities')
    add('--loss_roadmap_rho', type=NOT_NEGATIVE, default=100.0,
        help='slope of the step function beyond --loss_roadmap_delta')
    add('--loss_roadmap_delta', type=NOT_NEGATIVE, default=0.05,
        help='difference of cosine similarities beyond which the step function is linear')
    add('--loss_roadmap_offset', type=REAL, default=-1.0,
        help='value of the step function just beyond --loss_roadmap_delta; a negative value makes it continuous')
    add('--loss_roadmap_lambda', type=FRACTION, default=0.5,
        help='weight of the calibration loss; the ranking loss has 1 minus this weight')
    add('--loss_roadmap_pos_margin', type=REAL, default=0.9,
        help='calibration loss: cosine similarity that positives should have at least')
    add('--loss_roadmap_neg_margin', type=REAL, default=0.6,
        help='calibration loss: cosine similarity that negatives should have at most')
    add('--loss_hyperbolic_c', type=NOT_NEGATIVE, default=0.1,
        help='curvature of the hyperbolic space; 0 means the sphere, with cosine similarities')
    add('--loss_hyperbolic_temperature', type=POSITIVE, default=0.2, help='temperature; distances are divided by it')
    add('--loss_hyperbolic_clip_r', type=NOT_NEGATIVE, default=2.3,
        help='norm to which longer embeddings are clipped; 0 means no clipping')
    add('--loss_linear_classifier_lr', type=NOT_NEGATIVE, default=0.00001,
        help='learning rate of the class weights and biases')
    add('--loss_tcm_margin_pos', type=REAL, default=0.9,
        help='margin of positive pairs; those with a cosine similarity up to it add to the loss')
    add('--loss_tcm_margin_neg', type=REAL, default=0.5,
        help='margin of negative pairs; those with a cosine similarity from it on add to the loss')
    add('--loss_tcm_weight_pos', type=NOT_NEGATIVE, default=1.0, help='weight of the term of the positive pairs')
    add('--loss_tcm_weight_neg', type=NOT_NEGATIVE, default=1.0, help='weight of the term of the negative pairs')
    add('--loss_s2sd_source', default='multisimilarity', help='name of the loss of the embeddings, as for --loss')
    add('--loss_s2sd_target', default='multisimilarity',
        help='name of the loss of the larger embeddings, as for --loss')
    add('--loss_s2sd_T', type=POSITIVE, default=1.0,
        help='temperature of the distillation; cosine similarities are divided by it')
    add('--loss_s2sd_w', type=NOT_NEGATIVE, default=50.0,
        help='weight of the distillation from the larger embeddings')
    switch(group, '--loss_s2sd_pool_aggr',
           help='compute the larger embeddings from the sum of the mean and the maximum of the last feature maps; by '
                'default they are computed from the pooled features of the network')
    add('--loss_s2sd_target_dims', nargs='+', type=POSITIVE_INT, default=[512, 1024, 1536, 2048],
        help='dimensions of the larger embeddings')
    switch(group, '--loss_s2sd_feat_distill',
           help='add the distillation from the features; by default only that from the larger embeddings is used')
    add('--loss_s2sd_feat_w', type=NOT_NEGATIVE, default=50.0, help='weight of the distillation from the features')
    add('--loss_s2sd_feat_distill_delay', type=COUNT, default=1000,
        help='number of batches before the distillation from the features begins')
    add('--loss_oproxy_mode', choices=['anchor', 'nca'], default='anchor',
        help='what the sums in the logarithms are over; anchor: the samples of the batch, as in proxyanchor; nca: the '
             'proxies, as in proxynca_pp')
    add('--loss_oproxy_pos_alpha', type=POSITIVE, default=32.0,
        help='scale of the cosine similarities of positive pairs; also for nir')
    add('--loss_oproxy_neg_alpha', type=POSITIVE, default=32.0,
        help='scale of the cosine similarities of negative pairs; also for nir')
    add('--loss_oproxy_pos_delta', type=REAL, default=0.1,
        help='cosine similarity that positives should have at least; also for nir')
    add('--loss_oproxy_neg_delta', type=REAL, default=-0.1,
        help='cosine similarity that negatives should have at most; also for nir')
    add('--loss_oproxy_lrmulti', type=NOT_NEGATIVE, default=2000.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_nir_w_align', type=NOT_NEGATIVE, default=0.01,
        help='weight of the proxy loss; the weight of the non-isotropy regularisation is 1')
    add('--loss_nir_proxy_lrmulti', type=NOT_NEGATIVE, default=4000.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_nir_lrmulti', type=NOT_NEGATIVE, default=50.0,
        help='learning rate of the normalising flow, as a multiple of --lr')
    add('--loss_nir_noise', type=NOT_NEGATIVE, default=0.0,
        help='scale of the uniform noise that is added to the embeddings before the flow; 0 means no noise')
    add('--loss_nir_nf_cond_mode', default='dense', choices=[
        'dense', 'dense_embed', 'dense_embed_multi', 'dense_embed_multi_stacked', 'start', 'mid', 'end'],
        help='which blocks of the flow get the proxy as a condition; dense: all blocks; dense_embed: all, after an '
             'MLP; dense_embed_multi: all, each after its own MLP; dense_embed_multi_stacked: all, each after the MLPs '
             'of all blocks up to it; start, mid, end: only the first, the middle or the last block')
    add('--loss_nir_nf_fc_depth', type=number(int, 2), default=8, help='number of linear layers in an MLP of the flow')
    add('--loss_nir_nf_fc_width', type=POSITIVE_INT, default=128, help='width of the MLPs of the flow')
    add('--loss_nir_nf_cblocks', type=POSITIVE_INT, default=5, help='number of blocks of the flow')
    add('--loss_nir_nf_clamp_alpha', type=POSITIVE, default=2.0,
        help='limit of the absolute logarithm of the scales in the flow')
    add('--loss_nir_nf_fc_init', choices=['none', 'xavier'], default='none',
        help="initial weights of the MLPs; none: torch's default; xavier: Xavier initialisation, except in the first "
             'layer of each MLP')
    for name, default in (('logmatch', 1.0), ('pos_alpha', 1.0), ('neg_alpha', 1.0), ('margin', 0.1), ('delta', 0.2),
                          ('pair_perc', 1.0), ('nf_fc_dropout', 0.0)):
        add(f'--loss_nir_{name}', type=REAL, default=default,
            help='without effect; kept for compatibility with the public code')
    add('--loss_hier_n_proxies', type=POSITIVE_INT, default=512, help='number of hierarchical proxies')
    add('--loss_hier_k', type=POSITIVE_INT, default=20,
        help='number of nearest neighbours; two points are related if each is among the nearest neighbours of the '
             'other; should be less than --bs')
    add('--loss_hier_margin', type=REAL, default=0.1, help='margin, a hyperbolic distance')
    add('--loss_hier_temperature', type=POSITIVE, default=0.1,
        help='temperature of the softmax that selects the nearest common ancestor; distances are divided by it')
    add('--loss_hier_c', type=POSITIVE, default=0.1, help='curvature of the hyperbolic space')
    add('--loss_hier_clip_r', type=NOT_NEGATIVE, default=2.3,
        help='norm to which longer embeddings and proxies are clipped; 0 means no clipping')
    add('--loss_hier_n_triplets', type=POSITIVE_INT, default=50,
        help='number of triplets that are sampled for each anchor')
    add('--loss_hier_lrmulti', type=NOT_NEGATIVE, default=50.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_pfml_n_proxies', type=POSITIVE_INT, default=15, help='number of proxies per class')
    add('--loss_pfml_alpha', type=NOT_NEGATIVE, default=4.0,
        help='exponent of the potentials, which are proportional to 1 / distance^alpha')
    add('--loss_pfml_delta', type=POSITIVE, default=0.2,
        help='Euclidean distance below which points of the same class do not attract each other, and above which '
             'points of different classes do not repel each other')
    add('--loss_pfml_lrmulti', type=NOT_NEGATIVE, default=100.0,
        help='learning rate of the proxies, as a multiple of --lr')
    add('--loss_happier_alpha', type=NOT_NEGATIVE, default=1.0, help='exponent of the relevance of a level')
    add('--loss_happier_tau', type=POSITIVE, default=0.01,
        help='temperature of the smooth step function that compares cosine similarities')
    add('--loss_happier_rho', type=NOT_NEGATIVE, default=100.0,
        help='slope of the step function beyond --loss_happier_delta')
    add('--loss_happier_delta', type=NOT_NEGATIVE, default=0.05,
        help='difference of cosine similarities beyond which the step function is linear')
    add('--loss_happier_offset', type=REAL, default=-1.0,
        help='value of the step function just beyond --loss_happier_delta; with a negative value, the value that makes '
             'the function continuous is used')
    add('--loss_happier_lambda', type=FRACTION, default=0.1,
        help='weight of the clustering loss, a cross entropy over the classes; the weight of the ranking loss is 1 '
             'minus this value')
    add('--loss_happier_temperature', type=POSITIVE, default=0.05, help='temperature of the clustering loss')
    add('--loss_happier_lr', type=NOT_NEGATIVE, default=0.00002, help='learning rate of the class weights')


def evaluation_parameters(parser):
    group = parser.add_argument_group('evaluation')
    group.add_argument('--evaluation_metrics', nargs='+', metavar='METRIC', default=[
        'e_recall@1', 'e_recall@2', 'e_recall@4', 'nmi', 'f1', 'mAP_1000', 'mAP_lim', 'mAP_c',
        'dists@intra', 'dists@inter', 'dists@intra_over_inter',
        'rho_spectrum@0', 'rho_spectrum@-1', 'rho_spectrum@1', 'rho_spectrum@2', 'rho_spectrum@10',
        'map_at_r', 'precision_at_1', 'r_precision'],
                       help=f'metrics to compute, of {", ".join(METRICS)}; with the prefix c_, on L2-normalised '
                            'embeddings; h_ap, asi and ndcg use all levels of super-classes of the data set; tpr and '
                            'threshold_spread take a false-positive rate: tpr@0.001')
    group.add_argument('--storage_metrics', nargs='+', metavar='METRIC', default=['e_recall@1'],
                       help='metrics by which the best network on each split is kept in a checkpoint; the first one '
                            'selects the best epoch')
    group.add_argument('--splits_to_eval', nargs='+', choices=['train', 'val', 'test'],
                       help='splits to evaluate; by default all (but not train with --no_train_metrics)')
    switch(group, '--no_train_metrics', help='do not evaluate the training split')
    group.add_argument('--eval_every', type=POSITIVE_INT, default=1,
                       help='number of epochs from one evaluation to the next; the last epoch is always evaluated')
    switch(group, '--evaluate_on_gpu', help='compute the metrics on the GPU too, if there is one')
    group.add_argument('--cluster_every', type=POSITIVE_INT, default=1,
                       help='number of epochs from one computation of nmi, ami and f1 to the next; the last epoch '
                            'always has them')
    group.add_argument('--bootstrap', metavar='N', type=COUNT, default=0,
                       help='number of resamples of the classes for 95 percent intervals of the retrieval metrics; 0 '
                            'means no intervals')
    group.add_argument('--ranking_backend', choices=ranking.BACKENDS, default='auto',
                       help='method of ranking; auto: the fastest one; results are equal but for near-ties within '
                            "float32's rounding error")
    switch(group, '--knn_approx',
           help="rank by faiss's approximate nearest neighbour search; on a CPU, it took 0.8 to 1.2 times as long as "
                'exact ranking for 30,000 to 250,000 images (docs/evaluation.md)')
    group.add_argument('--overlap_threshold', type=FRACTION, default=0.8,
                       help='for --check_overlap: smallest cosine similarity at which two images are near-duplicates, '
                            'of their pooled features minus the mean of all features; the default was measured on '
                            'photos (docs/data.md)')
    switch(group, '--eval_normalize', help='L2-normalise the embeddings before evaluation')
    switch(group, '--eval_ema',
           help='with --evaluate, --embed, --draw and --export: use the moving average of the weights (--ema)')
    switch(group, '--eval_features', help='evaluate the pooled features of the backbone instead of the embeddings')
    group.add_argument('--pca', metavar='D', type=COUNT, default=0,
                       help='number of principal components of the embeddings to evaluate; 0 means the embeddings '
                            'themselves')
    group.add_argument('--eval_autocast', choices=['bfloat16', 'float16'],
                       help='mixed precision of the network in evaluation; by default float32; metrics are always '
                            'float32')
    group.add_argument('--eval_reference', choices=['self', 'train', 'all'], default='self',
                       help='gallery of the test and validation queries; self: their own split; train: the training '
                            'split; all: both')
    group.add_argument('--eval_level', nargs='+', choices=evaluation.LEVELS, default=['class'],
                       help='what makes a positive; class: the same class; parent: the same super-class; within: the '
                            "same class, with only images of the query's super-class in the gallery")
    group.add_argument('--evaltypes', nargs='+', choices=['discriminative'], default=['discriminative'],
                       help='without effect, since a network has one kind of embedding; kept for compatibility with '
                            'the public code')
    group.add_argument('--pictures', nargs='+', choices=['none', *PICTURES], metavar='PICTURE',
                       default=['retrieval', 'spectrum', 'distances', 'classes'],
                       help='plots of the test split to save in plots/ after the last epoch: none, '
                            f'{", ".join(PICTURES)}')
    switch(group, '--projector', help='write the test embeddings of the last epoch for the projector of TensorBoard')


def record_parameters(parser):
    group = parser.add_argument_group('records')
    group.add_argument('--save_path', default='Training_Results',
                       help='folder for all results; the run folder is <save_path>/<dataset>/<savename>')
    group.add_argument('--savename', default='group_plus_seed',
                       help='name of the run folder; group_plus_seed means <group>_s<seed>')
    switch(group, '--log_online',
           help='log to --online_backend as well; without a key or a connection, into the run folder')
    group.add_argument('--online_backend', choices=['wandb', 'comet_ml', 'none'], default='wandb',
                       help='service that --log_online logs to')
    group.add_argument('--wandb_key',
                       help='W&B key; safer in the environment variable WANDB_API_KEY or by `wandb login`')
    group.add_argument('--project', default='Sample_Project', help='name of the project at the online backend')
    group.add_argument('--group', default='Sample_Group',
                       help='name of the setting, shared by its runs with different seeds')


def build():
    parser = Parser(prog='main.py', usage='main.py [FLAG ...]',
                    description='Trains an embedding network on some classes and evaluates it on unseen ones.')
    for add in (run_parameters, data_parameters, network_parameters, training_parameters, batch_creation_parameters,
                batch_mining_parameters, loss_parameters, evaluation_parameters, record_parameters):
        add(parser)
    return parser


def parse(arguments, defaults=None):
    """
    The command line's arguments, a list of strings -> the namespace.

    The values come from `defaults`, {flag: value}, the settings of a run folder (--resume, --reproduce, --evaluate,
    --embed, --draw, --export, --check_overlap), the --config files and the command line; later sources override
    earlier ones. `given` in the namespace lists the flags of the command line and the --config files. Raises UserError
    for whatever the user must change.
    """
    parser = build()
    modes = parser.parse_args(arguments)
    folders = [modes.resume, modes.reproduce, modes.evaluate, modes.check_overlap,
               *(pair[0] for pair in (modes.embed, modes.draw, modes.export) if pair)]
    folders = [folder for folder in folders if folder]
    if len(folders) > 1:
        raise UserError('--resume, --reproduce, --evaluate, --embed, --draw, --export and --check_overlap: give one '
                        'of them')
    if modes.auto_resume and folders and not modes.resume:
        raise UserError('--auto_resume goes with a training run; leave it out with --reproduce, --evaluate, --embed, '
                        '--draw, --export and --check_overlap')
    if modes.check_overlap in DATASETS:
        folders = []
    settings, asked = dict(defaults or {}), {}
    for folder in folders:
        settings |= known(parser, flags_of(folder), folder, MODES)
    for file in modes.config:
        asked |= read_config(parser, file, MODES)
    opt = parser.parse_args([*tokens(settings | asked, parser), *arguments])
    if opt.check_overlap in DATASETS:
        opt.dataset = opt.check_overlap
    opt.given = [*given(parser, [*tokens(asked, parser), *arguments])]
    if opt.unsupervised and 'samples_per_class' not in opt.given:
        opt.samples_per_class = 1
    if opt.resume:
        check_resume(parser, settings, opt)
    check(opt)
    check_splits(parser, opt)
    return opt


def check_resume(parser, settings, opt):
    """Refuses flags that cannot change within a run, where they differ from the `settings` of the run to continue."""
    if changed := changed_within_run(parser, settings, settings_of(opt)):
        raise UserError(f'--resume {opt.resume}: cannot change within a run: {", ".join(changed)}; give it the flags '
                        f'it was started with, or start a new run by --reproduce {opt.resume}')


def changed_within_run(parser, before, now):
    """The flags that differ between two settings and that --resume cannot change, with both values."""
    may_change = {*RESUMABLE, *run_folder.MACHINE, *of_groups(parser, 'evaluation')}
    return [f'--{name} {shown(value)} (was {shown(earlier)})' for name, value in now.items()
            if as_list(value) != (earlier := as_list(before.get(name, parser.get_default(name))))
            and name not in may_change and not RATES.fullmatch(name)]


def as_list(value):
    return list(value) if isinstance(value, tuple) else value            # YAML has no tuples


def shown(value):
    return ' '.join(map(str, value)) if isinstance(value, list) else str(value)


def flags_of(place):
    """The settings of a run folder, or of the run that wrote a checkpoint file."""
    return checkpoint.load(place)['settings'] if Path(place).is_file() else run_folder.read(place)['flags']


def find_run(opt):
    """
    The run with these settings as (its folder, whether it is finished); None if there is none. --n_epochs and the flags
    of the machine may differ; with another --n_epochs, it does not count as finished.
    """
    chosen = datasampler.chosen_later(opt)
    settings = {name: value for name, value in settings_of(opt).items() if name not in {'n_epochs', *chosen}}
    folder = reading.find(Path(opt.save_path) / opt.dataset / run_folder.savename(opt), settings, chosen)
    if folder is None:
        return None
    return folder, reading.is_finished(folder) and run_folder.read(folder)['flags']['n_epochs'] == opt.n_epochs


def secrets_of(opt):
    """The flags that are secrets, as environment variables of a process: {name: value}."""
    return {variable: getattr(opt, flag) for flag, variable in SECRETS.items() if getattr(opt, flag)}


def settings_of(opt):
    """The flags as they are recorded: without secrets, and without the MODES of this process."""
    return {name: value for name, value in vars(opt).items() if name not in (*SECRETS, *MODES, 'given')}


def of_the_untrained():
    """The names of the flags that the metrics of the untrained network depend on."""
    return ['seed', *(name for name in of_groups(build(), 'data', 'network', 'evaluation') if name not in AFTERWARDS)]


def check_splits(parser, opt):
    """Raises UserError for flags that the split scheme does not use, and for a fold that it does not have."""
    used_by = dict.fromkeys(('fold', 'n_folds', 'n_training_folds'), splits.FOLDED)
    used_by |= dict.fromkeys(('test_size', 'test_start'), splits.RANGED)
    for flag, schemes in used_by.items():
        if (flag in opt.given and getattr(opt, flag) != parser.get_default(flag)
                and opt.split_scheme not in schemes):
            raise UserError(f'--{flag} {getattr(opt, flag)} goes with --split_scheme {", ".join(schemes)}'
                            + (f', not with {opt.split_scheme}' if opt.split_scheme else '; give one of them'))
    if opt.test_size == 1 and not (opt.evaluate or opt.embed or opt.draw or opt.export or opt.check_overlap):
        raise UserError('--test_size 1 leaves nothing to train on; use a smaller fraction, such as 0.5')
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
    """Raises UserError for combinations of flags that cannot work, as far as this can be seen without the data."""
    evaluation.check_metrics(opt)
    evaluation.pictures.check(opt)
    check_cascade(opt)
    if opt.csv and opt.dataset != 'folder':
        raise UserError(f'--csv goes with --dataset folder, not with {opt.dataset}')
    if opt.tv_split_perc == 1 and opt.use_tv_split:
        raise UserError('--tv_split_perc 1 leaves nothing to validate on; use a smaller fraction, such as 0.8')
    for flag in ('crop_scale', 'crop_ratio'):
        if (limits := getattr(opt, flag)) and limits[0] > limits[1]:
            raise UserError(f'--{flag} {shown(limits)}: the first must not be greater than the second')
    if opt.color_jitter and opt.color_jitter[3] > 0.5:
        raise UserError(f'--color_jitter {shown(opt.color_jitter)}: the last number, of the hue, must not exceed 0.5')
    if opt.randaugment and opt.randaugment[1] > 30:
        raise UserError(f'--randaugment {shown(opt.randaugment)}: the second number, the magnitude, must not exceed 30')
    if opt.randaugment and opt.augment_on_gpu:
        raise UserError('--augment_on_gpu does not compute the operations of --randaugment: leave one of them out')
    if opt.embed_init in embedding_layer.FITTED and opt.embed_layers:
        raise UserError(f'--embed_init {opt.embed_init} fits a single linear layer; leave --embed_layers out')
    if opt.bs % opt.views:
        raise UserError(f'--bs {opt.bs} is not divisible by --views {opt.views}, the number of times that each image '
                        'is in its batch')
    if opt.unsupervised and opt.samples_per_class > 1:
        raise UserError(f'--samples_per_class {opt.samples_per_class}: with --unsupervised, a class has one image; '
                        'leave the flag out, and give --views to have each image in its batch several times')
    if opt.unsupervised and opt.embed_init == 'lda':
        raise UserError('--embed_init lda uses the labels of the training images; leave it out with --unsupervised')
    if opt.distill == 'ema' and opt.ema is None:
        raise UserError('--distill ema: the teacher is the moving average of the weights, whose decay is --ema; give '
                        'that flag too, such as --ema 0.999')
    low, high = opt.miner_parametric_support_lim
    if low >= high:
        raise UserError(f'--miner_parametric_support_lim {low} {high}: the first must be less than the second')
    if opt.splits_to_eval and 'train' in opt.splits_to_eval and opt.no_train_metrics:
        raise UserError('--splits_to_eval train and --no_train_metrics exclude each other')
    for flag in ('group', 'savename'):
        name = getattr(opt, flag)
        if Path(name).name != name or name in ('', '..'):
            raise UserError(f'--{flag} {name}: it names a folder and must not hold a slash')
        if not name.isprintable():
            raise UserError(f'--{flag} {ascii(name)}: it names a folder and must not hold line breaks or other control '
                            'characters')


def check_cascade(opt):
    """Raises UserError for flags that do not work with --cascade or --daml."""
    if opt.cascade:
        fractions, n_levels = opt.cascade_fractions, len(opt.cascade) + 1
        if opt.cascade != sorted({*opt.cascade}):
            raise UserError(f'--cascade {shown(opt.cascade)}: give the blocks in ascending order, each once')
        if len(fractions) != len(opt.cascade) or fractions != sorted(fractions, reverse=True):
            raise UserError(f'--cascade_fractions {shown(fractions)}: expected one for each block of --cascade '
                            f'({len(opt.cascade)}), none greater than the one before it')
        if opt.embed_dim % n_levels:
            raise UserError(f'--embed_dim {opt.embed_dim}: expected a multiple of {n_levels}, the number of embeddings '
                            f'with --cascade {shown(opt.cascade)}')
        if opt.embed_init in embedding_layer.FITTED:
            raise UserError(f'--embed_init {opt.embed_init} fits a single linear layer; leave --cascade out')
    if opt.daml:
        for flag, reason in (('cascade', 'synthetic negatives have features of the last block only'),
                             ('xbm_size', 'they would be stored in the memory bank')):
            if getattr(opt, flag):
                raise UserError(f'--daml does not work with --{flag}: {reason}; leave one of them out')
        if opt.embed_norm == 'batch':
            raise UserError('--daml does not work with --embed_norm batch, since synthetic features would change its '
                            'statistics; use --embed_norm layer or none')


def without_effect(opt):
    """The flags of opt.given, with their values, that have no effect in a training run because of other flags."""
    parts = combination.with_inner(combination.parts(opt))
    losses = {method(part.loss) for part in parts}
    miners = {method(part.batch_mining) for part in parts if takes_miner(part)} - {'none'}
    if 'random_distance' in miners:
        miners.add('distance')                                        # whose flag it shares
    of_nir = {f'loss_oproxy_{name}' for name in ('pos_alpha', 'neg_alpha', 'pos_delta', 'neg_delta') if 'nir' in losses}
    are_characters = opt.augmentation == 'base' and getattr(DATASETS.get(opt.dataset), 'CHARACTERS', False)
    augmentation = 'characters' if are_characters else opt.augmentation
    sampler = opt.data_sampler
    stores, matches = getattr(SAMPLERS.get(sampler), 'REQUIRES_STORAGE', False), sampler.endswith('batchmatch')
    has_effect = {
        'tv_split_by_samples': opt.use_tv_split, 'tv_split_perc': opt.use_tv_split,
        'image_cache_check': opt.image_cache, 'cascade_fractions': opt.cascade,
        **dict.fromkeys((name for name in vars(opt) if name.startswith('daml_')), opt.daml),
        **dict.fromkeys(('crop_scale', 'crop_ratio'), augmentation in ('base', 'adv', 'big', 'mlrc')),
        'eval_resize': augmentation != 'characters',
        'momentum': opt.optim in ('sgd', 'rmsprop'), 'micro_bs': opt.micro_bs < opt.bs,
        'adam_eps': opt.optim in ('adam', 'adamw'), 'adam_betas': opt.optim in ('adam', 'adamw'),
        'lr_floor': opt.scheduler in ('cosine', 'onecycle'), 'onecycle_peak': opt.scheduler == 'onecycle',
        'cosine_delay': opt.scheduler == 'cosine',
        'lr_warmup_unit': opt.lr_warmup, **dict.fromkeys(('eval_ema', 'overlap_threshold'), False),
        'gamma': opt.scheduler == 'step', 'tau': opt.scheduler == 'step',
        'keep_features': opt.freeze == 'backbone',
        'embed_norm_affine': opt.embed_norm != 'none', 'embed_lda_shrinkage': opt.embed_init == 'lda',
        'samples_per_class': sampler not in ('full_random', 'image_random'),
        'data_cover_epoch': sampler == 'class_random',
        'data_hierarchical_superclasses': sampler == 'hierarchical',
        'data_batchmatch_bigbs': matches or sampler.endswith('coreset'), 'data_batchmatch_ncomps': matches,
        'data_storage_no_update': stores, 'data_idx_full_prec': stores, 'data_sim_measure': stores,
        'data_sampler_lowproj_dim': stores, 'data_mb_mom': stores, 'data_mb_lr': stores and opt.data_mb_mom > 0,
        'data_d2_coreset_lambda': sampler == 'd2_coreset',
        'data_gc_coreset_lim': sampler == 'greedy_coreset', 'data_gc_softened': sampler == 'greedy_coreset',
        'batch_mining': miners or all(part.batch_mining == 'none' for part in parts),
        'miner_parametric_mode': not opt.miner_parametric_adapt,
        'xbm_weight': opt.xbm_size, 'xbm_start': opt.xbm_size,
        'distill': opt.distill_w, 'distill_w': opt.distill, 'distill_T': opt.distill and opt.distill_w,
    } | dict.fromkeys(PADS, opt.miner_parametric_adapt)

    def is_idle(name):
        loss, miner = owner(name, 'loss', CRITERIA), owner(name, 'miner', BATCHMINERS)
        return (not has_effect.get(name, True) or (loss and loss not in losses and name not in of_nir)
                or (miner and miner not in miners))

    parser = build()
    return [f'--{name} {shown(value)}' for name in opt.given
            if (value := getattr(opt, name)) != parser.get_default(name) and is_idle(name)]


def method(name):
    """The part of a flag's name that stands for a loss or miner: its own name, or pml."""
    return 'pml' if name.startswith(pml.PREFIX) else name


def owner(flag, kind, registry):
    """'loss_dr_triplet_margin', 'loss', CRITERIA -> 'dr_triplet'; None where the flag belongs to none of them."""
    return max((name for name in [*registry, 'pml'] if flag.startswith(f'{kind}_{name}_')), key=len, default=None)
