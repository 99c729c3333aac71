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
from evaluation.metrics import full_precision
from evaluation.protocol import embed_splits, note_collapse
from flags.command_line import FRACTION, number
from records import columns, run_folder
from records.columns import Column
from records.writing import with_nulls
from retrieval.identification import (
    AT_THRESHOLD,
    METRICS,
    Calibration,
    build_search,
    fnir,
    fpir,
    oscr,
    removable_classes,
    row_at,
    top_answers,
)
from retrieval.unknown import containing_folder, thresholds_file
from utilities import plotting, processes
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


def calibrate(opt):
    """Prints the metrics of the test classes, calibrates thresholds, and writes them into the run folder."""
    file = thresholds_file(opt.evaluate)
    processes.run_on_rank_zero(require_writable, file, 'open_set: the file')
    built = parts.restore(opt, opt.evaluate)
    check(opt, built.data)
    splits = [split for split in ('val', 'test') if split in built.data.evaluation]
    embedded = embed_splits(opt, built.model, built.data, splits, built.criterion)
    processes.run_on_rank_zero(save, opt, built.model, built.data, embedded, opt.evaluate)


def check(opt, data):
    """Raises UserError if the share leaves no known or no unknown class, and notes why there can be no threshold."""
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
    if np.count_nonzero(np.bincount(images.labels) > 1) < 2:
        return 'fewer than two validation classes have two images or more (--tv_split_perc, --n_folds)'
    return None


@full_precision()
def evaluate_open_set(opt, data, embedded):
    """
    The Answers of the test queries; the number of gallery images; rows of the Calibration, [] without one; and {name:
    float} of METRICS and, with a threshold, of os_threshold and AT_THRESHOLD.
    """
    search = build_search(embedded['test'], opt.share, opt.seed)
    answers = top_answers(search)
    n_images = len(search.gallery_index)
    rows = []
    found = {name: metric(answers) for name, metric in METRICS.items()}
    if no_threshold(opt, data) is None:
        rows = Calibration(embedded['val'], n_images, opt.seed).rows(n_images, opt.fpir)
        found['os_threshold'] = row_at(rows, n_images)['threshold']
        found |= {name: metric(answers, found['os_threshold']) for name, metric in AT_THRESHOLD.items()}
    return answers, n_images, rows, {name: float(value) for name, value in found.items()}


def save(opt, model, data, embedded, place):
    """
    Calibrates thresholds for several gallery sizes, prints them, and writes them and a plot into the folder of the run
    or checkpoint `place`.
    """
    note_collapse({f'{split} split': part for split, part in embedded.items()})
    answers, n_images, rows, found = evaluate_open_set(opt, data, embedded)
    test = embedded['test']
    reason = no_threshold(opt, data)
    unknown = {test.images.class_names[label] for label in answers.labels[~answers.is_known]}
    own = f'--pca {opt.pca}' if opt.pca else f'the ranking of --loss {opt.loss}' if test.ranking else None
    known = None if own else network_id(model, configuration.settings_in_id(opt))
    content = {'network_id': known, 'own_similarity': own, 'share': opt.share, 'fpir': opt.fpir, 'seed': opt.seed,
               'reason': reason, 'thresholds': rows,
               'test': {'gallery_size': n_images, 'n_known_queries': len(answers.known),
                        'n_unknown_queries': len(answers.unknown), **found, 'unknown_classes': sorted(unknown)}}
    file = thresholds_file(place)
    stays = reason is not None and file.exists()            # thresholds that were calibrated before
    if not stays:
        write_text(file, json.dumps(with_nulls(content), indent=1) + '\n')
    print(titles.table({Column('test', name).name: value for name, value in found.items()}))
    print(f'{table(rows, n_images, found)}\n  thresholds:       {file}' if rows else f'No threshold: {reason}')
    if stays:
        print(f'  {file} stays as it was')
    if opt.pictures != ['none']:
        plot = containing_folder(place) / 'plots' / f'{file.stem}.png'
        draw(answers, rows, row_at(rows, n_images) if rows else None, [plot, plot.with_suffix('.svg')])


def table(rows, n_images, found):
    """The rows of Calibration.rows() as text, and the errors `found` among the test classes."""
    def cell(row, name):
        low, high = columns.interval(name)
        return f'{row[name]:.4f} [{row[low]:.4f}, {row[high]:.4f}]'

    cells = [['gallery images', 'threshold', 'expected FPIR', 'expected FNIR']]
    cells += [[f'{row["gallery_size"]:,} {"*" if row["is_extrapolated"] else " "}',
               *(cell(row, name) for name in ('threshold', 'fpir', 'fnir'))] for row in rows]
    lines = [aligned(cells, left=(1, 2, 3))]
    if any(row['is_extrapolated'] for row in rows):
        lines.append('* larger than the gallery of the validation classes: extrapolated')
    return '\n'.join([*lines, f'test classes, {n_images:,} gallery images: threshold {found["os_threshold"]:.4f}, FPIR '
                              f'{found["os_fpir"]:.4f}, FNIR {found["os_fnir"]:.4f}'])


@plotting.styled
def draw(answers, rows, chosen, files):
    """Saves the curve of OSCR on the test classes, with the chosen point, and the thresholds by gallery size."""
    right = answers.is_known & answers.is_right
    levels = np.unique(answers.similarity)
    false, correct = ([np.count_nonzero(group)] - np.searchsorted(np.sort(answers.similarity[group]), levels)
                      for group in (~answers.is_known, right))
    n_unknown = len(answers.unknown)
    n_known = len(answers.known)
    lowest = 0.5 / max(1, n_unknown)                       # a rate of 0 on the logarithmic axis
    figure = plotting.new_figure((1 + bool(rows)) * plotting.COLUMN)
    left, *others = figure.subplots(1, 1 + bool(rows), squeeze=False)[0]
    left.plot(np.maximum(false / max(1, n_unknown), lowest), correct / max(1, n_known), color='black', linewidth=0.8,
              label=f'test classes, OSCR {oscr(answers):.3f}')
    left.set(xscale='log', xlabel='false-positive identification rate', ylabel='known queries accepted and right',
             xlim=(lowest, 1.1), ylim=(-0.02, 1.02))
    for axes in others:
        x, y = [[chosen[name] - chosen[f'{name}_low'], chosen[f'{name}_high'] - chosen[name]]
                for name in ('fpir', 'fnir')]
        left.errorbar(max(chosen['fpir'], lowest), 1 - chosen['fnir'], np.c_[y[::-1]], np.c_[x], fmt='s', mfc='white',
                      color=plotting.COLOURS[0], linewidth=0.8, label='expected from the validation classes')
        found = max(fpir(answers, chosen['threshold']), lowest), 1 - fnir(answers, chosen['threshold'])
        left.plot(*found, 'o', color=plotting.COLOURS[1], label=f'found with the threshold {chosen["threshold"]:.3f}')
        sizes, values, *band = ([row[name] for row in rows]
                                for name in ('gallery_size', 'threshold', *columns.interval('threshold')))
        n_measured = sum(not row['is_extrapolated'] for row in rows)
        axes.fill_between(sizes, *band, color=plotting.COLOURS[0], alpha=0.2, linewidth=0, label='95 % interval')
        axes.plot(sizes[:n_measured], values[:n_measured], 's-', color=plotting.COLOURS[0], label='measured')
        axes.plot(sizes[n_measured - 1:], values[n_measured - 1:], 's--', mfc='white', zorder=1,
                  color=plotting.COLOURS[0], label='extrapolated')
        axes.plot(chosen['gallery_size'], chosen['threshold'], 'o', color=plotting.COLOURS[1], label='chosen')
        axes.set(xscale='log', xlabel='gallery images', ylabel='threshold')
        axes.minorticks_off()
        ticks = [size for size, larger in zip(sizes, [*sizes[1:], np.inf], strict=True) if larger > 1.7 * size]
        axes.set_xticks(ticks, [f'{size:,}' for size in ticks])
    for axes in (left, *others):
        plotting.legend_above(axes)
    files[0].parent.mkdir(exist_ok=True)
    for file in files:
        plotting.save(figure, file)
