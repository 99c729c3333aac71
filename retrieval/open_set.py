"""
Evaluate_Network.py RUN open_set: some test classes have no image in the gallery. Their queries are to be called
unknown, by a threshold of the nearest similarity that is calibrated on validation classes (identification.py).
"""
import json
import sys

import numpy as np

import configuration
import parts
from evaluation import titles
from evaluation.embedding import network_id
from evaluation.protocol import embed_splits, note_collapse
from flags.command_line import FRACTION, number
from records import columns, run_folder
from records.columns import Column
from records.writing import with_nulls
from retrieval.identification import AT_THRESHOLD, METRICS, build_search, calibrate, removable_classes, top_answers
from retrieval.unknown import containing_folder, threshold_file
from utilities import processes
from utilities.errors import UserError
from utilities.files import require_writable, write_text
from utilities.text_tables import aligned

NAMES = {'val': 'validation', 'test': 'test'}
WITHOUT = ('eval_level', 'eval_reference', 'splits_to_eval')   # main.py's flags that it does not read


def flags(parser):
    parser.add_argument('share', nargs='?', metavar='FRACTION', type=FRACTION, default=0.5,
                        help='share of the test classes that stay out of the gallery (default: 0.5)')
    parser.add_argument('--fpir', type=number(float, 0, 0.5, above=True), default=0.1,
                        help='fraction of the unknown queries that the threshold accepts on the validation classes')


def evaluate(opt):
    """Prints the metrics of the test classes, calibrates a threshold, and writes it into the run folder."""
    processes.run_on_rank_zero(require_writable, threshold_file(opt.evaluate), 'open_set: the file')
    built = parts.restore(opt, opt.evaluate)
    reason = check(opt, built.data)
    splits = [split for split in ('val', 'test') if split in built.data.evaluation]
    embedded = embed_splits(opt, built.model, built.data, splits, built.criterion)
    processes.run_on_rank_zero(save, opt, built.model, embedded, opt.evaluate, reason)


def check(opt, data):
    """Raises UserError if the share leaves no known or no unknown class; returns, and notes, no_threshold()."""
    if 'test' not in data.evaluation:
        raise UserError(f'open_set {opt.share:g}: some test classes stay out of the gallery, and there is no test '
                        'split (--test_size)')
    images = data.evaluation['test']
    n_classes = len(removable_classes(images))
    n_unknown = round(opt.share * n_classes)
    if not 0 < n_unknown < n_classes:
        raise UserError(f'open_set {opt.share:g}: {n_unknown} of the {n_classes} test classes would be unknown; '
                        'give a share that leaves some known and some unknown classes')
    reason = no_threshold(opt, data)
    if reason and processes.is_main():
        print(f'Note: no threshold is calibrated: {reason}', file=sys.stderr)
    return reason


def no_threshold(opt, data):
    """Why there are no validation classes to calibrate a threshold on, a sentence; None if there are some."""
    if 'val' not in data.evaluation:
        return ('there are no validation classes, and neither test nor training classes can replace them; '
                '--use_tv_split or --split_scheme class_folds, given when a run is trained, makes them')
    folder = containing_folder(opt.evaluate)
    if not (folder / 'splits.yaml').exists():
        return f'{folder} has no splits.yaml, which lists the classes of the training'
    recorded = run_folder.read_splits(folder)['splits']
    known = {split: {*recorded.get(split, {}).get('classes', ())} for split in ('train', 'val', 'test')}
    now = {split: {*images.class_names} for split, images in data.evaluation.items()}
    for split, kind, others in (('val', 'training', known['train'] | now.get('train', set())),
                                ('val', 'test', known['test'] | now['test']),
                                ('test', 'training', known['train']), ('test', 'validation', known['val'])):
        shared = sorted(now[split] & others)
        if shared:
            return (f'the {NAMES[split]} split has {len(shared):,} {kind} classes, such as {shared[0]}; evaluate the '
                    'splits of a run whose validation classes are of no other split (--use_tv_split without '
                    '--tv_split_by_samples)')
    images = data.evaluation['val']
    sizes = np.bincount(images.labels)[removable_classes(images)]
    if np.count_nonzero(sizes > 1) < 2:
        return 'fewer than two validation classes have two images or more (--tv_split_perc, --n_folds)'
    return None


def save(opt, model, embedded, place, reason):
    """
    Calibrates a threshold, prints it, and writes it into the folder of the run or checkpoint `place`. reason:
    no_threshold().
    """
    note_collapse(embedded, [*embedded])
    test = embedded['test']
    search = build_search(test, opt.share, opt.seed)
    answers = top_answers(search)
    found = {name: metric(answers) for name, metric in METRICS.items()}
    row = None
    if reason is None:
        row = calibrate(embedded['val'], opt.fpir, opt.seed)
        found['os_threshold'] = row['threshold']
        found |= {name: metric(answers, row['threshold']) for name, metric in AT_THRESHOLD.items()}
    found = {name: float(value) for name, value in found.items()}
    unknown = {test.images.class_names[label] for label in answers.labels[~answers.is_known]}
    own = f'--pca {opt.pca}' if opt.pca else f'the ranking of --loss {opt.loss}' if test.ranking else None
    known = None if own else network_id(model, configuration.settings_in_id(opt))
    content = {'network_id': known, 'own_similarity': own, 'share': opt.share, 'fpir': opt.fpir, 'seed': opt.seed,
               'reason': reason, 'threshold': row,
               'test': {'gallery_size': len(search.gallery_index), 'n_known_queries': len(answers.known),
                        'n_unknown_queries': len(answers.unknown), **found, 'unknown_classes': sorted(unknown)}}
    file = threshold_file(place)
    print(titles.table({Column('test', name).name: value for name, value in found.items()}))
    if row:
        print(f'{table(row, content["test"])}\nthreshold: {file}')
    else:
        print(f'No threshold: {reason}')
    if reason is not None and file.exists():
        print(f'  {file} stays as it was')
    else:
        write_text(file, json.dumps(with_nulls(content), indent=1) + '\n')


def table(row, test):
    """The threshold and its errors on the validation and the test classes, as text."""
    def cell(name):
        low, high = columns.interval(name)
        return f'{row[name]:.4f} [{row[low]:.4f}, {row[high]:.4f}]'

    return aligned([['classes', 'gallery images', 'threshold', 'FPIR', 'FNIR'],
                    ['validation', f'{row["gallery_size"]:,}', *map(cell, ('threshold', 'fpir', 'fnir'))],
                    ['test', f'{test["gallery_size"]:,}', f'{test["os_threshold"]:.4f}', f'{test["os_fpir"]:.4f}',
                     f'{test["os_fnir"]:.4f}']], left=(0, 2, 3, 4))
