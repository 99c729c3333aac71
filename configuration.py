"""
The flags of a run: from a run folder, --config files and the command line; what is recorded of them; and notes on given
flags that have no effect, because nothing reads them.

For --resume: which flags may change, by their groups (never, merge or free), and how a run is continued. For
--auto_resume: which run is continued.
"""
import sys
from pathlib import Path

import batch_mining
import criteria
import datasampler
import datasets
import evaluation
import optimization
import parameters
from flags import command_line
from flags.command_line import accepted_settings, as_list, given, mappings, merged, read_config, text_of, tokens
from flags.namespace import Flags, is_read
from records import checkpoint, published, reading, run_folder
from utilities import processes
from utilities.errors import UserError
from utilities.files import remove_temporary

BUILT = ('data', 'network')                                                    # groups of flags
TRAINING = ('training', 'batch creation', 'batch mining', 'losses')
# Removed flags and their defaults; a run with another value needs the code of TAG
REMOVED = {
    'language_distill_w': 0.0, 'language_vectors': None, 'language_pseudoclass': False, 'language_pseudoclass_topk': 5,
    'language_delay': 0, 'language_shift': 1.0, 'language_temp': 1.0, 'language_distill_dir': 'backward',
    'mahalanobis': False, 'mahalanobis_lr': -1.0, 'prompts': 0, 'prompt_depth': 0,
    'decode': 'exact', 'label_noise': 0.0, 'embed_lda_shrinkage': 0.1, 'class_weights_divisor': 'samples',
}
# Removed flags that never changed a result
REMOVED_WITHOUT_EFFECT = {'language_model'}
REMOVED_PICTURES = {'umap', 'utility', 'confidence'}
REMOVED_EMBEDDING = ('decode', 'prompts', 'prompt_depth')     # removed flags that changed embeddings
TAG = 'before-0.2'                                            # the last code that has the removed flags


def parse(arguments, defaults=None):
    """
    The command line's arguments, a list of strings -> the namespace.

    The values come from `defaults`, {flag: value}, the settings of a run folder (--resume, --reproduce, --evaluate),
    the --config files and the command line; later sources override earlier ones. `given` in the namespace lists the
    flags of the command line and the --config files. Raises UserError for whatever the user must change.
    """
    parser = parameters.build()
    mode = parser.parse_args(arguments)
    folders = [folder for folder in (mode.resume, mode.reproduce, mode.evaluate) if folder]
    if len(folders) > 1:
        raise UserError('--resume, --reproduce and --evaluate: give one of them')
    if mode.auto_resume and folders and not mode.resume:
        raise UserError('--auto_resume goes with a training run; leave it out with --reproduce and --evaluate')
    for flag, place in (('resume', mode.resume), ('reproduce', mode.reproduce)):
        if place and Path(place).is_file():
            raise UserError(f'--{flag} {place}: expected a run folder, not a file; a checkpoint starts a run by '
                            '--start_from, and is evaluated by --evaluate')
    settings = dict(defaults or {})
    asked = {}
    for folder in folders:
        settings |= accepted_settings(parser, recorded_flags(folder), folder, parameters.modes())
    for file in mode.config:
        asked = merged(parser, asked, read_config(parser, file, parameters.modes()))
    before = merged(parser, settings, asked)
    typed = given(parser, arguments)
    if mode.evaluate:
        require_effect(typed, '--evaluate', parameters.training_flags())
    opt = parser.parse_args([*tokens(before, parser), *arguments])
    for name in parameters.flags_with('arguments_of').keys() & before.keys():
        setattr(opt, name, mappings(merged(parser, before, typed)[name]))
    opt.given = [*given(parser, [*tokens(asked, parser), *arguments])]
    if opt.unsupervised and 'samples_per_class' not in opt.given:
        opt.samples_per_class = 1
    if not opt.evaluate:
        opt.storage_metrics = evaluation.storage_metrics(opt)
    if opt.merge_argparse_when_resuming and not opt.resume:
        raise UserError('--merge_argparse_when_resuming goes with --resume RUN_FOLDER, whose settings it changes')
    if opt.resume:
        check_resumption(opt, settings, recorded_settings(opt))
    choose_splits(opt)
    check(opt)
    return Flags(vars(opt))


def require_effect(flags, what, unread):
    """Raises UserError for flags among those that `what`, a command, does not read."""
    for flag in sorted({*flags} & {*unread}):
        raise UserError(f'--{flag} has no effect on {what}; leave it out')


def choose_splits(opt):
    """Keeps only one of --splits and --split_scheme: a given flag replaces that of an earlier run."""
    if opt.splits and opt.split_scheme:
        if {'splits', 'split_scheme'} <= {*opt.given}:
            raise UserError(f'--splits {opt.splits} takes the place of --split_scheme {opt.split_scheme}; give one of '
                            'them')
        if 'split_scheme' in opt.given:
            opt.splits = opt.splits_step = None
        else:
            opt.split_scheme = None


def check(opt):
    """Raises UserError for combinations of flags that cannot work, as far as this can be seen without the data."""
    run_folder.check_names(opt)
    datasets.check(opt)
    datasampler.check(opt)
    check_methods(opt)
    criteria.check_flags(opt)
    optimization.check_arguments(opt)
    evaluation.check_metrics(opt)
    evaluation.pictures.check(opt)


def check_methods(opt):
    """Raises UserError if the function `problem` of a loss, miner or sampler finds flags that cannot work."""
    for registry, names in ((criteria.CRITERIA, opt.loss), (batch_mining.BATCHMINERS, opt.batch_mining),
                            (datasampler.SAMPLERS, opt.data_sampler)):
        for name in names.split('+'):
            method = registry.get(name)
            sentence = method.problem(opt) if hasattr(method, 'problem') else None
            if sentence:
                raise UserError(sentence)


def recorded_flags(place):
    """
    The settings of a run folder, of the run that wrote a checkpoint file, or of an exported network. Settings of other
    programs, whose flags do not exist, are left out, with a note. Raises UserError as without_removed() does.
    """
    if Path(place).is_file() or published.is_folder(place):
        file = checkpoint.find(place)
        settings = without_removed(place, checkpoint.load(file)['settings'])
        if file.suffix == '.safetensors':
            published.check_flags(file.parent, settings, parameters.flags_with('embedding'))
    else:
        settings = without_removed(place, run_folder.read(place)['flags'])
    unknown = sorted(settings.keys() - {*command_line.known_flags(parameters.build())})
    if unknown:
        print(f'Note: {place}: it was recorded with flags that do not exist here, which are left out: '
              f'--{", --".join(unknown)}', file=sys.stderr)
    return {name: value for name, value in settings.items() if name not in unknown}


def without_removed(place, settings):
    """
    The settings, {flag: value}, without removed flags. Raises UserError if the run at `place` was trained with another
    value than the default of a removed flag.
    """
    used = [f'--{name} {text_of(settings[name])}' for name, default in REMOVED.items()
            if settings.get(name, default) != default]
    if settings.get('embed_init') == 'lda':
        used.append('--embed_init lda')
    if used:
        raise UserError(f'{place}: it was trained with {", ".join(used)}, which no longer exists; use the code of the '
                        f'git tag {TAG}')
    kept = {name: value for name, value in settings.items() if name not in REMOVED.keys() | REMOVED_WITHOUT_EFFECT}
    if 'pictures' in kept:
        kept['pictures'] = [name for name in kept['pictures'] if name not in REMOVED_PICTURES] or ['none']
    return kept


def embedding_settings(opt):
    """{flag: value} of the flags on which the embedding of an image depends, beside the weights."""
    return {name: getattr(opt, name) for name in parameters.flags_with('embedding')}


def settings_in_id(opt):
    """The settings in the id of a network, with removed flags, so that indexes of earlier versions have the same id."""
    return {name: REMOVED[name] for name in REMOVED_EMBEDDING} | embedding_settings(opt)


def secret_variables(opt):
    """The flags that are secrets, as environment variables of a process: {name: value}."""
    secrets = parameters.flags_with('secret').items()
    return {variable: getattr(opt, flag) for flag, variable in secrets if getattr(opt, flag)}


def recorded_settings(opt):
    """The flags as they are recorded: without secrets, and without what to do in this process."""
    excluded = {'given', *parameters.flags_with('secret'), *parameters.modes()}
    return {name: value for name, value in vars(opt).items() if name not in excluded}


def checksums_of_files(settings):
    """{flag: checksum} of the existing files that the settings name, for the flags with the fact `file`."""
    found = {name: run_folder.file_checksum(settings.get(name)) for name in parameters.flags_with('file')}
    return {name: checksum for name, checksum in found.items() if checksum}


def name_unread(opt, trained, evaluated):
    """
    Prints the given flags without effect: those that nothing has read in the first trained epoch, or with --n_epochs 0
    in the evaluation. After the first evaluated epoch, it also names flags of the evaluation. To be called after each
    epoch; each flag is named once.
    """
    found = unread(opt, trained, evaluated)
    opt.given = [name for name in opt.given if name not in found]
    if found and processes.is_main():
        named = ', '.join(f'--{name} {text_of(value)}' for name, value in found.items())
        print(f'Note: without effect in this run: {named}', file=sys.stderr)


def unread(opt, trained, evaluated):
    """
    The flags of name_unread(), {flag: value}. A resumed run has the data and the network that it began with, and reads
    fewer of their flags.
    """
    if not trained and opt.n_epochs:
        return {}
    groups = [*TRAINING]
    if not opt.resume:
        groups += BUILT
    if evaluated:
        groups.append('evaluation')
    flags = parameters.flags_of_group(*groups)
    defaults = parameters.defaults()
    values = vars(opt)
    return {name: values[name] for name in opt.given
            if name in flags and not is_read(opt, name) and values[name] != defaults[name]}


# --resume

def check_resumption(opt, before, now):
    """Raises UserError for flags that cannot change within a run. before, now: its settings, and those of --resume."""
    merging = opt.merge_argparse_when_resuming
    never = changes(before, now, 'never')
    merge = [] if merging or never else changes(before, now, 'merge')
    if never or merge:
        instead = '' if never else 'add --merge_argparse_when_resuming, '
        raise UserError(f'--resume {opt.resume}: cannot change within a run: {", ".join(never or merge)}; give the '
                        f'flags that it was started with, {instead}or start a new run by --reproduce {opt.resume}')


def changes(before, now, *kinds):
    """The flags of these kinds, 'never' or 'merge', that differ between two settings, as texts with both values."""
    kind = parameters.flags_with('resume')
    before = parameters.defaults() | before
    return [f'--{name} {text_of(value)} (was {text_of(before[name])})' for name, value in now.items()
            if kind.get(name) in kinds and as_list(value) != as_list(before[name])]


def require_unchanged(folder, description, files):
    """Raises UserError if the data or the files of the run to continue have changed since it began."""
    run_folder.require_same_data(folder, description)
    not_compared = {'csv', 'splits'}                         # their contents are in the description of the data
    if (folder / run_folder.LAST).exists():
        not_compared.add('start_from')                       # no longer read, and that run may have gone on
    run_folder.require_same_files(folder, {name: files[name] for name in files if name not in not_compared})


def continue_run(opt, state, arguments, description):
    """
    Restores the run of --resume, whose Checkpoint is `state`, and records that it goes on.

    description: the description of the data by datasets.select. Raises UserError where there is nothing to continue.
    """
    begins = {entry['at_epoch'] for entry in run_folder.read(state.folder).get('merged', [])}

    def merges(epoch):
        return opt.merge_argparse_when_resuming or epoch in begins

    def differences(before, merging):
        kinds = ['never'] if merging else ['never', 'merge']
        return changes(before, state.settings, *kinds)

    first = state.resume(differences, merges)
    if first == 0:
        last = reading.last_epoch(state.folder)
        if last > 0:
            raise UserError(f'--resume {state.folder}: it has records up to epoch {last}, but no {run_folder.LAST} to '
                            f'continue from; start a new run with its settings by --reproduce {state.folder}')
    if opt.n_epochs < first - 1:
        raise UserError(f'--n_epochs {opt.n_epochs}: {state.folder} has trained {first - 1} epochs already')
    if processes.is_main():
        remove_temporary(state.folder)
        merged = parameters.flags_with('resume', 'merge') if opt.merge_argparse_when_resuming else ()
        run_folder.note_resumption(state.folder, state.settings, arguments, state.next_epoch, description, merged)


def find_run(opt, recorded):
    """
    --auto_resume: the run with the `recorded` settings as (its folder, whether it is finished); None if there is none.
    --n_epochs and flags that are no settings may differ; with another --n_epochs, it does not count as finished.
    """
    chosen = datasampler.chosen_later(opt)
    settings = {name: value for name, value in parameters.settings_among(recorded).items()
                if name not in {'n_epochs', *chosen}}
    folder = reading.find(Path(opt.save_path) / opt.dataset / run_folder.savename(opt), settings, chosen,
                          parameters.files_among(recorded))
    if folder is None:
        return None
    return folder, reading.is_finished(folder) and run_folder.read(folder)['flags']['n_epochs'] == opt.n_epochs
