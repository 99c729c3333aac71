"""The parts of a run, built from the flags: network and data, and what trains them."""
import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

import architectures
import batch_mining
import criteria
import datasampler
import datasets
import evaluation
import optimization
import parameters
import training_step
from architectures import embedding_layer
from utilities import allocator, backends, checkpoint, device, processes
from utilities.errors import UserError
from utilities.randomness import seed_everything


@dataclass
class Checksum:
    """Of the network that `place` contains. As a part of a run with a state, it makes a resumed run refuse another."""
    place: str
    value: str

    def state_dict(self):
        return {'checksum': self.value}

    def load_state_dict(self, state):
        if state != self.state_dict():
            raise ValueError(f'the network of {self.place} is not the one that the run began with')


@dataclass
class Parts:
    """
    What one run is made of. criterion: None in an evaluation that ranks by distance. miner, sampler, optimizer,
    schedule and step: None where nothing is trained. ema: None without --ema. teacher: None without --distill;
    teacher_checksum: None if the teacher is the moving average.
    """
    model: torch.nn.Module
    data: datasets.Data
    criterion: torch.nn.Module | None = None
    miner: object = None
    sampler: torch.utils.data.Sampler | None = None
    optimizer: torch.optim.Optimizer | None = None
    schedule: optimization.Schedule | None = None
    step: training_step.TrainingStep | None = None
    ema: optimization.MovingAverage | None = None
    teacher: torch.nn.Module | None = None
    teacher_checksum: Checksum | None = None

    def with_state(self):
        """{name: part} of the parts that a checkpoint must hold."""
        parts = vars(self) | {'storage': getattr(self.sampler, 'storage', None),
                              'scaler': getattr(self.step, 'scaler', None)}
        return {name: part for name, part in parts.items() if hasattr(part, 'state_dict') and name != 'teacher'}


def build(opt):
    """The Parts of a training run. Raises UserError for what the user must change."""
    parts = prepare(opt)
    check(opt, parts.data)
    datasampler.choose_batch(opt, parts.data.train)
    if opt.embed_init in embedding_layer.FITTED and not has_checkpoint(opt):
        train = parts.data.evaluation['train']
        features = evaluation.embed(opt, parts.model, train, 'train', features=True).embeddings
        embedding_layer.fit(opt, parts.model.f_embed, features, train.labels)
    parts.miner = batch_mining.select(opt)
    batch_mining.check_feedback(parts.miner, parts.data.evaluation.get('val'))
    parts.criterion = criteria.select(opt, parts.miner).to(opt.device)
    # with --n_epochs 0 no batch is sampled, so that any batch size is allowed
    drawn = opt if opt.n_epochs else argparse.Namespace(**vars(opt) | {'bs': 2, 'samples_per_class': 2, 'views': 1})
    parts.sampler = datasampler.select(drawn, parts.data.train)
    n_steps = opt.iterations_per_epoch or len(parts.sampler)
    parts.optimizer, parts.schedule = optimization.select(opt, parts.model, parts.criterion, n_steps)
    parts.ema = None if opt.ema is None else optimization.MovingAverage(parts.model, opt.ema)
    if criteria.has_teacher(opt) and opt.distill == 'ema':
        parts.teacher = parts.ema.average
    elif criteria.has_teacher(opt):
        parts.teacher, parts.teacher_checksum = load_teacher(opt, parts.model.input_size)
    parts.step = training_step.TrainingStep(opt, parts)
    return parts


def check(opt, data):
    """Raises UserError for flags of a training run that its data, or other flags, do not allow."""
    splits = evaluation.splits_to_evaluate(opt, data)
    if opt.patience and 'val' not in splits:
        raise UserError('--patience needs a validation split that is evaluated: add --use_tv_split or --split_scheme '
                        'class_folds')
    pairs = criteria.need_positives(opt)
    if opt.n_epochs and opt.views == 1 and pairs and opt.unsupervised:
        raise UserError(f'--unsupervised: an image is alone in its class, and --loss {"+".join(pairs)} needs pairs of '
                        'a class; give --views 2 or more')
    if (opt.n_epochs and opt.views == 1 and opt.samples_per_class == 1 and pairs
            and datasampler.distinct(opt) == 'classes'):
        raise UserError(f'--samples_per_class 1: --data_sampler {opt.data_sampler} makes batches without two images of '
                        f'a class, and --loss {"+".join(pairs)} needs such pairs; give at least 2')
    if (evaluation.parse(opt.storage_metrics[0])[1].needs == 'ranks' and opt.eval_reference == 'self'
            and all(datasets.splits.lone_queries(data.evaluation[name]) == data.evaluation[name].n_queries
                    for name in splits)):
        raise UserError(f'--storage_metrics {opt.storage_metrics[0]}: no evaluated image ({", ".join(splits)}) has a '
                        'positive; retrieval needs classes of two images or more')
    if opt.untrained and criteria.ranks(opt):
        raise UserError(f'--untrained: --loss {opt.loss} ranks by a distance of its own; leave the flag out')


def prepare(opt):
    """
    Returns Parts with network and data, and sets what they determine: opt.device, opt.input_size, opt.n_classes,
    opt.superclasses, opt.n_features, opt.n_maps.
    """
    backends.check(opt)
    opt.device = device.select(opt)
    device.set_arithmetic(opt)
    allocator.keep_freed(opt)
    seed_everything(opt.seed)
    set_input_size(opt)
    if opt.evaluate or opt.embed or opt.draw or has_checkpoint(opt):
        opt.weights, opt.not_pretrained = None, True              # the checkpoint contains them
    backbone = architectures.select_backbone(opt)
    data = processes.one_first(lambda: datasets.select(opt, backbone.size))               # this may download it
    opt.n_classes, opt.superclasses = data.train.n_classes, data.train.superclass_labels
    opt.n_features = backbone.n_features
    opt.n_maps = architectures.embedding_network.count_maps(backbone) if opt.loss_s2sd_pool_aggr else None
    evaluation.check_data(opt, data)
    model = processes.one_first(lambda: architectures.select(opt, backbone))              # may download weights
    return Parts(on_device(opt, model), data)


def set_input_size(opt):
    opt.input_size = opt.input_size or datasets.transforms.SIZES.get(opt.augmentation)


def on_device(opt, model):
    if opt.device.type == 'cpu' or opt.device.type == 'cuda' and opt.amp != 'none':
        model = model.to(memory_format=torch.channels_last)       # faster there (benchmarks/networks.py)
    return model.to(opt.device)


def load_teacher(opt, size):
    """
    The network of --distill, which is not trained, and its Checksum. Raises UserError if it cannot be read, or if it
    takes images of another size than `size`.
    """
    try:
        own, states = parameters.parse(['--evaluate', opt.distill]), checkpoint.load(checkpoint.find(opt.distill))
    except UserError as error:
        raise UserError(f'--distill: {error}') from None
    own.weights, own.not_pretrained = None, True                  # the checkpoint contains them
    set_input_size(own)
    with torch.random.fork_rng(devices=[]):                       # its first weights are random
        network = architectures.select(own)
    load_weights(network, states['model'], f'--distill {opt.distill}')
    if network.input_size != size:
        raise UserError(f'--distill {opt.distill}: its network takes images of {network.input_size} pixels, and that '
                        f'of this run images of {size}; give this run --input_size {network.input_size}')
    print(f'teacher: {own.arch} of {checkpoint.find(opt.distill)}, epoch {states["epoch"]}')
    return on_device(opt, network.requires_grad_(False)), Checksum(opt.distill, checkpoint.checksum(states['model']))


def has_checkpoint(opt):
    """Whether the run of --resume has a checkpoint, so that its weights need not be found in another way."""
    return bool(opt.resume) and (Path(opt.resume) / checkpoint.LAST).exists()


def load_weights(model, state, source):
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f'{source}: its weights do not fit the flags ({" ".join(str(error).split())[:200]})') from None


def restore(opt, source):
    """The Parts of an evaluation, with the weights of the run folder or checkpoint `source`."""
    states = checkpoint.load(checkpoint.find(source))
    parts = prepare(opt)
    part = 'ema' if opt.eval_ema else 'model'
    if part not in states:
        raise UserError(f'--eval_ema: {source} has no moving average of the weights; it was trained without --ema')
    load_weights(parts.model, states[part], source)
    if criteria.ranks(opt):
        parts.criterion = criteria.select(opt, batch_mining.select(opt)).to(opt.device)
        parts.criterion.load_state_dict(states['criterion'])
    print(f'{checkpoint.find(source)}, epoch {states["epoch"]}')
    return parts
