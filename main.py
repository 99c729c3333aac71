"""One run: flags -> parts -> loop -> records. `python main.py --help` is the manual."""
import contextlib
import math
import shutil
import sys
from pathlib import Path

from utilities import stopping

if __name__ == '__main__':
    stopping.begin('main.py')                                 # before the imports, which take seconds

from tqdm import tqdm

import configuration
import datasampler
import evaluation
import parameters
import parts
from datasets.loading import TrainingLoader
from records import checkpoint, columns, lock, run_folder
from records.checkpoint import Checkpoint
from records.columns import Column
from records.trace import Trace
from records.writing import Records
from utilities import errors, plotting, processes
from utilities.errors import RunFailed, UserError
from utilities.randomness import derive, seed_everything


def run(opt, arguments):
    """One run: build the parts, evaluate the network before training, then train, evaluate and record by epoch."""
    built, state = begin(opt, arguments)
    with lock.held(state.folder), explained_stop(opt, state):
        if opt.resume:
            configuration.continue_run(opt, state, arguments, built.data.description)
        print(parts.summary(opt, state.folder, built, state.next_epoch))
        with Records(opt, state.folder, state.settings, state.next_epoch, state.records) as records:
            parts.keep_features(opt, built)
            loader = TrainingLoader(opt, built.data.train, built.sampler)
            embedded = {}
            if state.next_epoch == 0:
                evaluated = None
                if not opt.n_epochs or opt.check_untrained_accuracy:
                    evaluated, embedded = evaluate(opt, built, epoch=0)
                record(records, built, state, 0, {}, evaluated)
            for epoch in range(max(state.next_epoch, 1), opt.n_epochs + 1):
                if state.patience_is_over(opt.patience):
                    break
                trained = train_epoch(opt, built, loader, epoch)
                evaluated = None
                if epoch % opt.eval_every == 0 or epoch == opt.n_epochs:
                    evaluated, embedded = evaluate(opt, built, epoch)
                record(records, built, state, epoch, trained, evaluated)
            finish(opt, built, embedded, records, state)


def begin(opt, arguments):
    """The parts of a run, and the Checkpoint in its folder."""
    settings = configuration.recorded_settings(opt)          # before the parts are built, which add to opt
    built = parts.build(opt)
    settings |= {name: vars(opt)[name] for name in datasampler.BATCH}          # they may have been chosen just now
    if opt.reproduce:
        changed = run_folder.changed_data(run_folder.read(opt.reproduce), built.data.description)
        if changed:
            print(f'Note: the data have {changed} than {opt.reproduce}.')
    if opt.n_epochs and not opt.lr and opt.fc_lr <= 0:
        print('Note: --lr 0 trains no weight of the network', file=sys.stderr)
    files = configuration.checksums_of_files(settings)
    if opt.resume:
        folder = Path(opt.resume)
        configuration.require_unchanged(folder, built.data.description, files)
    else:
        chosen = datasampler.chosen_later(opt)
        folder = Path(processes.run_on_rank_zero(run_folder.create, opt, settings, arguments, built.data.description,
                                                 chosen, files))
    lowest = [name for name in opt.storage_metrics if evaluation.titles.sign(Column('test', name).name) < 0]
    origin = checkpoint.origin(folder, built.data.description)
    return built, Checkpoint(folder, settings, opt.storage_metrics, built.with_state(), built.state(opt.device), origin,
                             lowest)


def continued(opt, arguments):
    """--auto_resume: the flags that continue the run with these settings; None if it is finished; or `opt`."""
    found = processes.run_on_rank_zero(configuration.find_run, opt, configuration.recorded_settings(opt))
    if found is None:
        return opt
    folder, is_finished = found
    if is_finished:
        print(f'{folder}: this run is finished')
        return None
    return configuration.parse([*arguments, '--resume', str(folder)])


@contextlib.contextmanager
def explained_stop(opt, state):
    """If the run stops early: prints how to continue it, or removes the folder of a run that has not trained."""
    try:
        with processes.ending_together(), errors.explained(), errors.undeclared_flags():
            yield
    except KeyboardInterrupt:
        if state.folder.exists():                            # another process may have removed it
            print(f'\nStopped. To continue: python main.py --resume {state.folder}')
        raise
    except UserError:
        if not opt.resume and not state.trained:
            shutil.rmtree(state.folder, ignore_errors=True)  # nothing is lost, and the name is free again
        raise
    except Exception as error:
        reason = error if isinstance(error, RunFailed) else errors.machine_reason(error, state.folder)
        if reason is None:
            raise
        hint = ''
        if state.last.exists():
            hint = f'\nThe last checkpoint: {state.last}. To continue: python main.py --resume {state.folder}'
            piece = min(opt.micro_bs or opt.bs, math.ceil(opt.bs / processes.count()))
            if isinstance(error, errors.OutOfMemory) and piece > 1:
                hint += f' --micro_bs {piece // 2}'
        raise RunFailed(f'{reason}{hint}') from None


def evaluate(opt, built, epoch):
    """({<split>_<metric>: value}, {split: Embedded}); with --ema, averaged weights have columns of their own."""
    row, embedded = evaluation.evaluate(opt, built.model, built.data, built.criterion, epoch)
    if built.ema:
        averaged, _ = evaluation.evaluate(opt, built.ema.average, built.data, built.criterion, epoch)
        row |= {columns.EMA + name: value for name, value in averaged.items() if isinstance(value, float)}
    built.call('evaluated', row, embedded if processes.is_main() else {}, epoch)
    return row, embedded


def train_epoch(opt, built, loader, epoch):
    """Trains one epoch; returns its scalars for the log. Raises RunFailed when a loss or gradient is not finite."""
    rank = processes.rank()                       # process 0 draws for the whole batch, the others for their parts
    numbers = (opt.seed, epoch, rank) if rank else (opt.seed, epoch)
    seed_everything(derive(*numbers))
    built.call('start_epoch', epoch)
    trace = Trace(epoch, built.skipped_in_a_row)
    batches = loader.epoch(epoch)
    bar = tqdm(batches, desc=f'epoch {epoch}', leave=False, disable=None)
    for step, (images, labels, indices) in enumerate(stopping.checked(bar), start=(epoch - 1) * len(batches) + 1):
        built.schedule.at(step)
        embeddings, scalars = built.step(images, labels, indices, step, epoch)
        trace.add(**scalars)
        if built.ema:
            built.ema.update()
        if processes.is_main():
            built.call('stepped', embeddings, labels, indices, step)
    scalars = trace.summary()
    built.skipped_in_a_row = trace.skipped_in_a_row
    return scalars | built.schedule.rates()


def record(records, built, state, epoch, trained, evaluated):
    """Writes down an epoch: its row, the checkpoints, the summary."""
    configuration.name_unread(records.opt, epoch > 0, bool(evaluated))
    state.save(epoch, records.log(epoch, trained, evaluated), records.contents())
    records.summarise(state)


def finish(opt, built, embedded, records, state):
    """Plots the curves and the last network's embeddings of a split, and marks the run as finished."""
    split = evaluation.split_of_pictures(opt, built.data)
    if split not in embedded:
        embedded = evaluation.embed_splits(opt, built.model, built.data, [split], built.criterion)
    if not processes.is_main():
        return
    plots = state.folder / 'plots'
    panel = state.folder / f'retrieval_{split}.png'
    saved = []
    if opt.pictures != ['none'] and plotting.is_possible():
        evaluation.curves.plot(records.rows, plots, single=evaluation.curves.SINGLE in opt.pictures)
        saved = evaluation.pictures.save(opt, embedded[split], split, plots, panel)
    if panel in saved:
        records.picture(f'retrieval/{split}', panel)
    records.summarise(state, finished=True)
    print(f'Done.\n  run folder:       {state.folder}')
    if plots.exists():
        print(f'  plots:            {plots}')
    if panel in saved:
        print(f'  retrieved images: {panel}')


def carry_out(arguments):
    """Carries out a command line: a run, or the evaluation of a network that is trained already."""
    opt = configuration.parse(arguments)
    if opt.auto_resume and not opt.resume:
        opt = continued(opt, arguments)
        if opt is None:
            return
    if len(opt.gpu) > 1 and not processes.connected():
        return processes.start(len(opt.gpu), [sys.executable, *sys.argv], configuration.secret_variables(opt))
    if opt.evaluate:
        evaluation.show(opt, parts.restore(opt, opt.evaluate))
    else:
        run(opt, sys.argv[1:])


def main(arguments):
    """Returns the exit code: 0; 2 after a UserError; 1 for a failed run; 130 after Ctrl-C."""
    with errors.reported('main.py') as end, processes.together():
        sys.argv[1:] = run_folder.without_secrets(arguments, parameters.flags_with('secret'))    # for logging libraries
        end.code = carry_out(arguments) or 0
    return end.code


if __name__ == '__main__':
    stopping.install()
    processes.leave(main(sys.argv[1:]))
