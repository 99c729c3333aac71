"""
Every flag of main.py, grouped, and declared once with all that is known of it.

`add` and `switch` take what argparse takes, and Facts (utilities/flag_help.py): when the flag has an effect, whether
--resume may change it, whether it belongs to the machine, and so on.

A flag that belongs to one method is declared in its file (utilities/method_flags.py) and named after it:
--loss_<loss>_<parameter>, --miner_<miner>_<parameter>, --data_<sampler>_<parameter>; it has an effect where the method
is used. Every part of the program gets the whole namespace.
"""
import argparse
import functools
import sys
from pathlib import Path

import criteria
import datasampler
import evaluation
import optimization
from architectures import ARCHITECTURES, embedding_layer
from batch_mining import BATCHMINERS
from criteria import CRITERIA, required_inputs, takes_miner, with_nested_losses
from datasampler import SAMPLERS
from datasets import DATASETS, splits
from datasets.transforms import AUGMENTATIONS
from evaluation import METRICS, PICTURES
from records import checkpoint, published, reading, run_folder
from utilities import command_line, loss_sums, method_flags, pml, processes, torch_losses
from utilities.command_line import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    REAL,
    SIDE,
    Parser,
    given,
    known,
    merged,
    new_group,
    number,
    read_config,
    tokens,
    yaml_mapping,
)
from utilities.errors import UserError
from utilities.files import file_hash
from utilities.flag_help import facts

EPILOG = """main.py --help margin         the flags of a loss, miner or sampler, and where else the word occurs
main.py --help evaluation     the flags of a group; more words give more pages
main.py --help resumable      the flags that --resume may change; machine: flags that do not change results
main.py --help all            every flag

docs/run_folder.md says more."""
WITH_STORAGE = [name for name, sampler in SAMPLERS.items() if getattr(sampler, 'REQUIRES_STORAGE', False)]
NO_DECAY = [1000]                                                  # the default of --tau


def used_losses(opt):
    """The names of the losses of a run, and of those inside them."""
    return {method(part.loss) for part in with_nested_losses(loss_sums.parts(opt))}


def used_miners(opt):
    """The names of the miners that the losses of a run use."""
    parts = with_nested_losses(loss_sums.parts(opt))
    return {method(part.batch_mining) for part in parts if takes_miner(part)} - {'none'}


def is_mined(opt):
    return used_miners(opt) or all(part.batch_mining == 'none' for part in loss_sums.parts(opt))


def used_optimizers(opt):
    return {opt.optim, opt.embed_optim, opt.loss_optim}


def trains_loss(opt):
    """Whether a loss, or what is put around it, has parameters to train; one of a library may have some."""
    files = [CRITERIA.get(part.loss) for part in with_nested_losses(loss_sums.parts(opt))]
    return any(getattr(file, 'REQUIRES_OPTIM', True) for file in files) or any(
        getattr(wrapper.file, 'REQUIRES_OPTIM', False) for wrapper in criteria.wrapping.chosen(opt))


def effective_augmentation(opt):
    """The augmentation of a run; for characters, base means `characters`."""
    are_characters = opt.augmentation == 'base' and getattr(DATASETS.get(opt.dataset), 'CHARACTERS', False)
    return 'characters' if are_characters else opt.augmentation


def crops_randomly(opt):
    return effective_augmentation(opt) in ('base', 'adv', 'big', 'mlrc')


def has_folds(opt):
    return opt.split_scheme in splits.FOLDED


def has_test_range(opt):
    # None: half, or refused where there is an official split
    return not opt.splits and opt.split_scheme in (*splits.RANGED, None)


def not_in_training(opt):
    return False


def add_methods(add, switch, start, registry, shared=None):
    """
    Adds the flags that the files of a registry declare. A flag has an effect where a method is used that declares it or
    USES it.

    start:  what the flags begin with, with {} for the method's name.
    shared: {a file that declares flags of several methods: the methods that use all of them}
    """
    flags, users = {}, {}
    for name, module in registry.items():
        flags |= (own := method_flags.declared(module, start.format(name)))
        for flag in [*own, *getattr(module, 'USES', ())]:
            users.setdefault(flag, []).append(name)
    for module, names in (shared or {}).items():
        flags |= (own := method_flags.declared(module, start))
        for flag in own:
            users.setdefault(flag, []).extend(names)
    for flag, values in flags.items():
        add_method_flag(add, switch, flag, values, of=users[flag])


def add_method_flag(add, switch, flag, values, **known):
    """Adds a flag that a method's file declares, with its effect as a function of opt, and what never happens."""
    known = {'effect': None, **known}
    if 'effect' in values:
        known['effect'] = lambda opt: all(holds(opt, *condition) for condition in values['effect'].items())
    if 'begins_after' in values:
        known['never'] = values['begins_after'], lambda opt, n_steps: getattr(opt, flag) >= n_steps
    if 'begins_at' in values:
        known['never'] = values['begins_at'], lambda opt, n_steps: getattr(opt, flag) > n_steps
    command_line.add_declared(add, switch, flag, values, **known)


def holds(opt, flag, wanted):
    """Whether a flag is set or not, as `wanted` says, True or False; or exceeds a number, {'above': number}."""
    value = CONDITIONS[flag](opt) if flag in CONDITIONS else getattr(opt, flag)
    return value > wanted['above'] if isinstance(wanted, dict) else bool(value) == wanted


# conditions of FLAGS that are no flags
CONDITIONS = {'a miner': used_miners, 'a loss with a teacher': lambda opt: 'teacher_batch' in required_inputs(opt)}


def run_parameters(parser):
    add, switch = new_group(parser, 'what to do', 'by default: train; or evaluate a trained network')
    add('--config', nargs='+', metavar='FILE', default=[], mode=True, common=True,
        help='YAML files of flags and values; later files override earlier ones, and the command line overrides all')
    add('--reproduce', metavar='RUN_FOLDER', mode=True, help='start a new run with the settings of this run')
    add('--reproduce_results', metavar='FOLDER', mode=True,
        help='train as an experiment of powerful-benchmarker, whose options are in FOLDER/configs/config_*.yaml')
    switch('--reproduce_results_partly', mode=True,
           help='with --reproduce_results: leave out options that have no counterpart here, instead of stopping')
    add('--resume', metavar='RUN_FOLDER', mode=True, common=True,
        help='continue this run exactly where it stopped; larger --n_epochs extends it; `--help resumable machine` '
             'lists flags that may change')
    switch('--merge_argparse_when_resuming', mode=True,
           help='with --resume: other flags of training may change as well; what no longer fits them starts fresh')
    switch('--auto_resume', mode=True,
           help='continue the run with this --group, this --seed and the same settings, or start it if there is none')
    add('--evaluate', metavar='RUN_FOLDER_OR_CHECKPOINT', mode=True,
        help='do not train; print the metrics of a trained network')
    add('--seed', type=COUNT, default=1, fixed=True, common=True,
        help='seed of all random numbers of the run')
    switch('--deterministic', help='make the arithmetic repeatable on a GPU too, which is slower; the CPU always is')
    switch('--tf32', help='compute float32 products in TF32 on NVIDIA GPUs: faster, but less precise')
    add('--device',
        choices={'auto': 'an NVIDIA GPU if available, else an Apple GPU, else the CPU', 'cpu': 'the CPU',
                 'cuda': 'an NVIDIA GPU', 'mps': 'an Apple GPU'}, default='auto', machine=True,
        help='device to compute on')
    add('--gpu', nargs='+', type=COUNT, default=[0], machine=True, common=True,
        help='indices of NVIDIA GPUs, from 0; several train one run together, one process each')
    add('--kernels', type=COUNT, default=6, machine=True, common=True,
        help='number of data loading processes, at most one per core; 0 loads in the main process')


def data_parameters(parser):
    add, switch = new_group(parser, 'data', 'data set, splits, decoding, augmentation', fixed=True)
    add('--dataset', default='cub200', common=True, names=DATASETS, embedding=True, help='data set')
    add('--source_path', '--source', default='../../Datasets', machine=True, common=True,
        help='folder with the folders of the data sets; for --dataset folder, the folder that contains images/, or '
             'train/ and test/')
    add('--csv', metavar='FILE', resumable=True,
        help='for --dataset folder: CSV file of paths and labels; by default the folders in images/ are classes')
    switch('--download', machine=True, help='download the data set first, if it has a stable public address')
    switch('--skip_bad_images', help='check every image at the start and leave out those that cannot be read')
    add('--decode',
        choices={'exact': 'the pixels that Pillow gives',
                 'fast': 'JPEG files at a fraction of their size, with slightly different pixels'},
        default='exact', fixed=False, embedding=True, help='how images are decoded and resized')
    add('--split_scheme',
        choices={'half': 'training and test classes', 'class_folds': 'half, with folds of validation classes',
                 'mlrc': 'the class lists of Musgrave et al.',
                 'closed_set': 'every class in all splits, with folds of images', 'predefined': 'the official split'},
        help='how the data are split; by default predefined if there is an official split, else half')
    add('--splits', metavar='FILE', resumable=True,
        help='JSON or YAML file with the classes of each split, in place of --split_scheme')
    add('--splits_step', metavar='STEP', effect=lambda opt: opt.splits,
        help='name of the step of difficulty in a --splits file that has several')
    add('--fold', metavar='K', type=COUNT, default=0, effect=has_folds,
        help='index of the validation fold, from 0, for a --split_scheme with folds')
    add('--n_folds', type=number(int, 2), default=4, effect=has_folds,
        help='number of folds, for a --split_scheme with folds')
    add('--n_training_folds', type=POSITIVE_INT, effect=has_folds,
        help='number of folds that may be used for validation, the first ones; by default all')
    add('--test_size', type=FRACTION, default=0.5, effect=has_test_range,
        help="fraction of the classes (closed_set: of each class's images) in the test split")
    add('--test_start', type=FRACTION, default=0.5, effect=has_test_range,
        help='start of the test range, as a fraction of the sorted classes; it wraps around')
    switch('--use_tv_split', common=True, help='split a validation set off the training set')
    switch('--tv_split_by_samples', effect=lambda opt: opt.use_tv_split,
           help='with --use_tv_split: validate on samples of every class instead of on whole classes')
    add('--tv_split_perc', type=number(float, 0, 1, above=True), default=0.8, effect=lambda opt: opt.use_tv_split,
        help='with --use_tv_split: fraction of the training set that remains for training')
    add('--augmentation', default='base', fixed=False, names=AUGMENTATIONS, embedding=True,
        help='augmentation of the training images; docs/data.md explains each')
    add('--crop_scale', nargs=2, type=number(float, 0, 1, above=True), metavar=('MIN', 'MAX'),
        fixed=False, effect=crops_randomly,
        help='smallest and largest area of random crops, as fractions of the image; by default 0.08 (mlrc: 0.16) and '
             '1')
    add('--crop_ratio', nargs=2, type=POSITIVE, metavar=('MIN', 'MAX'), fixed=False, effect=crops_randomly,
        help='smallest and largest width / height of random crops; by default 3/4 and 4/3 (mlrc: 0.75, 1.33)')
    add('--color_jitter', nargs=4, type=NOT_NEGATIVE, metavar=('BRIGHTNESS', 'CONTRAST', 'SATURATION', 'HUE'),
        fixed=False,
        help='largest random changes of brightness, contrast, saturation (factors 1 - x to 1 + x) and hue; by default '
             'none')
    add('--randaugment', nargs=2, type=COUNT, metavar=('N', 'M'), fixed=False,
        help='apply N random operations of magnitude M (0 to 30) to each training image; by default none')
    add('--random_erasing', type=FRACTION, default=0.0, metavar='P', fixed=False,
        help='probability of filling a random rectangle of a training image with the mean colour; 0 means never')
    add('--interpolation', choices=['bilinear', 'bicubic'], default='bilinear', fixed=False, embedding=True,
        help='interpolation with which images and crops are resized, in training and evaluation')
    add('--eval_size', type=SIDE, fixed=False, embedding=True,
        help='height and width of the images in evaluation, in pixels; by default --input_size')
    add('--eval_resize', type=SIDE, fixed=False, effect=lambda opt: effective_augmentation(opt) != 'characters',
        embedding=True,
        help='pixels of the shorter side before the centre crop in evaluation; by default 256, or 8/7 of the size')


def frozen_part(text):
    """An argparse type: none, backbone, stem or a number of blocks, as text."""
    if text not in ('none', 'backbone', 'stem') and not text.isdecimal():
        raise argparse.ArgumentTypeError(f'expected none, backbone, stem or a number of blocks, not {text}')
    return text


def network_parameters(parser):
    add, switch = new_group(parser, 'network', 'backbone, pooling, embedding layer, weights, input', fixed=True)
    add('--arch', default='resnet50_frozen_normalize', common=True, names=ARCHITECTURES, embedding=True,
        help='network, also timm:NAME, torchvision:NAME, pretrainedmodels:NAME; suffixes: _frozen (BatchNorm '
             'statistics), _normalize (norm 1), _double (--pool avg_max)')
    add('--embed_dim', type=POSITIVE_INT, default=128, common=True, embedding=True, help='dimension of the embeddings')
    add('--cascade', nargs='+', type=POSITIVE_INT, default=[], metavar='N', embedding=True,
        help='numbers of blocks after which further embeddings are computed; by default only the last embedding')
    add('--embed_layers', nargs='*', type=POSITIVE_INT, default=[], embedding=True,
        help='widths of hidden layers between backbone and embedding; by default none')
    add('--pool',
        choices={'avg': 'mean of the feature maps', 'max': 'maximum', 'avg_max': 'sum of both',
                 'gem': 'generalised mean with a trainable exponent', 'token': 'class token of a ViT',
                 'patches': 'mean of its patch tokens', 'token_patches': 'both'}, embedding=True,
        help="pooling of the backbone; by default the network's own")
    add('--embed_norm',
        choices={'none': 'no normalisation', 'layer': 'LayerNorm',
                 'batch': 'BatchNorm, updated even in a _frozen network'}, default='none', embedding=True,
        help='normalisation layer between the pooled features and the embedding layer')
    switch('--embed_norm_affine', effect=lambda opt: opt.embed_norm != 'none', embedding=True,
           help='give the layer of --embed_norm a trainable scale and shift')
    switch('--embed_bias', default=True, embedding=True,
           help='whether the embedding layer has a bias; --embed_bias false removes it')
    add('--embed_init',
        choices={'default': "torch's random weights", 'orthogonal': 'random orthogonal rows',
                 'kaiming': 'normal with standard deviation (2 / --embed_dim)^(1/2)',
                 'identity': 'the first --embed_dim features', 'pca': 'principal components of the training features',
                 'lda': 'their linear discriminants'}, default='default', effect=lambda opt: not opt.start_from,
        help='initial weights of the embedding layer')
    add('--embed_lda_shrinkage', type=FRACTION, default=0.1, effect=lambda opt: opt.embed_init == 'lda',
        help='--embed_init lda: weight of a multiple of the identity in the within-class covariance')
    add('--freeze', type=frozen_part, default='none', fixed=False, metavar='none|backbone|stem|N',
        help='part of the backbone that is not trained; N: the stem and the first N blocks; none trains all')
    switch('--keep_features', default=True, machine=True, effect=lambda opt: opt.freeze == 'backbone',
           help='with --freeze backbone: compute the features once; --keep_features false computes them in each epoch')
    add('--lora_rank', type=COUNT, default=0,
        help='rank of the trained adapters (LoRA) in the attention layers of a ViT; 0 means no adapters')
    add('--visual_prompts', '--prompts', dest='prompts', type=COUNT, default=0, embedding=True, metavar='N',
        help='number of trained tokens (visual prompts) in the blocks of a frozen ViT; 0 means none')
    add('--prompt_depth', type=COUNT, default=0, effect=lambda opt: opt.prompts, embedding=True,
        help='number of blocks, from the first on, with prompts of their own; 1: VPT-shallow; 0: all, VPT-deep')
    switch('--not_pretrained', effect=lambda opt: not opt.start_from,
           help='start from random instead of pretrained weights')
    add('--start_from', metavar='RUN_FOLDER_OR_CHECKPOINT', resumable=True, file=True,
        help='train on from a trained network, its backbone and its embedding layer, in a new run')
    add('--weights', metavar='FILE', resumable=True, file=True, effect=lambda opt: not opt.start_from,
        help="file with the backbone's pretrained weights, a state dict; by default they are downloaded")
    add('--input_size', type=SIDE, fixed=False, embedding=True,
        help='height and width of the input images in pixels; by default as the network expects')
    add('--input_mean', nargs='+', type=REAL, embedding=True,
        help='mean of the input images per channel, for values in [0, 1]; by default as the network expects')
    add('--input_std', nargs='+', type=POSITIVE, embedding=True,
        help='standard deviation of the input images per channel; by default as the network expects')
    switch('--input_bgr', default=None, embedding=True,
           help='whether the channels are ordered blue, green, red; by default as the network expects')


def training_parameters(parser):
    add, switch = new_group(parser, 'training', 'length, batch size, optimizer, learning rates')
    add('--n_epochs', type=COUNT, default=150, resumable=True, common=True,
        help='number of training epochs; 0 only evaluates the untrained network')
    add('--iterations_per_epoch', type=COUNT, default=0,
        help='number of batches per epoch; 0 leaves it to the sampler, usually training images // --bs')
    add('--bs', type=POSITIVE_INT, default=112, common=True,
        help='number of images per batch; with --views N, each image counts N times')
    add('--micro_bs', type=COUNT, default=0, resumable=True, effect=lambda opt: opt.micro_bs < opt.bs,
        help='largest number of images embedded at once; a larger batch is divided, with the same loss; 0: no limit')
    add('--amp', choices=['none', 'bfloat16', 'float16'], default='none',
        help='mixed precision of the network in training; none: float32; losses are always float32')
    switch('--compile', resumable=True, help='compile the network for training with torch.compile')
    add('--clip_grad', type=POSITIVE, resumable=True,
        help='largest norm of the gradient, to which larger gradients are scaled down; by default no limit')
    add('--clip_grad_value', type=POSITIVE, resumable=True,
        help="largest absolute value of a gradient's elements, after --clip_grad; by default no limit")
    add('--lr', type=NOT_NEGATIVE, default=0.00001, resumable=True, common=True, help='learning rate of the network')
    add('--fc_lr', type=REAL, default=-1.0, resumable=True,
        help='learning rate of the embedding layer; a negative value means --lr')
    add('--decay', type=NOT_NEGATIVE, default=0.0004, resumable=True, help='weight decay of the network')
    add('--layer_decay', type=FRACTION, default=1.0,
        help="a block's learning rate as a multiple of the next block's; the last block has --lr; 1: all equal")
    add('--decay_exclude', nargs='*', choices={'norms': 'those of normalisation layers', 'biases': 'all biases'},
        default=[], help='parameters of the network without weight decay; by default none')
    add('--loss_decay', type=NOT_NEGATIVE, default=0.0, resumable=True, effect=trains_loss,
        help='weight decay of the parameters of the loss')
    kind = {'type': optimization.optimizer_name, 'names': optimization.OPTIMIZERS, 'metavar': 'NAME'}
    own = {'nargs': '*', 'type': yaml_mapping, 'default': [], 'metavar': 'YAML'}
    add('--optim', default='adam', **kind, help='optimizer of torch.optim')
    add('--optim_args', arguments_of='optim', **own,
        help="arguments of --optim that have no flag, as YAML, such as '{betas: [0.9, 0.99]}' or '{nesterov: true}'")
    add('--embed_optim', **kind, help='optimizer of the embedding layer; by default, --optim trains it')
    add('--embed_optim_args', arguments_of='embed_optim', **own, effect=lambda opt: opt.embed_optim,
        help="arguments of --embed_optim, as YAML, such as '{momentum: 0.5}'")
    add('--loss_optim', **kind, effect=trains_loss,
        help='optimizer of the parameters of the loss; by default, --optim trains them')
    add('--loss_optim_args', arguments_of='loss_optim', **own, effect=lambda opt: opt.loss_optim and trains_loss(opt),
        help='arguments of --loss_optim, as YAML')
    add('--adam_eps', type=POSITIVE, default=1e-8, effect=lambda opt: {'adam', 'adamw'} & used_optimizers(opt),
        help='added to the denominator in the optimizers adam and adamw')
    add('--momentum', type=FRACTION, default=0.9, effect=lambda opt: {'sgd', 'rmsprop'} & used_optimizers(opt),
        help='momentum of sgd and rmsprop in all three optimizers, unless --embed_optim_args or --loss_optim_args say '
             'otherwise')
    add('--scheduler',
        choices={'none': 'constant', 'step': 'multiplied by --gamma after each epoch in --tau',
                 'cosine': 'annealed to --lr_floor over --n_epochs',
                 'onecycle': 'raised from 1/25 until --onecycle_peak, then annealed to --lr_floor'}, default='step',
        resumable=True, help='schedule of all learning rates')
    add('--lr_floor', type=FRACTION, default=0.0, resumable=True,
        effect=lambda opt: opt.scheduler in ('cosine', 'onecycle'),
        help='cosine and onecycle: last value of the learning rates, as a fraction of the rates')
    add('--cosine_delay', type=COUNT, default=0, resumable=True, effect=lambda opt: opt.scheduler == 'cosine',
        never=('the learning rates never fall', lambda opt, n_steps: 0 < opt.cosine_delay >= opt.n_epochs - 1),
        help='cosine: number of first epochs at the full rates; the annealing begins after them and would take '
             '--n_epochs')
    add('--onecycle_peak', type=FRACTION, default=0.3, resumable=True, effect=lambda opt: opt.scheduler == 'onecycle',
        help='onecycle: fraction of all steps after which the learning rates are highest')
    add('--lr_warmup', type=COUNT, default=0, resumable=True,
        never=('the learning rates are never those of the flags', lambda opt, n_steps: 0 < opt.lr_warmup >= (
            opt.n_epochs if opt.lr_warmup_unit == 'epochs' else n_steps)),
        help='number of epochs or steps at the start in which all learning rates rise; 0 means no warm-up')
    add('--lr_warmup_unit', choices=['epochs', 'steps'], default='epochs', resumable=True,
        effect=lambda opt: opt.lr_warmup, help='unit of --lr_warmup')
    add('--ema', type=FRACTION, metavar='DECAY',
        help='decay per step of an averaged network, evaluated and saved in addition; by default no average')
    add('--gamma', type=NOT_NEGATIVE, default=0.3, resumable=True, effect=lambda opt: opt.scheduler == 'step',
        help='factor of the learning rates in the step schedule')
    add('--tau', nargs='+', type=POSITIVE_INT, default=NO_DECAY, resumable=True, common=True,
        effect=lambda opt: opt.scheduler == 'step',
        never=('the learning rates are not multiplied by --gamma after all of these epochs',
               lambda opt, n_steps: opt.tau != NO_DECAY and max(opt.tau) >= opt.n_epochs),
        help='epochs after which the step schedule multiplies the learning rates by --gamma')
    add('--warmup', type=COUNT, default=0,
        never=('the backbone is never trained', lambda opt, n_steps: 0 < opt.warmup >= opt.n_epochs),
        help='number of epochs at the start in which the backbone is not trained; 0 means none')
    add('--patience', type=POSITIVE_INT, resumable=True,
        help='stop when the best validation epoch is more than this many epochs ago; by default never')


def batch_creation_parameters(parser):
    add, switch = new_group(parser, 'batch creation', 'samplers: which images form a batch')
    add('--data_sampler', default='class_random', common=True, names=SAMPLERS, help='batch sampler')
    add('--samples_per_class', type=POSITIVE_INT, default=2,
        effect=lambda opt: opt.data_sampler not in ('full_random', 'image_random'),
        help='number of images per class in a batch')
    add('--views', metavar='N', type=POSITIVE_INT, default=1,
        help='number of times that each image is in its batch, each differently augmented; --bs counts all')
    add('--train_level', metavar='N', type=COUNT, default=0, fixed=True,
        help='labels in training: 0 for classes, 1 for their super-classes, more for coarser levels')
    add('--label_noise', metavar='FRACTION', type=number(float, 0, 1), default=0.0, fixed=True,
        help='fraction of the training images that get a wrong label, uniform over the other classes')
    switch('--unsupervised', fixed=True, help='train with each image as a class of its own; evaluation uses the labels')
    add_methods(add, switch, 'data_', SAMPLERS, {datasampler.storage: WITH_STORAGE})


def batch_mining_parameters(parser):
    add, switch = new_group(parser, 'batch mining', 'miners: which tuples of a batch the loss gets')
    add('--batch_mining', default='distance', common=True, names=BATCHMINERS, effect=is_mined,
        help='miner, also pml:NAME, a class of pytorch-metric-learning')
    add_methods(add, switch, 'miner_{}_', BATCHMINERS)
    add('--miner_pml_args', of=['pml'], nargs='*', type=yaml_mapping, default=[], metavar='YAML',
        arguments_of='batch_mining',
        help="arguments of pml:NAME as YAML, such as '{epsilon: 0.2}'; one mapping per such miner, or for all")


def loss_parameters(parser):
    add, switch = new_group(parser, 'losses', 'losses and what is added to any loss')
    add('--loss', default='margin', common=True, names=CRITERIA,
        help='loss, also pml:NAME of pytorch-metric-learning, torch:NAME of torch.nn, or a sum a+b with miners c+d')
    add('--loss_weights', nargs='+', type=REAL, default=[],
        help='weights of the losses in a sum of losses; by default 1 each')
    for wrapper in (*criteria.wrapping.AROUND_A_LOSS, *criteria.wrapping.AROUND_THE_SUM):
        for name, values in method_flags.declared(wrapper.file, '').items():
            add_method_flag(add, switch, name, values)
    add('--loss_pml_args', of=['pml'], nargs='*', type=yaml_mapping, default=[], metavar='YAML', arguments_of='loss',
        help="arguments of pml:NAME as YAML, such as '{margin: 0.1}'; one mapping per such loss, or for all")
    add('--loss_pml_lr', of=['pml'], type=REAL, default=-1.0, resumable=True,
        help='learning rate of the parameters of pml:NAME; a negative value means --lr')
    add('--loss_torch_args', of=['torch'], nargs='*', type=yaml_mapping, default=[], metavar='YAML',
        arguments_of='loss',
        help="arguments of torch:NAME as YAML, such as '{label_smoothing: 0.1}'; one mapping per such loss, or for all")
    add('--loss_torch_lr', of=['torch'], type=REAL, default=-1.0, resumable=True,
        help='learning rate of the classifier of torch:NAME; a negative value means --lr')
    add_methods(add, switch, 'loss_{}_', CRITERIA)


def evaluation_parameters(parser):
    add, switch = new_group(parser, 'evaluation', 'metrics, splits, queries and gallery, pictures', resumable=True)
    add('--evaluation_metrics', nargs='+', metavar='METRIC',
        default=['e_recall@1', 'e_recall@2', 'e_recall@4', 'nmi', 'f1', 'mAP_1000', 'mAP_lim', 'mAP_c', 'dists@intra',
                 'dists@inter', 'dists@intra_over_inter', 'rho_spectrum@0', 'rho_spectrum@-1', 'rho_spectrum@1',
                 'rho_spectrum@2', 'rho_spectrum@10', 'map_at_r', 'precision_at_1', 'r_precision'], names=METRICS,
        help='metrics to compute; the prefix c_ means on L2-normalised embeddings, @ gives a parameter')
    add('--storage_metrics', nargs='+', metavar='METRIC', default=['e_recall@1'],
        help='metrics whose best network is kept, such as map_at_r or within_map_at_r; the first selects the best '
             'epoch')
    add('--splits_to_eval', nargs='+', choices=['train', 'val', 'test'],
        help='splits to evaluate; by default all (but not train with --no_train_metrics)')
    switch('--no_train_metrics', common=True, help='do not evaluate the training split')
    add('--eval_every', type=POSITIVE_INT, default=1,
        help='number of epochs from one evaluation to the next; the last epoch is always evaluated')
    add('--eval_bs', type=POSITIVE_INT, resumable=True,
        help='number of images that are embedded at a time in evaluation; by default --bs')
    switch('--check_untrained_accuracy', default=True, effect=lambda opt: opt.n_epochs,
           help='evaluate the untrained network, as epoch 0')
    switch('--evaluate_on_gpu', machine=True, help='compute the metrics on the GPU too, if there is one')
    add('--cluster_every', type=POSITIVE_INT, default=1,
        help='number of epochs between computations of nmi, ami and f1; the last epoch always has them')
    add('--bootstrap', metavar='N', type=COUNT, default=0,
        help='number of resamples of the classes for 95 percent intervals of retrieval metrics; 0: none')
    switch('--eval_normalize', embedding=True, help='L2-normalise the embeddings before evaluation')
    switch('--eval_ema', effect=not_in_training, embedding=True,
           help='after training: evaluate the moving average of the weights (--ema)')
    switch('--eval_features', embedding=True,
           help='evaluate the pooled features of the backbone instead of the embeddings')
    add('--pca', metavar='D', type=COUNT, default=0,
        help='number of principal components of the embeddings to evaluate; 0 means the embeddings themselves')
    add('--eval_autocast', choices=['bfloat16', 'float16'],
        help='mixed precision of the network in evaluation; by default float32; metrics are always float32')
    add('--eval_reference', choices={'self': 'their own split', 'train': 'the training split', 'all': 'both'},
        default='self', help='gallery of the test and validation queries')
    add('--eval_level', nargs='+',
        choices={'class': 'of the same class', 'parent': 'of the same super-class',
                 'within': 'of the class, in a gallery of its super-class',
                 'across': 'of the class, from another group, such as a camera'}, default=['class'],
        help='images that count as positives')
    add('--evaltypes', nargs='+', choices=['discriminative'], default=['discriminative'], obsolete=True,
        help='without effect, since a network has one kind of embedding; for scripts of the public code')
    add('--pictures', nargs='+', choices=['none', evaluation.curves.SINGLE, *PICTURES], metavar='PICTURE',
        default=['retrieval', 'spectrum', 'distances', 'classes'], names=PICTURES,
        help='plots of the test split saved after the last epoch; metrics: a file of curves per metric; or none')


def record_parameters(parser):
    add, switch = new_group(parser, 'records', 'folders, names, online backends')
    add('--save_path', default='Training_Results', machine=True, common=True,
        help='folder for all results; the run folder is <save_path>/<dataset>/<savename>')
    add('--savename', default='group_plus_seed', fixed=True,
        help='name of the run folder; group_plus_seed means <group>_s<seed>')
    switch('--tuple_statistics', resumable=True,
           help='count hard pairs in each batch, and write the mean of every training scalar over the epoch to log.csv')
    switch('--log_online', machine=True,
           help='log to --online_backend as well; without a key or a connection, into the run folder')
    add('--online_backend', choices=['wandb', 'comet_ml', 'none'], default='wandb', machine=True,
        help='service that --log_online logs to')
    add('--wandb_key', secret='WANDB_API_KEY',
        help='W&B key; safer in the environment variable WANDB_API_KEY or by `wandb login`')
    add('--project', default='Sample_Project', machine=True, help='name of the project at the online backend')
    add('--group', default='Sample_Group', fixed=True, common=True,
        help='name of the setting, shared by its runs with different seeds')


def build():
    parser = Parser(prog='main.py', usage='main.py [FLAG ...]', epilog=EPILOG,
                    description='Trains an embedding network on some classes and evaluates it on unseen ones.')
    command_line.add_completion(parser)
    for add in (run_parameters, data_parameters, network_parameters, training_parameters, batch_creation_parameters,
                batch_mining_parameters, loss_parameters, evaluation_parameters, record_parameters):
        add(parser)
    return parser


@functools.cache
def flags_with(fact):
    """{flag: value} of the flags for which this one of the Facts is set, such as machine."""
    return command_line.flags_with_attribute(build(), fact)


def flags_of_group(title):
    """The names of the flags in a group of --help, a set."""
    return {*command_line.flags_in_groups(build(), title)}


def without_machine(settings):
    """The settings that results depend on, of {flag: value}."""
    return {name: value for name, value in settings.items() if name not in flags_with('machine')}


def parse(arguments, defaults=None, parser=None):
    """
    The command line's arguments, a list of strings -> the namespace.

    The values come from `defaults`, {flag: value}, the settings of a run folder (--resume, --reproduce, --evaluate),
    the --config files and the command line; later sources override earlier ones. `given` in the namespace lists the
    flags of the command line and the --config files. Raises UserError for whatever the user must change.

    parser: what build() gives, for callers that parse many command lines.
    """
    parser = parser or build()
    modes = parser.parse_args(arguments)
    folders = [folder for folder in (modes.resume, modes.reproduce, modes.evaluate) if folder]
    if len(folders) > 1:
        raise UserError('--resume, --reproduce and --evaluate: give one of them')
    if modes.auto_resume and folders and not modes.resume:
        raise UserError('--auto_resume goes with a training run; leave it out with --reproduce and --evaluate')
    settings, asked = dict(defaults or {}), {}
    for folder in folders:
        settings |= known(parser, recorded_flags(folder), folder, flags_with('mode'))
    for file in modes.config:
        asked = merged(parser, asked, read_config(parser, file, flags_with('mode')))
    before, typed = merged(parser, settings, asked), given(parser, arguments)
    opt = parser.parse_args([*tokens(before, parser), *arguments])
    for name in flags_with('arguments_of').keys() & before.keys():
        value = merged(parser, before, typed)[name]
        setattr(opt, name, [value] if isinstance(value, dict) else value or [])
    opt.given = [*given(parser, [*tokens(asked, parser), *arguments])]
    if opt.unsupervised and 'samples_per_class' not in opt.given:
        opt.samples_per_class = 1
    if not opt.evaluate:
        opt.storage_metrics = evaluation.storage_metrics(opt)
    if opt.merge_argparse_when_resuming and not opt.resume:
        raise UserError('--merge_argparse_when_resuming goes with --resume RUN_FOLDER, whose settings it changes')
    if opt.resume:
        check_resume(parser, settings, opt)
    check(opt)
    # another scheme than the --config file's, as for a plain run with the best setting of a search
    check_splits(parser, opt, asked.keys() - typed.keys() if 'split_scheme' in typed else ())
    return opt


def check_resume(parser, settings, opt):
    """Refuses flags that cannot change within a run, where they differ from the `settings` of the run to continue."""
    new_run = f'start a new run by --reproduce {opt.resume}'
    if changed := changed_within_run(parser, settings, recorded_settings(opt), flags_with('fixed')):
        raise UserError(f'--resume {opt.resume}: cannot change within a run: {", ".join(changed)}; give it the flags '
                        f'it was started with, or {new_run}')
    changed = changed_within_run(parser, settings, recorded_settings(opt))
    if changed and not opt.merge_argparse_when_resuming:
        raise UserError(f'--resume {opt.resume}: cannot change within a run: {", ".join(changed)}; give it the flags '
                        f'it was started with, add --merge_argparse_when_resuming, or {new_run}')


def changed_within_run(parser, before, now, among=None):
    """
    The flags that differ between two settings and that --resume cannot change, with both values. among: names of flags;
    by default all flags.
    """
    may_change = flags_with('resumable')
    return [f'--{name} {shown(value)} (was {shown(earlier)})' for name, value in now.items()
            if as_list(value) != (earlier := as_list(before.get(name, parser.get_default(name))))
            and name not in may_change and (among is None or name in among)]


def as_list(value):
    return list(value) if isinstance(value, tuple) else value            # YAML has no tuples


def shown(value):
    return ' '.join(map(str, value)) if isinstance(value, list) else str(value)


def recorded_flags(place):
    """
    The settings of a run folder, of the run that wrote a checkpoint file, or of a network that was exported. Those
    whose flags no longer exist are left out, with a note.
    """
    if Path(place).is_file() or published.is_folder(place):
        file = checkpoint.find(place)
        settings = checkpoint.load(file)['settings']
        if file.suffix == '.safetensors':
            published.check_flags(file.parent, settings, flags_with('embedding'))
    else:
        settings = run_folder.read(place)['flags']
    unknown = sorted(settings.keys() - {*command_line.known_flags(build())})
    if unknown:
        print(f'Note: {place}: it was recorded with flags that no longer exist, which are left out: '
              f'--{", --".join(unknown)}', file=sys.stderr)
    return {name: value for name, value in settings.items() if name not in unknown}


def find_run(opt):
    """
    The run with these settings as (its folder, whether it is finished); None if there is none. --n_epochs and the flags
    of the machine may differ; with another --n_epochs, it does not count as finished. Process 0 looks for it, and all
    processes know what it has found.
    """
    return processes.run_on_rank_zero(look_for_run, opt)


def look_for_run(opt):
    """The work of find_run()."""
    chosen = datasampler.chosen_later(opt)
    settings = compared_settings(recorded_settings(opt), chosen)
    folder = reading.find(Path(opt.save_path) / opt.dataset / run_folder.savename(opt), settings, chosen)
    if folder is None:
        return None
    return folder, reading.is_finished(folder) and run_folder.read(folder)['flags']['n_epochs'] == opt.n_epochs


def compared_settings(settings, chosen):
    """Those of a run's settings by which --auto_resume knows it. chosen: flags whose values the run chooses itself."""
    return {name: value for name, value in without_machine(settings).items() if name not in {'n_epochs', *chosen}}


def embedding_settings(opt):
    """{flag: value} of the flags on which the embedding of an image depends, beside the weights."""
    return {name: getattr(opt, name) for name in flags_with('embedding')}


def secret_variables(opt):
    """The flags that are secrets, as environment variables of a process: {name: value}."""
    return {variable: getattr(opt, flag) for flag, variable in flags_with('secret').items() if getattr(opt, flag)}


def recorded_settings(opt):
    """The flags as they are recorded: without secrets, and without what to do in this process."""
    excluded = {'given', *flags_with('secret'), *flags_with('mode')}
    return {name: value for name, value in vars(opt).items() if name not in excluded}


def checksums_of_files(settings):
    """
    {flag: the beginning of the SHA-256 hash} of the files that flags with the fact `file` name in the settings; of a
    run folder, its last checkpoint.
    """
    found = {}
    for name in flags_with('file'):
        file = Path(settings.get(name) or '/')
        file = file / checkpoint.LAST if file.is_dir() else file
        if file.is_file():
            found[name] = file_hash(file)[:16]
    return found


def check_splits(parser, opt, unused=()):
    """
    Raises UserError for flags that the split scheme does not use, and for a fold that it does not have. unused: flags
    that it need not use; they are among those without effect.
    """
    if opt.splits and opt.split_scheme:
        if {'splits', 'split_scheme'} <= {*opt.given}:
            raise UserError(f'--splits {opt.splits} takes the place of --split_scheme {opt.split_scheme}; give one of '
                            'them')
        setattr(opt, 'splits' if 'split_scheme' in opt.given else 'split_scheme', None)     # an earlier run's value
    used_by = dict.fromkeys(('fold', 'n_folds', 'n_training_folds'), splits.FOLDED)
    used_by |= dict.fromkeys(('test_size', 'test_start'), splits.RANGED)
    for flag, schemes in used_by.items():
        if (flag in opt.given and flag not in unused and getattr(opt, flag) != parser.get_default(flag)
                and opt.split_scheme not in ((*schemes, None) if schemes == splits.RANGED else schemes)):
            raise UserError(f'--{flag} {getattr(opt, flag)} goes with --split_scheme {", ".join(schemes)}'
                            + (f', not with {opt.split_scheme}' if opt.split_scheme else '; give one of them'))
    if opt.test_size == 1 and not opt.evaluate:
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
    criteria.wrapping.check_flags(opt)
    optimization.check_arguments(opt)
    if opt.cascade and opt.embed_init in embedding_layer.FITTED:
        raise UserError(f'--embed_init {opt.embed_init} fits a single linear layer; leave --cascade out')
    if opt.csv and opt.dataset != 'folder':
        raise UserError(f'--csv goes with --dataset folder, not with {opt.dataset}')
    if opt.splits_step and not opt.splits:
        raise UserError(f'--splits_step {opt.splits_step} goes with --splits FILE, which has this step')
    if opt.tv_split_perc == 1 and opt.use_tv_split:
        raise UserError('--tv_split_perc 1 leaves nothing to validate on; use a smaller fraction, such as 0.8')
    for flag in ('crop_scale', 'crop_ratio'):
        if (limits := getattr(opt, flag)) and limits[0] > limits[1]:
            raise UserError(f'--{flag} {shown(limits)}: the first must not be greater than the second')
    if opt.color_jitter and opt.color_jitter[3] > 0.5:
        raise UserError(f'--color_jitter {shown(opt.color_jitter)}: the last number, of the hue, must not exceed 0.5')
    if opt.randaugment and opt.randaugment[1] > 30:
        raise UserError(f'--randaugment {shown(opt.randaugment)}: the second number, the magnitude, must not exceed 30')
    if opt.embed_init in embedding_layer.FITTED and opt.embed_layers:
        raise UserError(f'--embed_init {opt.embed_init} fits a single linear layer; leave --embed_layers out')
    if opt.bs % opt.views:
        raise UserError(f'--bs {opt.bs} is not divisible by --views {opt.views}, the number of times that each image '
                        'is in its batch')
    if opt.unsupervised and opt.samples_per_class > 1:
        raise UserError(f'--samples_per_class {opt.samples_per_class}: with --unsupervised, a class has one image; '
                        'leave the flag out, and give --views to have each image in its batch several times')
    if opt.unsupervised and opt.label_noise:
        raise UserError(f'--label_noise {opt.label_noise} changes labels of the training images, which --unsupervised '
                        'does not use; leave one of them out')
    if opt.unsupervised and opt.train_level:
        raise UserError(f'--train_level {opt.train_level} and --unsupervised exclude each other: an image that is a '
                        'class of its own has no super-class')
    if opt.unsupervised and opt.embed_init == 'lda':
        raise UserError('--embed_init lda uses the labels of the training images; leave it out with --unsupervised')
    if opt.distill == 'ema' and opt.ema is None:
        raise UserError('--distill ema: the teacher is the moving average of the weights, whose decay is --ema; give '
                        'that flag too, such as --ema 0.999')
    if opt.language_distill_w and not opt.language_vectors:
        raise UserError('--language_distill_w needs --language_vectors FILE, the vectors of the class names: this '
                        'program contains neither a text model nor the ImageNet classifier of --language_pseudoclass; '
                        'docs/training_methods.md says how to make the file')
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


def without_effect(opt):
    """The flags of opt.given, with their values, that have no effect in a training run because of other flags."""
    actions, used = {action.dest: action for action in build()._actions}, used_methods(opt)
    return [f'--{name} {shown(value)}' for name in opt.given
            if (value := getattr(opt, name)) != actions[name].default and is_idle(actions[name], opt, used)]


def unreachable_schedules(opt, n_steps):
    """Sentences on warm-ups, delays and decays that a training run is too short for. n_steps: of the whole run."""
    used = used_methods(opt)
    return [f'--n_epochs {opt.n_epochs} is too short for --{action.dest} {shown(getattr(opt, action.dest))}: '
            f'{facts(action).never[0]}' for action in build()._actions
            if opt.n_epochs and facts(action).never and not is_idle(action, opt, used)
            and facts(action).never[1](opt, n_steps)]


def used_methods(opt):
    """Maps the prefixes of flags ('loss', 'miner', 'data') to the names of the methods that a run uses."""
    return {'loss': used_losses(opt), 'miner': used_miners(opt), 'data': {opt.data_sampler}}


def is_idle(action, opt, used):
    """Returns True if other flags make this one irrelevant in a training run. used: result of used_methods()."""
    known, kind = facts(action), action.dest.split('_')[0]
    return (known.obsolete or known.effect and not known.effect(opt)
            or known.of is not None and used[kind].isdisjoint(known.of))


def method(name):
    """The part of a flag's name that stands for a loss or miner: its own name, or its library: pml or torch."""
    return name.partition(':')[0] if name.startswith((pml.PREFIX, torch_losses.PREFIX)) else name
