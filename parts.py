"""The parts of a run, built from the flags: network, data, and all that trains the network."""
import functools
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import architectures
import batch_mining
import configuration
import criteria
import datasampler
import datasets
import evaluation
import optimization
import training_step
from architectures import embedding_layer, weights
from datasets import features
from evaluation.embedding import evaluation_batches
from flags.namespace import changed, flags_of_losses, unnoted
from optimization import moving_average
from records import backends, checkpoint
from records.state import State, attributes, load_trained, reached, root
from utilities import device, libraries, mined, processes
from utilities.errors import UserError, choose
from utilities.files import cache_folder
from utilities.image_size import sides, written
from utilities.randomness import preserved, seed_everything


@dataclass
class Parts:
    """
    The parts of one run. criterion: None in an evaluation that ranks by distance. miner, sampler, optimizer, schedule
    and step: None where nothing is trained. ema: None without --ema. teacher: None without --distill; it is the moving
    average, or the network of another run. skipped_in_a_row: number of consecutive skipped steps at the end of the last
    epoch. transform: of the training images. offered: {name of a call: the methods of the parts}.
    """
    model: torch.nn.Module
    data: datasets.Data
    criterion: torch.nn.Module | None = None
    miner: object = None
    sampler: torch.utils.data.Sampler | None = None
    optimizer: torch.optim.Optimizer | None = None
    schedule: optimization.Schedule | None = None
    ema: moving_average.MovingAverage | None = None
    step: training_step.TrainingStep | None = None
    teacher: torch.nn.Module | None = None
    skipped_in_a_row: int = 0
    transform: object = None

    offered: dict = field(default_factory=dict)

    LEFT_OUT = ('data', 'offered', 'teacher')        # parts without saved state; `ema` and `step` have the teacher, too

    def offering(self, name):
        """
        [(part, object)] of all objects that have a method of this name: the parts, and the objects inside them, but not
        copies of the network, such as a teacher. The network comes late, since methods of other parts may embed images,
        which leaves it in evaluation mode. The step comes last, since it copies the weights to all processes.
        """
        order = [*vars(self)]
        objects = reached(self)[1]
        copies = {id(module) for thing in objects.values() if isinstance(thing, type(self.model))
                  and thing is not self.model for module in thing.modules()}
        # getattr() would not do: a wrapper's __getattr__ may hand on the methods of the part inside it
        found = [(root(place), thing) for place, thing in objects.items() if place and id(thing) not in copies
                 and callable(attributes(thing).get(name, getattr(type(thing), name, None)))]
        return sorted(found, key=lambda one: (one[0] == 'step', one[0] == 'model', order.index(one[0])))

    def call(self, name, *arguments):
        """
        Calls a method of all parts that have it: start_epoch(epoch) before each epoch; stepped(embeddings, labels,
        indices, step) after each update, in process 0; evaluated(row, embedded, epoch) after each evaluation.
        """
        if name not in self.offered:                              # a walk through all parts, too slow for each step
            self.offered[name] = [getattr(thing, name) for _, thing in self.offering(name)]
        for method in self.offered[name]:
            method(*arguments)

    def log(self):
        """{name: scalar} of the dicts `log` of the parts; miner_<name> and so on for all parts but the criterion."""
        found = {}
        for part, value in vars(self).items():
            several = value if isinstance(value, list) else [value]
            for place, one in enumerate(several):
                log = getattr(one, 'log', None)
                if not isinstance(log, dict):
                    continue
                prefix = f'{part}_{place}_' if isinstance(value, list) else f'{part}_'
                if part == 'criterion':
                    prefix = ''
                found |= {f'{prefix}{name}': scalar for name, scalar in log.items()}
        return found

    def with_state(self):
        """{name: part} of the parts whose state dicts a checkpoint has under these names."""
        average = self.ema.average if self.ema else None
        found = {'model': self.model, 'criterion': self.criterion, 'optimizer': self.optimizer,
                 'ema': average} | self.further_optimizers()
        return {name: part for name, part in found.items() if part is not None}

    def state(self, device):
        """The State of all other attributes of the parts. A teacher is the moving average, or is not trained."""
        fixed = [self.teacher] if self.teacher else []
        return State(self, [*self.with_state().values(), *fixed], device)

    def further_optimizers(self):
        """{name: optimizer} beside `optimizer`: of --embed_optim and --loss_optim, and the criterion's own."""
        own = {'criterion': mined.optimizers(self.criterion) if self.criterion else []}
        for part, thing in self.offering_outside_criterion('optimizers'):
            own.setdefault(part, []).extend(thing.optimizers())
        of_flags = self.schedule.further if self.schedule else {}
        return of_flags | {f'{part}_optimizer_{number}': optimizer for part, optimizers in own.items()
                           for number, optimizer in enumerate(optimizers, start=1)}

    def further_groups(self):
        """The optimizer groups that the parts beside network and criterion, and plain objects in the latter, give."""
        return [{'name': part} | group for part, thing in self.offering_outside_criterion('parameter_groups')
                if part != 'model' for group in thing.parameter_groups()]

    def offering_outside_criterion(self, name):
        """offering(name), without the modules of the criterion, which optimization.select() asks by itself."""
        modules = {id(module) for module in self.criterion.modules()} if self.criterion else ()
        return [(part, thing) for part, thing in self.offering(name) if id(thing) not in modules]


def build(opt):
    """The Parts of a training run. Raises UserError for flags, files or data that do not go together."""
    check_names(opt)
    parts = prepare(opt)
    check(unnoted(opt), parts.data)
    datasampler.choose_batch(opt, parts.data.train)
    if opt.start_from and not has_checkpoint(opt):
        start_from(opt, parts.model)
    elif not has_checkpoint(opt):
        fit_embedding(opt, parts)
    parts.miner = batch_mining.select(opt, criteria.takes_miner)
    parts.criterion = criteria.select(opt, parts.miner).to(opt.device)
    check_pairs(unnoted(opt), parts.criterion)
    # any batch size is allowed with --n_epochs 0, since no batch is sampled
    drawn = opt if opt.n_epochs else changed(opt, bs=2, samples_per_class=2, views=1)
    parts.sampler = datasampler.select(drawn, parts.data.train, parts.criterion)
    n_steps = opt.iterations_per_epoch or len(parts.sampler)
    let_embed(opt, parts, n_steps)
    parts.optimizer, parts.schedule = optimization.select(opt, parts.model, parts.criterion, n_steps,
                                                          parts.further_groups())
    parts.ema = None if opt.ema is None else moving_average.MovingAverage(parts.model, opt.ema)
    takes_teacher = 'teacher_batch' in criteria.inputs(parts.criterion)
    if takes_teacher and opt.distill == 'ema':
        parts.teacher = parts.ema.average
    elif takes_teacher:
        parts.teacher = load_teacher(opt, parts.model.input_size)
    parts.step = training_step.TrainingStep(opt, parts)
    return parts


def let_embed(opt, parts, n_steps):
    """
    Gives a memory bank the function embed() -> embeddings of the training images [N, D], and a miner that learns the
    function validate(metrics, step) -> {metric: value} of the validation images, and the progress of the training.
    """
    without_views = changed(opt, eval_views=[])                   # embeddings of the training, which has none

    def embed():
        with preserved():
            return evaluation.embed(without_views, parts.model, parts.data.evaluation['train'], 'train').embeddings

    @functools.lru_cache(maxsize=1)                               # the miners of a sum ask for the same metrics
    def validate(metrics, step):
        with processes.alone():
            found = evaluation.validate(opt, parts.model, parts.data, metrics)
        return found | {'progress': step / (opt.n_epochs * n_steps)}

    if hasattr(parts.sampler, 'storage'):
        parts.sampler.storage.embed = embed
    for miner in parts.miner if isinstance(parts.miner, list) else [parts.miner]:
        if getattr(miner, 'update_every', 0):
            batch_mining.check_feedback(parts.data.evaluation.get('val'))
            miner.validate = validate


def check_names(opt):
    """
    Raises UserError for an unknown loss, miner, sampler, data set, augmentation or network, and for a loss without the
    miner that it needs; builds none of them.
    """
    for part in flags_of_losses(opt):
        for flag, name, kind, known in (('--loss', part.loss, 'losses', criteria.CRITERIA),
                                        ('--batch_mining', part.batch_mining, 'miners', batch_mining.BATCHMINERS)):
            if kind == 'losses' and name.startswith(libraries.TORCH):
                libraries.torch_target(name)
            elif name.startswith(libraries.PML):
                libraries.find(kind, name.removeprefix(libraries.PML), flag)
            else:
                choose(known, name, flag)
        miner = None if part.batch_mining == 'none' else part.batch_mining
        criteria.check_miner(part, miner)
    choose(datasampler.SAMPLERS, opt.data_sampler, '--data_sampler')
    choose(datasets.DATASETS, opt.dataset, '--dataset')
    choose(datasets.transforms.AUGMENTATIONS, opt.augmentation, '--augmentation')
    architectures.find(opt.arch)


def check(opt, data):
    """Raises UserError for flags of a training run that its data, or other flags, do not allow."""
    splits = evaluation.splits_to_evaluate(opt, data)
    if opt.patience and 'val' not in splits:
        raise UserError('--patience stops by a validation split, never by the test split, and no validation split is '
                        'evaluated: add --use_tv_split or --split_scheme class_folds')
    if opt.n_epochs and data.train.n_classes == 1:
        raise UserError(f'--dataset {opt.dataset}: there is only one training class, {data.train.class_names[0]}, and '
                        'losses compare images of at least two; add classes, or move some into the training split '
                        '(--test_size, --split_scheme, --use_tv_split)')
    metric, level = evaluation.metric_and_level(opt.storage_metrics[0])
    evaluated = [data.evaluation[name] for name in splits]
    needs = evaluation.parse(metric)[1].needs
    if (needs == 'ranks' and level != 'parent' and opt.eval_reference == 'self'
            and not any(has_positives(images, level) for images in evaluated)):
        raise UserError(f'--storage_metrics {opt.storage_metrics[0]}: no evaluated image ({", ".join(splits)}) has a '
                        'positive: retrieval needs classes of two images or more (at the level across, of two groups '
                        'or more), and queries whose classes are in the gallery')


def has_positives(images, level):
    """Whether any query of an ImageSet has a positive in its gallery; at the level across, one of another group."""
    groups = images.groups if level == 'across' else None
    return datasets.splits.lone_queries(images, groups) < images.is_query.sum()


def check_pairs(opt, criterion):
    """Raises UserError for batches without two images of a class, or of one class, if the criterion needs pairs."""
    if not opt.n_epochs or not criteria.needs_pairs(criterion):
        return
    if opt.bs == opt.samples_per_class * opt.views and datasampler.distinct(opt) in ('classes', 'groups'):
        views = f' and --views {opt.views}' if opt.views > 1 else ''
        raise UserError(f'--samples_per_class {opt.samples_per_class}: with --bs {opt.bs}{views}, a batch has one '
                        f'class only, and --loss {opt.loss} compares images of at least two; give a larger --bs')
    if opt.views > 1:
        return
    if opt.unsupervised:
        raise UserError(f'--unsupervised: an image is alone in its class, and --loss {opt.loss} needs pairs of a '
                        'class; give --views 2 or more')
    if opt.samples_per_class == 1 and datasampler.distinct(opt) == 'classes':
        raise UserError(f'--samples_per_class 1: --data_sampler {opt.data_sampler} makes batches without two images of '
                        f'a class, and --loss {opt.loss} needs such pairs; give at least 2')


def prepare(opt):
    """
    Returns Parts with network and data, and sets the values that these determine: opt.device, opt.input_size,
    opt.n_classes, opt.class_names, opt.class_counts (images per training class), opt.superclasses, opt.n_features,
    opt.n_maps.
    """
    backends.check(opt)
    opt.device = device.select(opt)
    device.set_arithmetic(opt)
    device.keep_freed()
    seed_everything(opt.seed)
    backbone = build_backbone(opt)
    data = processes.one_first(lambda: datasets.select(opt, backbone.size))               # it may be downloaded here
    opt.n_classes = data.train.n_classes
    opt.class_names = data.train.class_names
    opt.class_counts = np.bincount(data.train.labels, minlength=opt.n_classes).tolist()
    opt.superclasses = data.train.superclass_labels
    opt.n_features = backbone.n_features
    opt.n_maps = architectures.embedding_network.count_maps(backbone)
    evaluation.check_data(unnoted(opt), data)
    model = build_network(opt, backbone)
    if 'why' in opt.pictures:
        evaluation.why.check(opt, model)
    return Parts(model, data, transform=data.train.transform)


def fit_embedding(opt, parts):
    """Fits the embedding layer to the features of the training images, with --embed_init pca."""
    if opt.embed_init == 'pca':
        keep_evaluated_features(opt, parts)
        train = parts.data.evaluation['train']
        rows = evaluation.embed(changed(opt, eval_views=[]), parts.model, train, 'train', features=True).embeddings
        embedding_layer.fit(opt, parts.model.f_embed, rows)


def build_backbone(opt):
    """The Backbone of --arch; sets opt.input_size. Loads no pretrained weights if a checkpoint has the weights."""
    opt.input_size = opt.input_size or datasets.transforms.SIZES.get(opt.augmentation)
    if opt.evaluate or has_checkpoint(opt) or opt.start_from:
        opt.weights = None
        opt.not_pretrained = True
    return architectures.select_backbone(opt)


def build_network(opt, backbone):
    """The network with this Backbone, on the device."""
    model = processes.one_first(lambda: architectures.select(opt, backbone))            # weights may be downloaded here
    is_faster = opt.device.type == 'cpu' or device.is_gpu(opt.device) and opt.amp != 'none'
    if is_faster and backbone.f_embed is None:                    # public networks need torch's default layout
        model = model.to(memory_format=torch.channels_last)       # faster there
    return model.to(opt.device)


def start_from(opt, model):
    """
    Loads the network of --start_from, a run folder or checkpoint, backbone and embedding layer, or a file of another
    program with all its weights. Raises UserError if it cannot be read or has other weights.
    """
    try:
        states = checkpoint.load(checkpoint.find(opt.start_from))
    except checkpoint.OtherFile:
        weights.load_whole(model, opt.start_from)
        return
    except UserError as error:
        raise UserError(f'--start_from: {error}') from None
    try:
        load_trained('model', model, states)
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[-1].strip()[:200]            # the first line only names the class
        raise UserError(f'--start_from {opt.start_from}: its weights do not fit the network of this run '
                        f'({reason})') from None
    print(f'started from {checkpoint.find(opt.start_from)}, epoch {states["epoch"]}')


def load_teacher(opt, size):
    """
    The network of --distill, which is not trained. Raises UserError if it cannot be read, or if it takes images of
    another size than `size`.
    """
    try:
        own = configuration.parse(['--evaluate', opt.distill])
        states = checkpoint.load(checkpoint.find(opt.distill))
    except UserError as error:
        raise UserError(f'--distill: {error}') from None
    own.device = opt.device
    with torch.random.fork_rng(devices=[]):                       # weights are random before they are loaded
        network = build_network(own, build_backbone(own))
    load_weights(own, f'--distill {opt.distill}', states, network)
    if network.input_size != size:
        raise UserError(f'--distill {opt.distill}: its network takes images of {written(network.input_size)} pixels, '
                        f'and this run\'s network images of {written(size)}; give this run --input_size '
                        f'{" ".join(map(str, dict.fromkeys(sides(network.input_size))))}')
    print(f'teacher: {own.arch} of {checkpoint.find(opt.distill)}, epoch {states["epoch"]}')
    return network.requires_grad_(False)


def has_checkpoint(opt):
    """Whether the run of --resume has a checkpoint, so that no other weights are needed."""
    return bool(opt.resume) and (Path(opt.resume) / checkpoint.LAST).exists()


def keep_features(opt, parts):
    """
    Replaces images by their pooled features, so that the backbone is applied to them only once, as long as no layer
    that computes the features is trained (has_fixed_features, asked in every epoch). This concerns the evaluated images
    and, if they are not augmented, the training images. Prints which images are replaced.

    Training images are not replaced if the criterion takes images or feature maps, if there is a teacher, or if the
    features of an image depend on the rest of its batch.
    """
    of_evaluated = keep_evaluated_features(opt, parts)
    train = parts.data.train
    train.features = parts.data.evaluation['train'].features
    takes_images = {'feature_maps', 'images'} & criteria.inputs(parts.criterion)
    of_training = (train.features is not None and parts.teacher is None and not takes_images
                   and not datasets.transforms.is_random(opt) and keep_training_features(opt, parts))
    kept = ['evaluated'] * of_evaluated + ['training'] * of_training
    if kept:
        print(f'--freeze backbone: the features of the {" and ".join(kept)} images are computed once; cache: '
              f'{cache_folder()}')


def keep_evaluated_features(opt, parts):
    """
    The part of keep_features() for the evaluated images. Returns whether they are replaced. They are not with mixed
    precision, compilation or several processes, since results could change, nor with --eval_views, which need images.
    """
    model, data = parts.model, parts.data
    if (not opt.keep_features or not opt.n_epochs or processes.count() > 1 or opt.eval_autocast or opt.amp != 'none'
            or opt.compile or not model.has_fixed_features()):
        return False
    fixed = features.FixedFeatures(model, *[parts.ema.average] if parts.ema else [])
    for split, images in data.evaluation.items():
        images.features = fixed
        if {*opt.eval_views} <= {1}:
            batches = [[*batch] for batch in evaluation_batches(opt, images)[0]]
            keep(opt, model, images, split, batches, evaluation.embed_batch, batches[:1])
    return len(fixed) > 0


def keep_training_features(opt, parts):
    """
    The part of keep_features() for the training images, in batches as large as those of the training. Returns whether
    they are replaced.
    """
    n_images = len(parts.data.train)
    size = math.ceil(opt.bs / math.ceil(opt.bs / (opt.micro_bs or opt.bs)))              # size of the largest piece
    batches = [[index % n_images for index in range(start, start + size)] for start in range(0, n_images, size)]
    mixed = [(torch.arange(size).flip(0) - size) % n_images, torch.linspace(0, n_images - 1, size).long()]
    return keep(opt, parts.model, parts.data.train, 'train', batches, evaluation.network_outputs,
                [batch.tolist() for batch in mixed])


def keep(opt, model, images, split, batches, embedding, compared):
    """
    Adds pooled features to the FixedFeatures of an ImageSet, if `embedding` gives the same result for features and for
    images in the batches `compared`; returns whether it does. The features come from the cache folder, or are computed
    in these batches.
    """
    file = features.file_of(opt, model, images, batches)
    rows = features.read(file, (len(images), model.n_features))
    if rows is None or not evaluation.features_suffice(embedding, model, images, rows, compared):
        rows = evaluation.pooled_features(opt, model, images, batches, split)
        features.write(file, rows)
        if not evaluation.features_suffice(embedding, model, images, rows, compared):
            return False
    images.features[images, repr(images.transform)] = features.FeatureSet(images, rows)
    return True


def restore(opt, source):
    """The Parts of an evaluation, with the weights of the run folder or checkpoint `source`."""
    states = checkpoint.load(checkpoint.find(source))
    require_possible(opt, source, states)
    parts = prepare(opt)
    load_weights(opt, source, states, parts.model)
    parts.criterion = ranking_criterion(opt, source, states)
    checkpoint.note_changed_data(source, states, parts.data.description)
    print(f'{checkpoint.find(source)}, epoch {states["epoch"]}')
    return parts


def ranking_criterion(opt, source, states):
    """The trained criterion in the `states` of a checkpoint if evaluation ranks by its distance; otherwise None."""
    if not criteria.has_own_distance(opt):
        return None
    with preserved():
        criterion = criteria.select(opt, batch_mining.select(opt, criteria.takes_miner)).to(opt.device)
    if not hasattr(criterion, 'ranking_embeddings'):
        return None
    try:
        load_trained('criterion', criterion, states)
    except (RuntimeError, ValueError, KeyError):
        raise UserError(f'{source}: --loss {opt.loss} ranks by its own distance, and its class weights do not fit the '
                        'number of classes of these data; evaluate it on the data of its run') from None
    return criterion


def restore_network(opt, source):
    """The trained network of `source` as restore() gives it, without its data; sets opt.device and opt.input_size."""
    states = checkpoint.load(checkpoint.find(source))
    require_possible(opt, source, states)
    opt.device = device.select(opt)
    model = build_network(opt, build_backbone(opt))
    load_weights(opt, source, states, model)
    return model


def require_possible(opt, source, states):
    """Raises UserError for layers wider than the weights of a checkpoint can be, before memory is taken for them."""
    widest = sum(max(part.shape, default=0) for part in states['model'].values())
    if max(opt.embed_dim, *opt.embed_layers, opt.lora_rank) > widest:
        raise UserError(f'{source}: its weights do not fit the flags --embed_dim, --embed_layers and --lora_rank: they '
                        f'have {widest:,} rows or columns altogether')


def load_weights(opt, source, states, model):
    """The weights in the `states` of a checkpoint -> the network; with --eval_ema, their moving average."""
    part = 'ema' if opt.eval_ema else 'model'
    if part not in states:
        raise UserError(f'--eval_ema: {source} has no moving average of the weights; it was trained without --ema')
    try:
        load_trained(part, model, states)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f'{source}: its weights do not fit the flags ({" ".join(str(error).split())[:200]})') from None


def summary(opt, folder, built, first):
    """The lines that are printed before the run: its folder, network, device and data."""
    place = f'{folder}, continued at epoch {first}' if first else folder
    n_parameters = sum(parameter.numel() for parameter in built.model.parameters())
    size = written(built.model.input_size)
    splits = []
    for name, part in built.data.description['splits'].items():
        text = f'{name}: {part["n_images"]:,} images of {part["n_classes"]:,} classes'
        if part['n_lone_queries']:
            text += (' (without an image of their class in the gallery, and left out of the retrieval metrics: '
                     f'{part["n_lone_queries"]:,})')
        splits.append(text)
    return (f'run folder: {place}\n'
            f'{opt.arch}: {n_parameters:,} parameters, images of {size} pixels, {opt.device}\n'
            f'{opt.dataset}: {"; ".join(splits)}')
