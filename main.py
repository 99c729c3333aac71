"""One run: flags -> parts -> loop -> records. `python main.py --help` is the manual."""
import math
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

import architectures
import batch_mining
import criteria
import datasampler
import datasets
import evaluation
import parameters
from utilities import backends, checkpoint, device, run_folder
from utilities.checkpoint import Checkpoint
from utilities.errors import RunFailed, UserError
from utilities.loading import TrainingLoader
from utilities.randomness import derive, seed_everything
from utilities.records import Records, untrained
from utilities.trace import Trace

# what the metrics of the untrained network depend on
SAME_UNTRAINED = ('seed', *parameters.of_groups(parameters.build(), 'data', 'network', 'evaluation'))


def run(opt, arguments):
    """One run: build the parts from opt, train, evaluate, record. Returns the run folder."""
    settings = parameters.settings_of(opt)
    model, data = prepare(opt)
    if 'val' not in evaluation.splits_to_evaluate(opt, data) and opt.patience:
        raise UserError('--patience needs a validation split that is evaluated: add --use_tv_split or --split_scheme '
                        'class_folds')
    miner = batch_mining.select(opt)
    evaluation.check_feedback(miner, data)
    criterion = criteria.select(opt, miner).to(opt.device)
    if opt.untrained and hasattr(criterion, 'ranking_embeddings'):
        raise UserError(f'--untrained: --loss {opt.loss} ranks by a distance of its own; leave the flag out')
    sampler = datasampler.select(opt, data.train)
    optimizer, scheduler = optimization(opt, model, criterion)

    if opt.resume:
        folder = Path(opt.resume)
        run_folder.require_same_data(folder, data.description)
    else:
        folder = run_folder.create(opt, settings, arguments, data.description)
    if opt.reproduce and run_folder.read(opt.reproduce)['split_hash'] != data.description['hash']:
        print(f'Note: the classes or numbers of images are not those of {opt.reproduce}.')
    state = Checkpoint(folder, settings, opt.storage_metrics, model=model, criterion=criterion, miner=miner,
                       optimizer=optimizer, scheduler=scheduler, sampler=sampler,
                       storage=getattr(sampler, 'storage', None))
    start = state.resume()
    if opt.resume:
        run_folder.note_resumption(folder, settings, arguments, start)
    print(summary(opt, folder, model, data, start))
    try:
        with Records(opt, folder, settings, start) as records:
            loader = TrainingLoader(opt, data.train, sampler)
            embedded = {}
            for epoch in range(start, opt.n_epochs + 1):               # epoch 0 is the untrained network
                if patience_is_over(opt, state):
                    break
                began = time.perf_counter()
                if epoch:
                    datasampler.fill_storage(sampler, lambda: evaluation.embed(opt, model, data.evaluation['train'],
                                                                               'train').embeddings)
                trained = train_epoch(opt, epoch, model, data, miner, criterion, optimizer, loader) if epoch else {}
                evaluated = None
                if epoch % opt.eval_every == 0 or epoch == opt.n_epochs:
                    if epoch or not opt.untrained:
                        evaluated, embedded = evaluation.evaluate(opt, model, data, criterion, epoch)
                    else:
                        evaluated = untrained(opt.untrained, folder, SAME_UNTRAINED)
                if epoch:
                    scheduler.step()
                row = records.log(epoch, trained | {'seconds': time.perf_counter() - began}, evaluated)
                state.save(epoch, row)
                records.summarise(state.row, state.best, finished=False)
            finish(opt, model, data, criterion, embedded, records, state)
    except KeyboardInterrupt:
        print(f'\nStopped. To continue: python main.py --resume {folder}')
        raise
    except RunFailed as error:
        kept = f'\nThe last finite checkpoint: {state.last}' if state.last.exists() else ''
        raise RunFailed(f'{error}{kept}') from None
    except UserError:
        if not opt.resume and not state.trained:
            shutil.rmtree(folder)                # nothing is lost, and the name is free again
        raise
    return folder


def prepare(opt):
    """Sets what is known only at run time: opt.device, opt.input_size, opt.n_classes. Returns network and data."""
    backends.check(opt)
    opt.device = device.select(opt)
    device.set_arithmetic(opt)
    seed_everything(opt.seed)
    opt.input_size = opt.input_size or datasets.transforms.SIZES.get(opt.augmentation)
    if opt.evaluate or opt.embed or opt.draw or (opt.resume and (Path(opt.resume) / checkpoint.LAST).exists()):
        opt.weights, opt.not_pretrained = None, True              # the checkpoint brings them
    model = architectures.select(opt)
    data = datasets.select(opt, model.input_size)
    opt.n_classes = data.train.n_classes
    evaluation.check_data(opt, data)
    if opt.device.type == 'cpu':
        model = model.to(memory_format=torch.channels_last)       # 1.2 to 2 times faster there (benchmarks/networks.py)
    return model.to(opt.device), data


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


def train_epoch(opt, epoch, model, data, miner, criterion, optimizer, loader):
    """One epoch of steps. Returns what is logged of it. Raises RunFailed when a loss or gradient is not finite."""
    seed_everything(derive(opt.seed, epoch))
    model.train()
    model.backbone.requires_grad_(epoch > opt.warmup)
    trace = Trace(epoch)
    batches = loader.epoch(epoch)
    bar = tqdm(batches, desc=f'epoch {epoch}', leave=False, disable=None)
    for step, (images, labels, indices) in enumerate(bar, start=(epoch - 1) * len(batches) + 1):
        images, labels = images.to(opt.device, non_blocking=True), labels.to(opt.device, non_blocking=True)
        embeddings, features = model(images)
        loss = criterion(batch=embeddings, labels=labels, batch_features=features, f_embed=model.f_embed)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group['params']
                     if parameter.grad is not None]
        trace.add(loss=loss, grad_norm=torch.nn.utils.get_total_norm(gradients), **getattr(criterion, 'log', {}))
        optimizer.step()
        datasampler.update_storage(loader.sampler, embeddings, indices)
        evaluation.feedback(opt, model, data, miner, step, opt.n_epochs * len(batches))
    logged = {f'train_{name}': trace.mean(name) for name in trace.names()}
    if 'train_active_tuples' in logged:
        logged['train_active_share'] = trace.total('active_tuples') / max(1, trace.total('tuples'))
    rates = {f'lr/{group["name"]}': group['lr'] for group in optimizer.param_groups}
    return logged | rates | {'lr': optimizer.param_groups[0]['lr']}


def patience_is_over(opt, state):
    """Whether the best validation score is more than --patience epochs older than the last one."""
    best = state.best.get(f'val_{opt.storage_metrics[0]}')
    return bool(opt.patience and best and state.row['epoch'] - best['epoch'] > opt.patience)


def summary(opt, folder, model, data, start):
    """What is about to run, for people."""
    splits = [f'{name}: {part["n_images"]:,} images of {part["n_classes"]:,} classes'
              + (f' ({part["n_lone_queries"]} queries have nothing to find and are left out of the retrieval metrics)'
                 if part['n_lone_queries'] else '') for name, part in data.description['splits'].items()]
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return '\n'.join([f'run folder: {folder}' + (f', continued at epoch {start}' if start else ''),
                      f'{opt.arch}: {n_parameters:,} parameters, images of {model.input_size} pixels, {opt.device}',
                      f'{opt.dataset}: ' + '; '.join(splits)])


def finish(opt, model, data, criterion, embedded, records, state):
    """Draws the figures and closes the books."""
    from evaluation import figures, plots
    split = 'val' if 'test' not in evaluation.splits_to_evaluate(opt, data) and 'val' in data.evaluation else 'test'
    embedded = embedded.get(split) or evaluation.embed_splits(opt, model, data, [split], criterion)[split]
    panel = state.folder / f'retrieval_{split}.png'
    plots.retrieval_panel(embedded, panel, opt.seed)
    plots.curves(records.rows, state.folder / 'plots')
    figures.draw(opt, embedded, state.folder / 'plots', split)
    if opt.projector:
        plots.projector(embedded, state.folder / 'tensorboard')
    records.summarise(state.row, state.best, finished=True)
    print(f'Done.\n  run folder:       {state.folder}\n  plots:            {state.folder / "plots"}\n'
          f'  retrieved images: {panel}')


def restored(opt, place):
    """Of a run folder or checkpoint: the network, its data, its criterion or None; for --evaluate, --embed, --draw."""
    states = checkpoint.load(checkpoint.find(place))
    model, data = prepare(opt)
    try:
        model.load_state_dict(states['model'])
    except RuntimeError as error:
        raise UserError(f'{place}: its weights do not fit the flags ({" ".join(str(error).split())[:200]})') from None
    criterion = None                                           # else it has no say in an evaluation
    if criteria.ranks(opt):
        criterion = criteria.select(opt, batch_mining.select(opt)).to(opt.device)
        criterion.load_state_dict(states['criterion'])
    print(f'{checkpoint.find(place)}, epoch {states["epoch"]}')
    return model, data, criterion


def main(arguments):
    """Runs what the command line asks for; returns the exit code."""
    sys.argv[1:] = run_folder.without_secrets(arguments, parameters.SECRETS)       # logging libraries look there
    try:
        opt = parameters.parse(arguments)
        if opt.evaluate:
            for name, value in evaluation.evaluate(opt, *restored(opt, opt.evaluate))[0].items():
                print(f'{name}: {value if isinstance(value, float) else " ".join(map(repr, value.tolist()))}')
        elif opt.embed:
            evaluation.write_embeddings(opt, *restored(opt, opt.embed[0])[:2], opt.embed[1])
        elif opt.draw:
            evaluation.draw(opt, *restored(opt, opt.draw[0]), opt.draw[1])
        else:
            run(opt, sys.argv[1:])
    except UserError as error:
        print(f'main.py: error: {error}', file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f'main.py: the run failed: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def terminated(*_):
    """What SIGTERM does: the same as Ctrl-C, once, since a scheduler and a launcher may both send it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(main(sys.argv[1:]))
