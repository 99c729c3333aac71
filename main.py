"""One run: flags -> parts -> loop -> records. `python main.py --help` is the manual."""
import contextlib
import shutil
import sys
from pathlib import Path

from utilities import startup

if __name__ == '__main__':
    startup.begin('main.py')                                 # before the imports, which take seconds

from tqdm import tqdm

import batch_mining
import configuration
import datasampler
import effects
import evaluation
import parameters
import parts
import resuming
from architectures.depth import gradients_by_block
from records import checkpoint, columns, lock, reading, run_folder
from records.checkpoint import LAST, Checkpoint
from records.columns import Column
from records.writing import Records
from utilities import errors, processes, stopping
from utilities.errors import RunFailed, UserError
from utilities.files import remove_temporary
from utilities.loading import TrainingLoader
from utilities.randomness import derive, seed_everything
from utilities.trace import Trace


def run(opt, arguments):
    """One run: build the parts, evaluate the network before training, then train, evaluate and record by epoch."""
    built, state = begin(opt, arguments)
    with lock.held(state.folder), explained_stop(opt, state):
        if opt.resume:
            continue_run(opt, state, arguments, built.data)
        print(parts.summary(opt, state.folder, built, state.next_epoch))
        with Records(opt, state.folder, state.settings, state.next_epoch, state.records) as records:
            parts.keep_features(opt, built)
            loader, embedded = TrainingLoader(opt, built.data.train, built.sampler), {}
            is_judged_untrained = not opt.n_epochs or opt.check_untrained_accuracy
            if state.next_epoch == 0:
                evaluated = None
                if is_judged_untrained:
                    evaluated, embedded = evaluate(opt, built, epoch=0)
                record(records, built, state, 0, {}, evaluated, embedded)
            for epoch in range(max(state.next_epoch, 1), opt.n_epochs + 1):
                if state.patience_is_over(opt.patience):
                    break
                trained, evaluated = train_epoch(opt, built, loader, epoch), None
                if epoch % opt.eval_every == 0 or epoch == opt.n_epochs:
                    evaluated, embedded = evaluate(opt, built, epoch)
                record(records, built, state, epoch, trained, evaluated, embedded)
            finish(opt, built, embedded, records, state)


def begin(opt, arguments):
    """The parts of a run, and the Checkpoint in its folder."""
    settings = configuration.recorded_settings(opt)
    built = parts.build(opt)
    reproduced = opt.reproduce and run_folder.read(opt.reproduce)
    if reproduced and (changed := run_folder.changed_data(reproduced, built.data.description)):
        print(f'Note: the data have {changed} than {opt.reproduce}.')
    for sentence in effects.unreachable_schedules(opt, opt.n_epochs * built.schedule.n_steps):
        print(f'Note: {sentence}', file=sys.stderr)
    settings |= {name: vars(opt)[name] for name in datasampler.BATCH}          # may have been chosen just now
    files = configuration.checksums_of_files(settings)
    if opt.resume:
        folder = Path(opt.resume)
        run_folder.require_same_data(folder, built.data.description)
        compared = {'csv', 'splits'}                         # by what is read from them, just now
        if parts.has_checkpoint(opt):
            compared.add('start_from')                       # is not read again, and that run may have gone on
        run_folder.require_same_files(folder, {name: files[name] for name in files if name not in compared})
    else:
        chosen = datasampler.chosen_later(opt)
        folder = run_folder.create(opt, settings, arguments, built.data.description, chosen, files)
    lowest = [name for name in opt.storage_metrics if evaluation.titles.sign(Column('test', name).name) < 0]
    return built, Checkpoint(folder, settings, opt.storage_metrics, built.with_state(),
                             checkpoint.origin(folder, built.data.description), lowest)


def continued(opt, arguments):
    """--auto_resume: the flags that continue the run with these settings; None if it is finished; or `opt`."""
    found = resuming.find_run(opt, configuration.recorded_settings(opt))
    if found is None:
        return opt
    folder, is_finished = found
    if is_finished:
        print(f'{folder}: this run is finished')
        return None
    return configuration.parse([*arguments, '--resume', str(folder)])


def continue_run(opt, state, arguments, data):
    """Restores the run of --resume, and records that it goes on."""
    begins = {entry['at_epoch'] for entry in run_folder.read(state.folder).get('merged', [])}
    kinds = {True: ['never'], False: ['never', 'merge']}                          # by whether the resumption merges
    first = state.resume(
        lambda before, merging: resuming.changes(before, state.settings, *kinds[merging]),
        lambda epoch: opt.merge_argparse_when_resuming or epoch in begins)
    if first == 0 and (last := reading.last_epoch(state.folder)) > 0:
        raise UserError(f'--resume {state.folder}: it has records up to epoch {last}, but no {LAST} to continue from; '
                        f'start a new run with its settings by --reproduce {state.folder}')
    if opt.n_epochs < first - 1:
        raise UserError(f'--n_epochs {opt.n_epochs}: {state.folder} has trained {first - 1} epochs already')
    note_resumption(opt, state, arguments, data)


@processes.rank_zero_only
def note_resumption(opt, state, arguments, data):
    remove_temporary(state.folder)
    merged = parameters.flags_with('resume', 'merge')
    run_folder.note_resumption(state.folder, state.settings, arguments, state.next_epoch, data.description,
                               merged if opt.merge_argparse_when_resuming else ())


@contextlib.contextmanager
def explained_stop(opt, state):
    """If the run stops early: prints how to continue it, or removes the folder of a run that has not trained."""
    try:
        with processes.ending_together(), errors.undeclared_flags():
            yield
    except KeyboardInterrupt:
        if state.folder.exists():                            # else another process has removed it
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
        kept = f'\nThe last checkpoint: {state.last}. To continue: python main.py --resume {state.folder}'
        raise RunFailed(f'{reason}{kept if state.last.exists() else ""}') from None


def evaluate(opt, built, epoch):
    """As evaluation.evaluate; with --ema, the metrics of the averaged weights have columns of their own."""
    row, embedded = evaluation.evaluate(opt, built.model, built.data, built.criterion, epoch)
    if built.ema:
        averaged, _ = evaluation.evaluate(opt, built.ema.average, built.data, built.criterion, epoch)
        row |= {columns.ema_column(name): value for name, value in averaged.items() if isinstance(value, float)}
    return row, embedded


def train_epoch(opt, built, loader, epoch):
    """Trains one epoch; returns its scalars for the log. Raises RunFailed when a loss or gradient is not finite."""
    model = built.model
    datasampler.fill_storage(built.sampler, lambda: evaluation.embed(
        opt, model, built.data.evaluation['train'], 'train').embeddings)
    seed_everything(derive(opt.seed, epoch))
    built.start_epoch(epoch)
    trace = Trace(epoch, built.skipped_in_a_row)
    batches = loader.epoch(epoch)
    bar = tqdm(loader.watched(batches, epoch), desc=f'epoch {epoch}', total=len(batches), leave=False, disable=None)
    for step, (images, labels, indices) in enumerate(stopping.checked(bar), start=(epoch - 1) * len(batches) + 1):
        built.schedule.at(step)
        embeddings, scalars = built.step(images, labels, indices, step, epoch)
        trace.add(**scalars)
        if built.ema:
            built.ema.update()
        if processes.is_main():                              # which alone keeps the sampler's memory bank
            datasampler.update_storage(built.sampler, embeddings, indices)
        batch_mining.feedback(built.miner, step, opt.n_epochs * len(batches),
                              lambda metrics: evaluation.validate(opt, model, built.data, metrics))
    scalars, built.skipped_in_a_row = trace.summary(), trace.skipped_in_a_row
    return scalars | built.schedule.rates()


def record(records, built, state, epoch, trained, evaluated, embedded):
    """Writes down an epoch: its row, the checkpoints, the summary; and histograms, where a backend takes them."""
    effects.name_unread(records.opt, bool(trained), bool(evaluated))
    histograms = {}
    if records.backends and evaluated:
        histograms = gradients_by_block(built.model) | evaluation.distances_by_split(embedded)
    state.save(epoch, records.log(epoch, trained, evaluated, histograms), records.contents())
    records.summarise(state)
    built.note_unsaved_state()


def finish(opt, built, embedded, records, state):
    """Plots the curves and the last network's embeddings of a split, and marks the run as finished."""
    split = evaluation.split_of_pictures(opt, built.data)
    if split not in embedded:
        embedded = evaluation.embed_splits(opt, built.model, built.data, [split], built.criterion)
    finish_records(opt, embedded[split], split, records, state)


@processes.rank_zero_only
def finish_records(opt, embedded, split, records, state):
    """The part of finish() that process 0 does alone. embedded: the Embedded of `split`."""
    plots, panel = state.folder / 'plots', state.folder / f'retrieval_{split}.png'
    if opt.pictures != ['none']:
        evaluation.curves.plot(records.rows, plots, single=evaluation.curves.SINGLE in opt.pictures)
    saved = evaluation.pictures.save(opt, embedded, split, plots, panel if opt.pictures != ['none'] else None)
    if panel in saved:
        records.picture(f'retrieval/{split}', panel)
    records.summarise(state, finished=True)
    print(f'Done.\n  run folder:       {state.folder}' + (f'\n  plots:            {plots}' if plots.exists() else '')
          + (f'\n  retrieved images: {panel}' if panel in saved else ''))


def work(arguments):
    """Carries out a command line: a run, or the evaluation of a network that is trained already."""
    if any(argument.startswith('--reproduce_results') for argument in arguments):
        from tuning import powerful_benchmarker
        arguments = [*powerful_benchmarker.command(arguments), *arguments]
    opt = configuration.parse(arguments)
    if opt.auto_resume and not opt.resume and (opt := continued(opt, arguments)) is None:
        return
    if len(opt.gpu) > 1 and not processes.connected():
        return processes.start(len(opt.gpu), [sys.executable, *sys.argv], configuration.secret_variables(opt))
    if opt.evaluate:
        evaluation.show(opt, parts.restore(opt, opt.evaluate))
    else:
        run(opt, sys.argv[1:])


def main(arguments):
    """Returns the exit code: 0; 2 after a UserError; 1 for a failed run; 130 after Ctrl-C."""
    sys.argv[1:] = run_folder.without_secrets(arguments, parameters.flags_with('secret'))    # for logging libraries
    with errors.reported('main.py') as end, processes.together():
        end.code = work(arguments) or 0
    return end.code


if __name__ == '__main__':
    stopping.install()
    processes.leave(main(sys.argv[1:]))
