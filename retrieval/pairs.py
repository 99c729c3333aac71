"""
Evaluate_Network.py RUN pairs FILE: verification on a list of pairs. Huang et al., Labeled Faces in the Wild, 2007: a
pair is accepted as one class if its similarity reaches a threshold, which for each fold is chosen on the others.

The similarity is 1 − d² / 2 for a Euclidean distance d, which is the cosine for embeddings of norm 1.
"""
import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import criteria
from datasets import image_list
from datasets.loading import workers
from evaluation import rank_metrics
from retrieval import loading, unknown
from utilities.errors import UserError
from utilities.files import require_writable, write_csv
from utilities.text_tables import aligned

RATES = 1e-3, 1e-2, 1e-1     # false-positive rates at which the true-positive rate is printed
WITHOUT = ('eval_autocast', 'eval_reference', 'eval_level', 'splits_to_eval')
SUFFIXES = '.jpg', '.png', '.jpeg'
DIGITS = 9                   # the most digits of a number in LFW's list


@dataclass
class Pairs:
    """
    first, second: [P] paths.
    is_same:       [P] bool: whether the two images are of one class.
    fold:          [P] text: the fold of each pair.
    """
    first: list
    second: list
    is_same: np.ndarray
    fold: np.ndarray


def flags(parser):
    add = parser.add_argument
    add('file', metavar='FILE',
        help="the pairs: a CSV file with the columns path_a, path_b, same (1 or 0) and fold, or LFW's pairs.txt")
    add('--photos', metavar='FOLDER', help="the folder of the images; by default the file's")
    add('--rows', metavar='OUT.csv', help='also write a row for each pair: similarity, threshold, decision')


def verify(opt):
    if criteria.has_own_distance(opt):
        raise UserError(f'pairs: --loss {opt.loss} ranks by a distance of its own, which pairs does not know')
    if opt.rows:
        require_writable(opt.rows, '--rows')
    pairs = read(Path(opt.file), Path(opt.photos) if opt.photos else Path(opt.file).parent)
    images = list(dict.fromkeys([*pairs.first, *pairs.second]))
    embeddings = loading.embed(*loading.restore(opt, opt.evaluate), images, opt.eval_bs or opt.bs, workers(opt))
    similarity = similarities(embeddings, images, pairs)
    thresholds, accuracies = by_folds(similarity, pairs.is_same, pairs.fold)
    print(report(similarity, pairs, accuracies, len(images)))
    if opt.rows:
        rows = []
        for first, second, same, fold, found in zip(pairs.first, pairs.second, pairs.is_same, pairs.fold, similarity,
                                                    strict=True):
            threshold = thresholds[fold]
            decided = not np.isnan(threshold)                    # a single fold has no threshold
            rows.append({'path_a': first, 'path_b': second, 'same': int(same), 'fold': fold,
                         'similarity': f'{found:.6f}', 'threshold': f'{threshold:.6f}' if decided else '',
                         'accepted': int(found >= threshold) if decided else ''})
        write_csv(opt.rows, rows)


def read(file, folder):
    """The Pairs of a file, whose images are in `folder`. Raises UserError, with the line, for what is no such file."""
    try:
        lines = file.read_text(encoding='utf-8-sig').splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'pairs {file}: not readable ({error})') from None
    read_rows = read_csv if file.suffix.lower() == '.csv' else read_lfw
    try:
        rows = read_rows(file, lines, folder)
    except csv.Error as error:
        raise UserError(f'pairs {file}: not a CSV file ({error})') from None
    if not rows:
        raise UserError(f'pairs {file}: it has no pairs')
    first, second, is_same, fold = (list(column) for column in zip(*rows, strict=True))
    if len({*is_same}) == 1:
        raise UserError(f'pairs {file}: all pairs are {"of one class" if is_same[0] else "of two classes"}; both kinds '
                        'are needed')
    missing = [path for path in dict.fromkeys(first + second) if not os.path.exists(path)]
    if missing:
        raise UserError(f'pairs {file}: {len(missing):,} of {len({*first, *second}):,} images do not exist, such as '
                        f'{missing[0]}; --photos names their folder')
    return Pairs(first, second, np.array(is_same), np.array(fold, dtype=str))


def read_csv(file, lines, folder):
    reader = csv.DictReader(lines)
    wanted = ('path_a', 'path_b', 'same', 'fold')
    rows = []
    if not {*wanted} <= {*(reader.fieldnames or ())}:
        raise UserError(f'pairs {file}: expected a header with the columns {", ".join(wanted)}, found '
                        f'{", ".join(reader.fieldnames or ["no row"])}')
    for row in reader:
        first, second, same, fold = (row[name] for name in wanted)
        is_same = image_list.TRUTH.get((same or '').strip().lower())
        if not (first and second and fold) or is_same is None:
            raise UserError(f'pairs {file}, line {reader.line_num}: expected two paths, same as 1 or 0, and a fold')
        rows.append((first, second, is_same, fold))
    names = [*dict.fromkeys(name for row in rows for name in row[:2])]
    path_of = dict(zip(names, map(str, image_list.located(f'pairs {file}', folder, names)), strict=True))
    return [(path_of[first], path_of[second], is_same, fold) for first, second, is_same, fold in rows]


def read_lfw(file, lines, folder):
    """
    LFW's pairs.txt: a line with the number of folds, n pairs of each kind a fold (pairsDevTest.txt: n only), then for
    each fold n lines `name i j` and n lines `name i name j`. The images are name/name_0001.jpg.
    """
    table = [line.split() for line in lines if line.strip()]
    if not table or len(table[0]) > 2 or not all(map(is_number, table[0])) or not all(map(int, table[0])):
        raise UserError(f"pairs {file}: neither a .csv file nor LFW's pairs.txt, whose first line is the number of "
                        'folds and of pairs, such as 10 300')
    n_folds, n_pairs = map(int, ['1', *table[0]][-2:])
    rows = []
    for number, cells in enumerate(table[1:]):
        is_same = number % (2 * n_pairs) < n_pairs
        one = cells[:2]
        other = cells[:1] + cells[2:] if is_same else cells[2:]
        if len(cells) != (3 if is_same else 4) or not (is_number(one[1]) and is_number(other[1])):
            raise UserError(f'pairs {file}: pair {number + 1} is {" ".join(cells)!r}; expected '
                            f'{"name number number" if is_same else "name number name number"}')
        rows.append((*(image_of_lfw(folder, *image) for image in (one, other)), is_same,
                     str(number // (2 * n_pairs) + 1)))
    if len(rows) != 2 * n_folds * n_pairs:
        raise UserError(f'pairs {file}: its first line says {2 * n_folds * n_pairs:,} pairs, but it has {len(rows):,}')
    return rows


def is_number(cell):
    return cell.isdecimal() and len(cell) <= DIGITS


def image_of_lfw(folder, name, number):
    places = [folder / name / f'{name}_{int(number):04d}{suffix}' for suffix in SUFFIXES]
    return str(next((place for place in places if os.path.exists(place)), places[0]))


def similarities(embeddings, images, pairs):
    """[P] float64: the similarities of the pairs. embeddings: [N, D], of the paths `images`."""
    place = {path: number for number, path in enumerate(images)}
    first, second = (torch.tensor([place[path] for path in paths]) for paths in (pairs.first, pairs.second))
    distances = [(embeddings[one].double() - embeddings[other].double()).norm(dim=1)
                 for one, other in zip(first.split(1024), second.split(1024), strict=True)]
    return unknown.similarity(torch.cat(distances).numpy())


def by_folds(similarity, is_same, fold):
    """
    {fold: the best_threshold() of the other folds}, and {fold: the fraction of its pairs that this decides rightly};
    with a single fold, nan.
    """
    thresholds = {}
    accuracies = {}
    for name in dict.fromkeys(fold.tolist()):
        own = fold == name
        thresholds[name] = accuracies[name] = np.nan
        if not own.all():
            thresholds[name] = best_threshold(similarity[~own], is_same[~own])
            accuracies[name] = float(((similarity[own] >= thresholds[name]) == is_same[own]).mean())
    return thresholds, accuracies


def best_threshold(similarity, is_same):
    """The threshold that decides most pairs rightly, in the middle between two similarities; the lowest of several."""
    values, place = np.unique(similarity, return_inverse=True)
    gains = np.bincount(place, np.where(is_same, -1, 1))              # pairs won by rejecting those of a value
    best = int(np.append(0, gains.cumsum()).argmax())                 # the number of rejected values
    edges = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    return float(edges[best])


def roc(similarity, is_same):
    """False- and true-positive rates from (0, 0) to (1, 1), one point for each different similarity."""
    place = np.unique(-similarity, return_inverse=True)[1]
    rates = []
    for kind in (~is_same, is_same):
        accepted = np.bincount(place, kind).cumsum()
        rates.append(np.append(0, accepted / accepted[-1]))
    return rates


def equal_error_rate(similarity, is_same):
    """The rate at which the false-positive and the false-negative rate are equal, on straight lines between points."""
    false, true = roc(similarity, is_same)
    return float(np.interp(0, false - (1 - true), false))


def true_positive_rate(similarity, is_same, rate):
    """The fraction of pairs of one class accepted where at most a fraction `rate` of the others is accepted."""
    false, true = roc(similarity, is_same)
    return float(true[false <= rate * rank_metrics.ROUNDING][-1])


def report(similarity, pairs, accuracies, n_images):
    """The text that is printed."""
    values = np.array([*accuracies.values()])
    lines = []
    if len(values) > 1:
        error = values.std(ddof=1) / len(values) ** 0.5
        lines.append(['accuracy', f'{values.mean():.4f} ± {error:.4f}  (standard error over the folds)'])
    else:
        lines.append(['accuracy', 'none: the threshold of a fold is chosen on the others, and there is one fold'])
    lines += [['AUC', f'{rank_metrics.auroc(similarity, pairs.is_same):.4f}'],
              ['EER', f'{equal_error_rate(similarity, pairs.is_same):.4f}']]
    lines += [[f'TPR at FPR {rate:g}', f'{true_positive_rate(similarity, pairs.is_same, rate):.4f}'] for rate in RATES]
    head = (f'{len(similarity):,} pairs of {n_images:,} images in {len(values):,} folds, '
            f'{pairs.is_same.sum():,} of one class')
    return f'{head}\n{aligned(lines, left=(0, 1))}'
