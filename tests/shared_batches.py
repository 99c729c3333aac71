"""
Trains a tiny network by each case below, in one process and in groups of 2 and 3 that share every batch.

apart(rank, folder), in two processes at once: process 0 computes the plain step, process 1 the same in micro-batches.
together(rank, folder), in three: 2 and then 3 processes do so together. Each writes <folder>/<way>_<rank>.pt:
{case: what came out}.
"""
import argparse
import shlex

import numpy as np
import torch
import torch.distributed as dist

import batch_mining
import configuration
import criteria
import datasampler
import main
import optimization
from architectures.embedding_network import Backbone, EmbeddingNetwork
from datasets.loading import Loader, TrainingLoader
from optimization import moving_average
from parts import Parts, let_embed
from training_step import TrainingStep
from utilities import processes
from utilities.randomness import seed_everything

COMMON = ('--bs 10 --samples_per_class 2 --embed_dim 5 --lr 0.003 --kernels 0 --device cpu --iterations_per_epoch 4 '
          '--n_epochs 2 --data_batchmatch_bigbs 20 --decay 0.001')


def miner_of(loss):
    allowed = getattr(criteria.CRITERIA[loss], 'ALLOWED_MINING_OPS', None)
    needed = criteria.CRITERIA[loss].REQUIRES_BATCHMINER
    return (allowed[0] if allowed else 'random') if needed else 'none'


def loss_of(miner):
    return next((loss for loss, module in criteria.CRITERIA.items() if module.REQUIRES_BATCHMINER
                 and miner in (module.ALLOWED_MINING_OPS or [])), 'triplet')


def summed(losses, miners):
    """The flags of a sum of losses, of a size that is quick."""
    return ' '.join([f'--loss {"+".join(losses)} --batch_mining {"+".join(miners)}',
                     *(SMALL[loss] for loss in losses if loss in SMALL)])


SMALL = {'hier': '--loss_hier_n_proxies 8 --loss_hier_n_triplets 4 --loss_hier_k 3',
         'recallatk': '--loss_recallatk_simix', 's2sd': '--loss_s2sd_target_dims 4 6',
         'nir': '--loss_nir_lrmulti 1 --loss_nir_nf_fc_depth 3 --loss_nir_nf_fc_width 16 --loss_nir_nf_cblocks 2'}
MINERS = [name for name in batch_mining.BATCHMINERS if name != 'none']
# pfml is 100,000 times as large as the others, whose part in the gradient of a sum it would hide
SUMS = {'losses with parameters': [loss for loss, module in criteria.CRITERIA.items()
                                   if module.REQUIRES_OPTIM and loss != 'pfml'],
        'losses without': [loss for loss, module in criteria.CRITERIA.items() if not module.REQUIRES_OPTIM],
        'pfml': ['pfml']}
LOSSES = {name: summed(losses, map(miner_of, losses)) for name, losses in SUMS.items()}
TRAINED = LOSSES | {
    f'sampled by {name}': f'--data_sampler {name}' for name, module in datasampler.SAMPLERS.items()
    if getattr(module, 'REQUIRES_STORAGE', False) and name != 'd2_coreset'
} | {
    'miners': summed(map(loss_of, MINERS), MINERS),
    'memory': '--loss contrastive+softmax --batch_mining all+none --xbm_size 25 --xbm_start 3',
    'moments of the memory bank': '--data_sampler d2_coreset --data_mb_mom 0.5 --data_idx_full_prec',
    'optimizers of the parts': '--loss margin+softmax --batch_mining distance+none --loss_weights 1 2 --optim rmsprop '
                               '--embed_optim adam --loss_optim sgd --loss_optim_args "{momentum: 0}" --clip_grad 0.1',
    'features and layer': '--loss features_and_layer --batch_mining none',
    'maps': '--loss s2sd --loss_s2sd_pool_aggr --loss_s2sd_target_dims 4 6',
    'cascade': '--loss contrastive+margin --batch_mining all+distance --embed_dim 6 --cascade 1 '
               '--cascade_fractions 0.4 --xbm_size 25 --xbm_start 3',
    'synthetic negatives': '--loss triplet+softmax --batch_mining semihard+none --daml --daml_layers 9 --dr_weight 0.3',
    'prefixes': '--loss proxyanchor+triplet --batch_mining none+semihard --matryoshka 2 5 --matryoshka_weights 1 0.5',
    'PADS': '--batch_mining parametric --miner_parametric_adapt --use_tv_split --miner_parametric_update_every 7',
    'of one image': '--bs 1 --samples_per_class 1 --loss softmax --batch_mining none',
    'views': '--bs 12 --views 3 --warmup 1 --loss margin --batch_mining distance',
    'distilled from the average': '--loss proxyanchor --batch_mining none --ema 0.9 --distill ema --distill_w 3',
    'distilled from another network': '--loss supcon --batch_mining none --distill another --distill_w 3',
    'images and an optimizer of its own': '--loss asks_for_all --batch_mining none --scheduler step --tau 1',
    'momentum': '--optim sgd --lr 0.05 --clip_grad 0.5 --clip_grad_value 0.2 --bs 7 --data_sampler image_random '
                '--loss multisimilarity --batch_mining none',
}


def cases_of(way):
    """
    The names in TRAINED that a way trains. Three processes, whose parts are uneven, train all. Miners and samplers do
    not see the pieces of one process; of two processes, a few cases tell what three do not.
    """
    if way == '2 processes':
        return ['memory', 'PADS', 'of one image', 'images and an optimizer of its own', 'distilled from the average']
    return [name for name in TRAINED if way != 'in pieces' or name != 'miners' and not name.startswith('sampled by')]


class FeaturesAndLayer(torch.nn.Module):
    """Uses all that a criterion is given, and a parameter of its own."""

    def __init__(self, opt):
        super().__init__()
        self.lr = 0.1
        self.factor = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, batch, labels, batch_features, f_embed):
        other = torch.nn.functional.normalize(f_embed(batch_features.roll(1, dims=0)), dim=1)
        return (self.factor * (batch * other).sum(dim=1)).exp().mean() + batch_features.tanh().square().mean()


class AsksForAll(torch.nn.Module):
    """Uses images, positions, step and epoch, and trains a head by its own optimizer."""

    def __init__(self, opt):
        super().__init__()
        self.head, self.lr = torch.nn.Linear(3, opt.embed_dim), 0.01
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)

    def optimizers(self):
        return [self.optimizer]

    def forward(self, batch, images, indices, step, epoch, batch_features):
        assert len(batch) == len(images) == len(indices) == len(batch_features) and epoch == (step - 1) // 4 + 1
        colours = images.mean(dim=(2, 3)) * (1 + indices[:, None] / 36)
        return (self.scale * batch - self.head(colours)).square().mean() * step + batch_features.tanh().mean()


class Images(torch.utils.data.Dataset):
    """Six classes of six random images in memory, with what samplers and evaluation ask of an ImageSet."""

    def __init__(self, dtype):
        generator = torch.Generator().manual_seed(0)
        self.labels, self.n_classes, self.is_query = np.arange(6).repeat(6), 6, None
        centres = torch.rand(6, 3, 4, 4, generator=generator, dtype=torch.float64)
        noise = torch.rand(36, 3, 4, 4, generator=generator, dtype=torch.float64)
        self.images = (.5 * centres[self.labels] + .5 * noise).to(dtype)
        self.superclasses, self.paths = ['a', 'a', 'b', 'b', 'c', 'c'], list(map(str, range(36)))
        self.image_list = list(zip(self.paths, self.labels.tolist(), strict=True))
        self.image_dict = {c: [(str(6 * c + i), 6 * c + i) for i in range(6)] for c in range(6)}
        self.features = self.in_gallery = None

    def __len__(self):
        return 36

    def __getitem__(self, item):
        index = item[0] if isinstance(item, tuple) else item
        return self.images[index], int(self.labels[index]), index

    def loader(self, opt, batches, network):
        return Loader(self, batch_sampler=batches)


def network(opt, frozen=True, dropout=0.0):
    layers = [torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6), torch.nn.Tanh(), torch.nn.Dropout(dropout),
              torch.nn.AvgPool2d(2), torch.nn.Flatten()]
    if opt.cascade:
        layers[4:4] = [torch.nn.Conv2d(6, 7, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(7, 6, 1)]
    backbone = Backbone(torch.nn.Sequential(*layers), 4, n_features=24)
    if opt.loss_s2sd_pool_aggr:
        backbone.n_features, backbone.maps = 6, lambda network, images: network[:4](images)
    return EmbeddingNetwork(opt, backbone, frozen, normalize=True)


def build(flags, dtype=torch.float64, device='cpu', **of_network):
    """(opt, Parts, TrainingLoader) of the tiny network and images."""
    opt = configuration.parse(shlex.split(f'{COMMON} {flags}'))
    opt.device, opt.n_classes, opt.superclasses = torch.device(device), 6, [[0], [0], [1], [1], [2], [2]]
    opt.class_counts = [6] * 6
    opt.n_features, opt.n_maps = (6, 6) if opt.loss_s2sd_pool_aggr else (24, None)
    seed_everything(opt.seed)
    images, miner = Images(dtype), batch_mining.select(opt)
    model = network(opt, **of_network).to(opt.device, dtype, memory_format=torch.channels_last)
    built = Parts(model, argparse.Namespace(train=images, evaluation={'train': images, 'val': images}),
                  criteria.select(opt, miner).to(opt.device, dtype), miner)
    built.sampler = datasampler.select(opt, images)
    built.optimizer, built.schedule = optimization.select(opt, built.model, built.criterion)
    built.ema = None if opt.ema is None else moving_average.MovingAverage(built.model, opt.ema)
    if opt.distill:
        other = argparse.Namespace(**vars(opt) | {'embed_dim': 3})
        built.teacher = built.ema.average if opt.distill == 'ema' else network(other).to(opt.device, dtype)
    let_embed(opt, built, opt.iterations_per_epoch)
    built.step = TrainingStep(opt, built)
    return opt, built, TrainingLoader(opt, images, built.sampler)


def tensors_of(state):
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def train(flags, dtype=torch.float64, device='cpu', **of_network):
    """Trains all epochs by main.train_epoch. Returns {'network', 'criterion', 'gradients', 'losses'}."""
    opt, built, loader = build(flags, dtype, device, **of_network)
    step, losses = built.step, []

    def recorded(*arguments):
        embeddings, scalars = step(*arguments)
        losses.append(scalars['loss'].detach())
        return embeddings, scalars

    def keep(optimizer, *_):
        gradients.update({parameter: parameter.grad.clone() for group in optimizer.param_groups
                          for parameter in group['params'] if parameter.grad is not None})

    gradients = {}
    for optimizer in step.optimizers:
        optimizer.register_step_pre_hook(keep)
    built.step, logs = recorded, []
    for epoch in range(1, opt.n_epochs + 1):
        logs.append(main.train_epoch(opt, built, loader, epoch))
    modules = {'network': built.model, 'criterion': built.criterion}
    return {name: tensors_of(module.state_dict()) for name, module in modules.items()} | {
        'gradients': {f'{part} {name}': gradients[parameter] for part, module in modules.items()
                      for name, parameter in module.named_parameters() if parameter in gradients},
        'losses': {'losses': torch.stack(losses)}, 'logs': logs}


def train_all(way, rank, folder, more=''):
    results = {name: train(f'{TRAINED[name]} {more}') for name in cases_of(way)}
    for dtype in ('float16', 'bfloat16'):
        results[dtype] = train(f'--loss overflows --batch_mining none --amp {dtype} {more}', torch.float32)
    results['statistics'] = train(f'--lr 0 {more}', frozen=False)
    torch.save(results, folder / f'{way}_{rank}.pt')


class Overflows(FeaturesAndLayer):
    """In the fourth step, the gradient of its own parameter is not finite, though the loss and all others are."""

    def __init__(self, opt):
        super().__init__(opt)
        self.amp, self.steps = opt.amp, 0

    def forward(self, batch, labels, batch_features, f_embed):
        self.steps += 1
        factor = self.factor if self.steps == 4 and self.amp == 'float16' else self.factor.detach()
        infinite = factor.clone()
        infinite.register_hook(lambda gradient: gradient * torch.inf) if infinite.requires_grad else None
        return super().forward(batch, labels, batch_features, f_embed) + 0.1 * infinite


def module_of(criterion):
    """What a file of a criterion has."""
    return argparse.Namespace(Criterion=criterion, REQUIRES_BATCHMINER=False, REQUIRES_OPTIM=True)


def train_on_gpus(rank, n, flags, folder):
    """One of n processes, each with a GPU; BatchNorm is not frozen. Writes FOLDER/<n>_<rank>.pt."""
    torch.cuda.set_device(rank)
    if n > 1:
        dist.init_process_group('nccl', f'file://{folder}/group', rank=rank, world_size=n)
    torch.save(train(flags, torch.float32, torch.device('cuda', rank), frozen=False), f'{folder}/{n}_{rank}.pt')
    if n > 1:
        dist.destroy_process_group()


def prepare():
    torch.set_num_threads(1)
    for name, criterion in (('features_and_layer', FeaturesAndLayer), ('overflows', Overflows),
                            ('asks_for_all', AsksForAll)):
        criteria.CRITERIA[name] = module_of(criterion)


def apart(rank, folder):
    prepare()
    train_all('in pieces' if rank else 'alone', rank, folder, '--micro_bs 3' if rank else '')


def together(rank, folder):
    prepare()
    for n in (2, 3):
        if rank < n:
            dist.init_process_group('gloo', f'file://{folder}/group_of_{n}', rank=rank, world_size=n)
            assert processes.count() == n
            train_all(f'{n} processes', rank, folder)
            if n == 2:
                torch.save(train('--bs 10 --micro_bs 2', dropout=0.5), folder / f'dropout_{rank}.pt')
            dist.destroy_process_group()
