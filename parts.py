"""The parts of a run, built from the flags: network and data, and what trains them."""
import math
from dataclasses import dataclass
from pathlib import Path

import torch

import architectures
import batch_mining
import criteria
import datasampler
import datasets
import evaluation
from utilities import backends, checkpoint, device
from utilities.errors import UserError
from utilities.randomness import seed_everything


@dataclass
class Parts:
    """
    What one run is made of. criterion: None in an evaluation that does not rank by it. miner, sampler, optimizer and
    scheduler: None where nothing is trained.
    """
    model: torch.nn.Module
    data: datasets.Data
    criterion: torch.nn.Module | None = None
    miner: object = None
    sampler: torch.utils.data.Sampler | None = None
    optimizer: torch.optim.Optimizer | None = None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None

    def with_state(self):
        """{name: part} of the parts that a checkpoint must hold."""
        parts = vars(self) | {'storage': getattr(self.sampler, 'storage', None)}
        return {name: part for name, part in parts.items() if hasattr(part, 'state_dict')}


def build(opt):
    """The Parts of a training run. Raises UserError for what the user must change."""
    parts = prepare(opt)
    check(opt, parts.data)
    parts.miner = batch_mining.select(opt)
    batch_mining.check_feedback(parts.miner, parts.data.evaluation.get('val'))
    parts.criterion = criteria.select(opt, parts.miner).to(opt.device)
    parts.sampler = datasampler.select(opt, parts.data.train)
    parts.optimizer, parts.scheduler = optimization(opt, parts.model, parts.criterion)
    return parts


def check(opt, data):
    """Raises UserError for flags of a training run that its data, or other flags, do not allow."""
    splits = evaluation.splits_to_evaluate(opt, data)
    if opt.patience and 'val' not in splits:
        raise UserError('--patience needs a validation split that is evaluated: add --use_tv_split or --split_scheme '
                        'class_folds')
    if opt.untrained and criteria.ranks(opt):
        raise UserError(f'--untrained: --loss {opt.loss} ranks by a distance of its own; leave the flag out')


def prepare(opt):
    """Returns the Parts of network and data. Sets what is known only now: opt.device, opt.input_size, opt.n_classes."""
    backends.check(opt)
    opt.device = device.select(opt)
    device.set_arithmetic(opt)
    seed_everything(opt.seed)
    opt.input_size = opt.input_size or datasets.transforms.SIZES.get(opt.augmentation)
    if opt.evaluate or opt.embed or opt.draw or (opt.resume and (Path(opt.resume) / checkpoint.LAST).exists()):
        opt.weights, opt.not_pretrained = None, True              # the checkpoint brings them
    backbone = architectures.select_backbone(opt)
    data = datasets.select(opt, backbone.size)
    opt.n_classes = data.train.n_classes
    evaluation.check_data(opt, data)
    model = architectures.select(opt, backbone)                   # after the data: this may download weights
    if opt.device.type == 'cpu':
        model = model.to(memory_format=torch.channels_last)       # 1.2 to 2 times faster there (benchmarks/networks.py)
    return Parts(model.to(opt.device), data)


def restore(opt, source):
    """The Parts of an evaluation, with the weights of the run folder or checkpoint `source`."""
    states = checkpoint.load(checkpoint.find(source))
    parts = prepare(opt)
    try:
        parts.model.load_state_dict(states['model'])
    except RuntimeError as error:
        raise UserError(f'{source}: its weights do not fit the flags ({" ".join(str(error).split())[:200]})') from None
    if criteria.ranks(opt):
        parts.criterion = criteria.select(opt, batch_mining.select(opt)).to(opt.device)
        parts.criterion.load_state_dict(states['criterion'])
    print(f'{checkpoint.find(source)}, epoch {states["epoch"]}')
    return parts


def optimization(opt, model, criterion):
    """The optimizer over backbone, embedding layer and criterion, each with its rate and decay, and their schedule."""
    fc_lr = opt.lr if opt.fc_lr < 0 else opt.fc_lr
    groups = [{'name': name, 'params': list(module.parameters()), 'lr': lr, 'weight_decay': opt.decay}
              for name, module, lr in (('backbone', model.backbone, opt.lr), ('embedding', model.f_embed, fc_lr))]
    groups += [{'name': 'criterion', 'weight_decay': opt.loss_decay} | group
               for group in criteria.parameter_groups(criterion)]
    optimizer = {'adam': lambda: torch.optim.Adam(groups), 'adamw': lambda: torch.optim.AdamW(groups),
                 'sgd': lambda: torch.optim.SGD(groups, momentum=opt.momentum),
                 'rmsprop': lambda: torch.optim.RMSprop(groups, momentum=opt.momentum)}[opt.optim]()

    def factor(n_trained):
        """Of all rates after n_trained epochs; a function of the flags alone, so that a run can be extended."""
        if opt.scheduler == 'step':
            return opt.gamma ** sum(n_trained >= epoch for epoch in opt.tau)
        if opt.scheduler == 'cosine' and n_trained:
            return (1 + math.cos(math.pi * min(1, n_trained / opt.n_epochs))) / 2
        return 1

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
