"""
Every flag of main.py, grouped, and declared once with all that is known of it.

`add` and `switch` take what argparse takes, and Facts (flags/help_texts.py): which methods use the flag, whether it
names a file, and so on. Whether --resume may change a flag is a property of its group.

A flag that belongs to one method is declared in its file (flags/method_flags.py) and named after it:
--loss_<loss>_<parameter>, --miner_<miner>_<parameter>, --data_<sampler>_<parameter>; it has an effect where the method
is used. Every part of the program gets the whole namespace.
"""
import argparse
import functools

import criteria
import datasampler
import evaluation
import optimization
from architectures import ARCHITECTURES
from batch_mining import BATCHMINERS
from criteria import CRITERIA
from datasampler import SAMPLERS
from datasets import DATASETS, image_list
from datasets.transforms import AUGMENTATIONS
from evaluation import METRICS, PICTURES
from flags import command_line, help_texts, method_flags
from flags.command_line import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, POSITIVE_INT, REAL, SIDE, new_group, number
from utilities.errors import UserError

EPILOG = """main.py --help margin         the flags of a loss, miner or sampler, and where else the word occurs
main.py --help evaluation     the flags of a group; more words give more pages
main.py --help resumable      the flags that --resume may change; machine: flags that do not change results
main.py --help all            every flag

docs/run_folder.md says more."""
WITH_STORAGE = [name for name, sampler in SAMPLERS.items() if getattr(sampler, 'REQUIRES_STORAGE', False)]
# Files with FLAGS, for which the public code of Roth et al. has files of the same name
OF_THE_PUBLIC_CODE = {
    'criteria': 'angular arcface contrastive histogram lifted margin multisimilarity npair proxynca quadruplet snr '
                'softmax softtriplet triplet',
    'batch_mining': 'distance parametric rho_distance semihard',
    'datasampler': 'class_random_sampler d2_coreset_sampler fid_batchmatch_sampler greedy_coreset_sampler'}


def require_flags(name, module):
    """Raises UserError if a file of the public code has taken the place of one of this program's, which has FLAGS."""
    package, _, file = getattr(module, '__name__', '').partition('.')
    if file in OF_THE_PUBLIC_CODE.get(package, '').split() and not hasattr(module, 'FLAGS'):
        raise UserError(f'{package}/{file}.py: this file of another program has taken the place of the file that '
                        f'declares the flags of {name}. Bring that one back, call yours public_{file}.py, and add '
                        f"'public_{name}': public_{file} to the registry in {package}/__init__.py")


def add_methods(add, switch, start, registry):
    """
    Adds the flags that the files of a registry declare. Those of a method are the flags that its file declares or USES.

    start: what the flags begin with, with {} for the method's name.
    """
    flags = {}
    users = {}
    for name, module in registry.items():
        require_flags(name, module)
        own = method_flags.declared(module, start.format(name))
        flags |= own
        for flag in [*own, *getattr(module, 'USES', ())]:
            users.setdefault(flag, []).append(name)
    for flag, values in flags.items():
        command_line.add_declared(add, switch, flag, values, of=users[flag])


def run_parameters(parser):
    add, switch = new_group(parser, 'what to do', 'by default: train; or evaluate a trained network')
    add('--config', nargs='+', metavar='FILE', default=[], common=True,
        help='YAML files of flags and values; later files override earlier ones, and the command line overrides all')
    add('--reproduce', metavar='RUN_FOLDER', help='start a new run with the settings of this run')
    add('--resume', metavar='RUN_FOLDER', common=True,
        help='continue this run exactly where it stopped; larger --n_epochs extends it; `--help resumable machine` '
             'lists flags that may change')
    switch('--merge_argparse_when_resuming',
           help='with --resume: other flags of training may change as well; what no longer fits them starts fresh')
    switch('--auto_resume',
           help='continue the run with this --group, this --seed and the same settings, or start it if there is none')
    add('--evaluate', metavar='RUN_FOLDER_OR_CHECKPOINT',
        help='do not train; print the metrics of a trained network')


def name_parameters(parser):
    add, switch = new_group(parser, 'names', 'seed and name of the run', resume='never')
    add('--seed', type=COUNT, default=1, common=True,
        help='seed of all random numbers of the run')
    add('--group', default='Sample_Group', common=True,
        help='name of the setting, shared by its runs with different seeds')
    add('--savename', default='group_plus_seed',
        help='name of the run folder; group_plus_seed means <group>_s<seed>')


def data_parameters(parser):
    add, switch = new_group(parser, 'data', 'data set, splits, labels, decoding, augmentation', resume='never')
    add('--dataset', default='cub200', common=True, names=DATASETS, embedding=True, help='data set')
    switch('--skip_bad_images', help='check every image at the start and leave out those that cannot be read')
    add('--split_scheme',
        choices={'half': 'training and test classes', 'class_folds': 'half, with folds of validation classes',
                 'mlrc': 'the class lists of Musgrave et al.',
                 'closed_set': 'every class in all splits, with folds of images', 'predefined': 'the official split'},
        help='how the data are split; by default predefined if there is an official split, else half')
    add('--splits_step', metavar='STEP',
        help='name of the step of difficulty in a --splits file that has several')
    add('--fold', metavar='K', type=COUNT, default=0,
        help='index of the validation fold, from 0, for a --split_scheme with folds')
    add('--n_folds', type=number(int, 2), default=4,
        help='number of folds, for a --split_scheme with folds')
    add('--n_training_folds', type=POSITIVE_INT,
        help='number of folds that may be used for validation, the first ones; by default all')
    add('--test_size', type=FRACTION, default=0.5,
        help="fraction of the classes (closed_set: of each class's images) in the test split")
    add('--test_start', type=FRACTION, default=0.5,
        help='start of the test range, as a fraction of the sorted classes; it wraps around')
    add('--train_level', metavar='N', type=COUNT, default=0,
        help='labels in training: 0 for classes, 1 for their super-classes, more for coarser levels')
    switch('--unsupervised', help='train with each image as a class of its own; evaluation uses the labels')
    switch('--use_tv_split', common=True, help='split a validation set off the training set')
    switch('--tv_split_by_samples',
           help='with --use_tv_split: validate on samples of every class instead of on whole classes')
    add('--tv_split_perc', type=number(float, 0, 1, above=True), default=0.8,
        help='with --use_tv_split: fraction of the training set that remains for training')
    add('--augmentation', default='base', names=AUGMENTATIONS, embedding=True, resume='merge',
        help='augmentation of the training images; docs/data.md explains each')
    add('--crop_scale', nargs=2, type=number(float, 0, 1, above=True), metavar=('MIN', 'MAX'), resume='merge',
        help='smallest and largest area of random crops, as fractions of the image; by default 0.08 (mlrc: 0.16) and '
             '1')
    add('--crop_ratio', nargs=2, type=POSITIVE, metavar=('MIN', 'MAX'), resume='merge',
        help='limits of width / height of random crops; by default 3/4 and 4/3 times that of --input_size (mlrc: '
             '0.75, 1.33)')
    add('--color_jitter', nargs=4, type=NOT_NEGATIVE, metavar=('BRIGHTNESS', 'CONTRAST', 'SATURATION', 'HUE'),
        resume='merge',
        help='largest random changes of brightness, contrast, saturation (factors 1 - x to 1 + x) and hue; by default '
             'none')
    add('--randaugment', nargs=2, type=COUNT, metavar=('N', 'M'), resume='merge',
        help='apply N random operations of magnitude M (0 to 30) to each training image; by default none')
    add('--random_erasing', type=FRACTION, default=0.0, metavar='P', resume='merge',
        help='probability of filling a random rectangle of a training image with the mean colour; 0 means never')
    add('--interpolation', choices=['bilinear', 'bicubic'], default='bilinear', embedding=True,
        help='interpolation with which images and crops are resized, in training and evaluation')
    add('--eval_size', nargs='+', type=SIDE, action=command_line.SizeOfImages, metavar='PIXELS', embedding=True,
        help='size of the images in evaluation, as --input_size, which is the default')
    add('--eval_fit',
        choices={'crop': 'the centre of the image', 'stretch': 'the whole image, stretched to the size',
                 'pad': 'the whole image in its ratio, with the mean colour around it'}, embedding=True,
        help='how images get their size in evaluation; by default stretch for the augmentations reid and characters, '
             'else crop')
    add('--eval_resize', type=SIDE, embedding=True,
        help='pixels of the shorter side before the centre crop in evaluation; by default 256, or 8/7 of the size')
    view = command_line.word_or('flip', POSITIVE, 'flip or a positive number')
    add('--eval_views', nargs='+', type=view, default=[], metavar='flip|FACTOR', embedding=True,
        help='in evaluation: the mean embedding of each image, its mirror image (flip) and the image scaled by these '
             'factors')


def csv_column(text):
    """An argparse type: NAME=COLUMN, a column of image_list and its name in a file, as text."""
    name, equals, column = text.partition('=')
    if not equals or not column or not (name in image_list.COLUMNS or name.startswith('superclass')):
        raise argparse.ArgumentTypeError(f'expected NAME=COLUMN with a NAME of {", ".join(image_list.COLUMNS)}, or one '
                                         f'that begins with superclass, not {command_line.shortened(text)}')
    return text


def frozen_part(text):
    """An argparse type: none, backbone, stem or a number of blocks, as text."""
    if text not in ('none', 'backbone', 'stem') and not text.isdecimal():
        raise argparse.ArgumentTypeError(f'expected none, backbone, stem or a number of blocks, not {text}')
    return text


def network_parameters(parser):
    add, switch = new_group(parser, 'network', 'backbone, pooling, embedding layer, input', resume='never')
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
    switch('--embed_norm_affine', embedding=True,
           help='give the layer of --embed_norm a trainable scale and shift')
    switch('--embed_bias', default=True, embedding=True,
           help='whether the embedding layer has a bias; --embed_bias false removes it')
    add('--embed_init',
        choices={'default': "torch's random weights", 'orthogonal': 'random orthogonal rows',
                 'kaiming': 'normal with standard deviation (2 / --embed_dim)^(1/2)',
                 'identity': 'the first --embed_dim features', 'pca': 'principal components of the training features'},
        default='default',
        help='initial weights of the embedding layer')
    add('--freeze', type=frozen_part, default='none', metavar='none|backbone|stem|N',
        help='part of the backbone that is not trained; N: the stem and the first N blocks; none trains all')
    add('--lora_rank', type=COUNT, default=0,
        help='rank of the trained adapters (LoRA) in the attention layers of a ViT; 0 means no adapters')
    switch('--not_pretrained',
           help='start from random instead of pretrained weights')
    add('--input_size', nargs='+', type=SIDE, action=command_line.SizeOfImages, metavar='PIXELS', embedding=True,
        help='side of the square input images in pixels, or height and width; by default as the network expects')
    add('--input_mean', nargs='+', type=REAL, embedding=True,
        help='mean of the input images per channel, for values in [0, 1]; by default as the network expects')
    add('--input_std', nargs='+', type=POSITIVE, embedding=True,
        help='standard deviation of the input images per channel; by default as the network expects')
    switch('--input_bgr', default=None, embedding=True,
           help='whether the channels are ordered blue, green, red; by default as the network expects')


def length_parameters(parser):
    add, switch = new_group(parser, 'length', 'how long to train', resume='free')
    add('--n_epochs', type=COUNT, default=150, common=True,
        help='number of training epochs; 0 only evaluates the network before training')
    add('--patience', type=POSITIVE_INT,
        help='stop when the best validation epoch is more than this many epochs ago; by default never')


def training_parameters(parser):
    add, switch = new_group(parser, 'training', 'batch size, optimizer, learning rates', resume='merge')
    add('--iterations_per_epoch', type=COUNT, default=0,
        help='number of batches per epoch; 0 leaves it to the sampler, usually training images // --bs')
    add('--bs', type=POSITIVE_INT, default=112, common=True,
        help='number of images per batch; with --views N, each image counts N times')
    switch('--deterministic', help='make the arithmetic repeatable on a GPU too, which is slower; the CPU always is')
    switch('--tf32', default=None,
           help='whether NVIDIA GPUs train in TF32, faster but less precise; by default as PyTorch: in convolutions')
    add('--amp', choices=['none', 'bfloat16', 'float16'], default='none',
        help='mixed precision of the network in training; none: float32; losses are always float32')
    add('--clip_grad', type=POSITIVE,
        help='largest norm of the gradient, to which larger gradients are scaled down; by default no limit')
    add('--clip_grad_value', type=POSITIVE,
        help="largest absolute value of a gradient's elements, after --clip_grad; by default no limit")
    add('--lr', type=NOT_NEGATIVE, default=0.00001, common=True, help='learning rate of the network')
    add('--fc_lr', type=REAL, default=-1.0,
        help='learning rate of the embedding layer; a negative value means --lr')
    add('--decay', type=NOT_NEGATIVE, default=0.0004, help='weight decay of the network')
    add('--layer_decay', type=FRACTION, default=1.0,
        help="a block's learning rate as a multiple of the next block's; the last block has --lr; 1: all equal")
    add('--decay_exclude', nargs='*', choices={'norms': 'those of normalisation layers', 'biases': 'all biases'},
        default=[], help='parameters of the network without weight decay; by default none')
    add('--loss_decay', type=NOT_NEGATIVE, default=0.0,
        help='weight decay of the parameters of the loss')
    kind = {'type': optimization.optimizer_name, 'names': optimization.OPTIMIZERS, 'metavar': 'NAME'}
    own = {'nargs': '*', 'type': command_line.yaml_mapping, 'default': [], 'metavar': 'YAML'}
    add('--optim', default='adam', **kind, help='optimizer of torch.optim')
    add('--optim_args', arguments_of='optim', **own,
        help="arguments of --optim that have no flag, as YAML, such as '{betas: [0.9, 0.99]}' or '{nesterov: true}'")
    add('--embed_optim', **kind, help='optimizer of the embedding layer; by default, --optim trains it')
    add('--embed_optim_args', arguments_of='embed_optim', **own,
        help="arguments of --embed_optim, as YAML, such as '{momentum: 0.5}'")
    add('--loss_optim', **kind,
        help='optimizer of the parameters of the loss; by default, --optim trains them')
    add('--loss_optim_args', arguments_of='loss_optim', **own,
        help='arguments of --loss_optim, as YAML')
    add('--adam_eps', type=POSITIVE, default=1e-8,
        help='added to the denominator in the optimizers adam and adamw')
    add('--momentum', type=FRACTION, default=0.9,
        help='momentum of sgd and rmsprop in all three optimizers, unless --embed_optim_args or --loss_optim_args say '
             'otherwise')
    add('--scheduler',
        choices={'none': 'constant', 'step': 'multiplied by --gamma after each epoch in --tau',
                 'cosine': 'annealed towards --lr_floor over --n_epochs',
                 'onecycle': 'raised from 1/25 until --onecycle_peak, then annealed towards --lr_floor'},
        default='step', help='schedule of all learning rates')
    add('--lr_floor', type=FRACTION, default=0.0,
        help='cosine and onecycle: fraction of the learning rates that the schedule approaches')
    add('--cosine_delay', type=COUNT, default=0,
        help='cosine: number of first epochs at the full rates; the annealing begins after them and would take '
             '--n_epochs')
    add('--onecycle_peak', type=FRACTION, default=0.3,
        help='onecycle: fraction of all steps after which the learning rates are highest')
    add('--lr_warmup', type=COUNT, default=0,
        help='number of epochs or steps at the start in which all learning rates rise; 0 means no warm-up')
    add('--lr_warmup_unit', choices=['epochs', 'steps'], default='epochs', help='unit of --lr_warmup')
    add('--ema', type=FRACTION, metavar='DECAY',
        help='decay per step of an averaged network, evaluated and saved in addition; by default no average')
    add('--gamma', type=NOT_NEGATIVE, default=0.3,
        help='factor of the learning rates in the step schedule')
    add('--tau', nargs='+', type=POSITIVE_INT, default=[1000], common=True,
        help='epochs after which the step schedule multiplies the learning rates by --gamma')
    add('--warmup', type=COUNT, default=0,
        help='number of epochs at the start in which the backbone is not trained; 0 means none')


def batch_creation_parameters(parser):
    add, switch = new_group(parser, 'batch creation', 'samplers: which images form a batch', resume='merge')
    add('--data_sampler', default='class_random', common=True, names=SAMPLERS, help='batch sampler')
    add('--samples_per_class', type=POSITIVE_INT, default=2,
        help='number of images per class in a batch')
    add('--views', metavar='N', type=POSITIVE_INT, default=1,
        help='number of times that each image is in its batch, each differently augmented; --bs counts all')
    add_methods(add, switch, 'data_', SAMPLERS)
    for flag, values in method_flags.declared(datasampler.storage, 'data_').items():
        command_line.add_declared(add, switch, flag, values, of=WITH_STORAGE)


def batch_mining_parameters(parser):
    add, switch = new_group(parser, 'batch mining', 'miners: which tuples of a batch the loss gets', resume='merge')
    add('--batch_mining', default='distance', common=True, names=BATCHMINERS,
        help='miner, also pml:NAME, a class of pytorch-metric-learning')
    add_methods(add, switch, 'miner_{}_', BATCHMINERS)
    add('--miner_pml_args', of=['pml'], nargs='*', type=command_line.yaml_mapping, default=[], metavar='YAML',
        arguments_of='batch_mining',
        help="arguments of pml:NAME as YAML, such as '{epsilon: 0.2}'; one mapping per such miner, or for all")


def loss_parameters(parser):
    add, switch = new_group(parser, 'losses', 'losses and what is added to any loss', resume='merge')
    add('--loss', default='margin', common=True, names=CRITERIA,
        help='loss, also pml:NAME of pytorch-metric-learning, torch:NAME of torch.nn, or a sum a+b with miners c+d')
    add('--loss_weights', nargs='+', type=REAL, default=[],
        help='weights of the losses in a sum of losses; by default 1 each')
    for wrapper in (*criteria.wrapping.AROUND_A_LOSS, *criteria.wrapping.AROUND_THE_SUM):
        for name, values in method_flags.declared(wrapper, '').items():
            command_line.add_declared(add, switch, name, values)
    add('--loss_pml_args', of=['pml'], nargs='*', type=command_line.yaml_mapping, default=[], metavar='YAML',
        arguments_of='loss',
        help="arguments of pml:NAME as YAML, such as '{margin: 0.1}'; one mapping per such loss, or for all")
    add('--loss_pml_lr', of=['pml'], type=REAL, default=-1.0,
        help='learning rate of the parameters of pml:NAME; a negative value means --lr')
    add('--loss_torch_args', of=['torch'], nargs='*', type=command_line.yaml_mapping, default=[], metavar='YAML',
        arguments_of='loss',
        help="arguments of torch:NAME as YAML, such as '{label_smoothing: 0.1}'; one mapping per such loss, or for all")
    add('--loss_torch_lr', of=['torch'], type=REAL, default=-1.0,
        help='learning rate of the classifier of torch:NAME; a negative value means --lr')
    add_methods(add, switch, 'loss_{}_', CRITERIA)


def evaluation_parameters(parser):
    add, switch = new_group(parser, 'evaluation', 'metrics, splits, queries and gallery', resume='free')
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
    add('--eval_bs', type=POSITIVE_INT,
        help='number of images that are embedded at a time in evaluation; by default --bs')
    switch('--check_untrained_accuracy', default=True,
           help='evaluate the network before training, as epoch 0')
    add('--cluster_every', type=POSITIVE_INT, default=1,
        help='number of epochs between computations of nmi, ami and f1; epoch --n_epochs has them, a '
             'stop by --patience may not')
    add('--bootstrap', metavar='N', type=COUNT, default=0,
        help='number of resamples of the classes for 95 percent intervals of retrieval metrics; 0: none')
    switch('--eval_normalize', embedding=True, help='L2-normalise the embeddings before evaluation')
    switch('--eval_ema', embedding=True,
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
    add('--eval_draws', metavar='N', type=COUNT, default=0,
        help='number of random galleries of a few images of each class, with all others as queries; 0: none')
    add('--eval_draw_size', metavar='K', type=POSITIVE_INT, default=1,
        help='--eval_draws: number of images of each class in a random gallery')
    add('--evaltypes', nargs='+', choices=['discriminative'], default=['discriminative'], obsolete=True,
        help='without effect, since a network has one kind of embedding; for scripts of the public code')


def record_parameters(parser):
    add, switch = new_group(parser, 'records', 'pictures, statistics, online backends', resume='free')
    add('--pictures', nargs='+', choices=['none', evaluation.curves.SINGLE, *PICTURES], metavar='PICTURE',
        default=['retrieval', 'spectrum', 'distances', 'classes'], names=PICTURES,
        help='plots of the test split saved after the last epoch; metrics: a file of curves per metric; or none')
    switch('--tuple_statistics',
           help='count hard pairs in each batch, and write the mean of every training scalar over the epoch to log.csv')
    switch('--log_online',
           help='log to --online_backend as well; without a key or a connection, into the run folder')
    add('--online_backend', choices=['wandb', 'comet_ml', 'none'], default='wandb',
        help='service that --log_online logs to')
    add('--wandb_key', secret='WANDB_API_KEY',
        help='W&B key; safer in the environment variable WANDB_API_KEY or by `wandb login`')
    add('--project', default='Sample_Project', help='name of the project at the online backend')


def machine_parameters(parser):
    add, switch = new_group(parser, 'machine', 'paths, devices, and what changes no result', resume='free')
    add('--save_path', default='Training_Results', common=True,
        help='folder for all results; the run folder is <save_path>/<dataset>/<savename>')
    add('--source_path', '--source', default='../../Datasets', common=True,
        help='folder with the folders of the data sets; for --dataset folder, the folder that contains images/, or '
             'train/ and test/')
    add('--csv', metavar='FILE', file=True,
        help='for --dataset folder: CSV file of paths and labels; by default the folders in images/ are classes')
    add('--csv_columns', nargs='+', type=csv_column, default=[], metavar='NAME=COLUMN',
        help='names of columns in the --csv file, as in label=identity')
    add('--splits', metavar='FILE', file=True,
        help='JSON or YAML file with the classes of each split, in place of --split_scheme')
    switch('--download', help='download the data set first, if it has a stable public address')
    add('--start_from', metavar='RUN_FOLDER_OR_CHECKPOINT', file=True,
        help='train on from a trained network, its backbone and its embedding layer, in a new run')
    add('--weights', metavar='FILE', file=True,
        help="file with the backbone's pretrained weights, a state dict; by default they are downloaded")
    add('--device', choices=command_line.DEVICES, default='auto', help='device to compute on')
    add('--gpu', nargs='+', type=COUNT, default=[0], common=True,
        help='indices of NVIDIA GPUs, from 0; several train one run together, one process each')
    add('--kernels', type=COUNT, default=6, common=True,
        help='number of data loading processes, at most one per core; 0 loads in the main process')
    add('--micro_bs', type=COUNT, default=0,
        help='largest number of images embedded at once; a larger batch is divided, with the same loss; 0: no limit')
    switch('--compile', help='compile the network for training with torch.compile')
    switch('--keep_features', default=True,
           help='with --freeze backbone: compute the features once; --keep_features false computes them in each epoch')
    switch('--evaluate_on_gpu', help='compute the metrics on the GPU too, if there is one')


@functools.cache
def build():
    """The parser of main.py, which nobody changes."""
    parser = command_line.Parser(
        prog='main.py', usage='main.py [FLAG ...]', epilog=EPILOG,
        description='Trains an embedding network on some classes and evaluates it on unseen ones.')
    for add in (run_parameters, name_parameters, data_parameters, network_parameters, length_parameters,
                training_parameters, batch_creation_parameters, batch_mining_parameters, loss_parameters,
                evaluation_parameters, record_parameters, machine_parameters):
        add(parser)
    return parser


@functools.cache
def flags_with(fact, value=None):
    """{flag: value of this fact (an attribute of Facts)} of the flags for which it is set, or has this value."""
    found = {action.dest: getattr(help_texts.facts(action), fact) for action in build()._actions}
    return {name: own for name, own in found.items() if own and (value is None or own == value)}


@functools.cache
def defaults():
    """{flag: its default}"""
    return {action.dest: action.default for action in build()._actions}


@functools.cache
def flags_of_group(*titles):
    """The names of the flags in groups of --help, a set."""
    return frozenset(command_line.flags_in_groups(build(), *titles))


@functools.cache
def training_flags():
    """The flags that only a training run reads, and no evaluation of a trained network."""
    of_both = {'bs', 'amp', 'tf32', 'deterministic', 'pictures'}
    return flags_of_group('length', 'training', 'batch creation', 'batch mining', 'losses', 'records') - of_both


def modes():
    """The flags that select what this process does."""
    return flags_of_group('what to do')


def beside_settings():
    """The flags that are no settings of a run: results depend at most on the files that they name."""
    return flags_of_group('what to do', 'records', 'machine')


def settings_among(flags):
    """Those of the flags, {flag: value}, that are settings of the run."""
    return {name: value for name, value in flags.items() if name not in beside_settings()}


def files_among(flags):
    """Those of the flags, {flag: value}, that are no settings but name files, whose content counts."""
    return {name: value for name, value in flags.items() if name in flags_with('file').keys() & beside_settings()}


def may_differ():
    """The flags in which the runs of one setting may differ."""
    return beside_settings() - flags_with('file').keys()
