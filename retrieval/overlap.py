"""
Evaluate_Network.py RUN overlap: images that two splits share: copies of one file, and near-duplicates by the network's
features.
"""
import hashlib
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
from tqdm import tqdm

import parts
from evaluation import pictures
from evaluation.embedding import embed
from evaluation.ranking.arrays import chunks, in_threads, pick
from evaluation.ranking.precision import ROWS
from flags.command_line import FRACTION
from records import lock, run_folder
from retrieval.unknown import containing_folder
from utilities import processes, stopping
from utilities.errors import UserError
from utilities.files import require_writable_folder, write_csv
from utilities.plotting import COLUMN, fit, new_figure, save, styled
from utilities.text_tables import aligned

CHUNK = 1 << 22              # similarities that each thread computes at a time: 16 MB
MOST = 100_000               # pairs to list: first copies, then the most similar pairs
SHOWN = 24                   # pairs in the picture


def flags(parser):
    parser.add_argument('--threshold', type=FRACTION, default=0.8,
                        help='smallest cosine similarity, of centred features, that counts as a near-duplicate')


def work(opt):
    """
    Writes overlap.csv and overlap.png into the folder of a run, and the numbers of pairs into its splits.yaml; for a
    data set, into <save_path>/<dataset>/overlap. Prints the numbers. Raises UserError where there is a single split,
    or where the data differ from the data of the run.
    """
    run = opt.evaluate
    built = parts.restore(opt, run) if run else parts.prepare(opt)
    data = built.data
    splits = list(built.data.evaluation)
    if len(splits) < 2:
        raise UserError(f'overlap: all images are in the {splits[0]} split, so that there is nothing to compare')
    folder = containing_folder(run) if run else Path(opt.save_path) / opt.dataset / 'overlap'
    changed = run and run_folder.changed_data(run_folder.read(folder), data.description)
    if changed:
        raise UserError(f'{run}: the data have {changed} than this run; --source_path must lead to the same data')
    processes.run_on_rank_zero(require_writable_folder, folder, 'overlap: the folder')
    folder.mkdir(parents=True, exist_ok=True)
    with lock.held(folder):
        embedded = {split: embed(opt, built.model, data.evaluation[split], split, features=True) for split in splits}
        processes.run_on_rank_zero(report, embedded, opt.threshold, folder, bool(run))


def report(embedded, threshold, folder, of_run):
    """Finds, lists, draws, records and prints what the splits {split: Embedded} share."""
    images = {split: part.images for split, part in embedded.items()}
    points = dict(zip(embedded, directions([part.embeddings.cpu().numpy() for part in embedded.values()]), strict=True))
    contents = fingerprints(images)
    listed = []
    found = {}
    for one, other in itertools.combinations(images, 2):
        pairs, numbers = overlap(points[one], points[other], contents[one], contents[other], threshold,
                                 f'compare {one} and {other}')
        found[f'{one} and {other}'] = numbers | {'images': dict(zip((one, other), numbers['images'], strict=True))}
        listed += [(one, int(i), other, int(j), float(similarity), bool(same)) for i, j, similarity, same in pairs]
    listed.sort(key=lambda pair: (not pair[5], -pair[4], *pair[:4]))
    write_csv(folder / 'overlap.csv', [pair_row(images, *pair) for pair in listed[:MOST]])
    (folder / 'overlap.png').unlink(missing_ok=True)       # the picture of an earlier check
    if listed:
        draw(images, listed[:SHOWN], folder / 'overlap.png')
    if of_run:
        splits = run_folder.read_splits(folder)
        run_folder.write_yaml(folder / 'splits.yaml', splits | {'overlap': {'threshold': threshold} | found})
    print(table(found, threshold))
    if listed:
        print(f'{folder / "overlap.csv"}: {min(len(listed), MOST):,} pairs; the closest: {folder / "overlap.png"}')


def directions(points):
    """
    Subtracts the mean of all rows from several arrays [N, D] float32, and scales the rows to norm 1. Unrelated images
    then have similarities around 0.
    """
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in points) / sum(map(len, points))
    moved = []
    for part in points:
        moved.append(np.empty_like(part))
        for start in range(0, len(part), ROWS):
            rows = part[start:start + ROWS] - mean
            moved[-1][start:start + ROWS] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-100)
    return moved


def fingerprints(images):
    """{split: ImageSet} -> {split: [N] hash of each file's content and box, or None if no other file has its size}."""
    sizes = {split: [Path(path).stat().st_size for path in part.paths] for split, part in images.items()}
    n_files = Counter(itertools.chain(*sizes.values()))
    found = {}
    for split, part in images.items():
        boxes = [str(source).removeprefix(str(path)) for source, path in zip(part.sources, part.paths, strict=True)]
        files = tqdm(zip(part.paths, boxes, sizes[split], strict=True), f'read {split}', len(part), leave=False,
                     disable=None)
        found[split] = [hashlib.sha256(Path(path).read_bytes() + box.encode()).digest() if n_files[size] > 1 else None
                        for path, box, size in stopping.checked(files)]
    return found


def overlap(one, other, contents_one, contents_other, threshold, description=None):
    """
    one, other: [N, D] and [M, D] float32 of norm 1, two splits. contents_one, contents_other: their fingerprints().

    Returns a list of pairs (i, j, similarity, whether they are copies of one file): up to MOST copies, and up to MOST
    other pairs that reach the threshold, the most similar ones; and {'copies', 'near_duplicates': the numbers of all
    pairs of both kinds, 'images': how many images of each split are in such a pair}.
    """
    known = {}
    for j, content in enumerate(contents_other):
        known.setdefault(content, []).append(j)
    known.pop(None, None)
    codes = {content: code for code, content in enumerate(known)}
    codes_one, codes_other = (np.array([codes.get(content, missing) for content in contents])
                              for contents, missing in ((contents_one, -1), (contents_other, -2)))
    copies = ((i, j) for i, content in enumerate(contents_one) for j in known.get(content, ()))

    def near(rows):
        similarities = one[rows] @ other.T
        row, column, similarity = pick(similarities, similarities >= np.float32(threshold))
        others = codes_one[rows[row]] != codes_other[column]
        return rows[row][others], column[others], similarity[others]

    kept = [np.zeros((0, 3))]
    n_near = 0
    shared = np.zeros(len(one), bool), np.zeros(len(other), bool)
    for i, j, similarity in in_threads(near, chunks(np.arange(len(one)), len(other), CHUNK), description):
        shared[0][i] = True
        shared[1][j] = True
        n_near += len(i)
        kept.append(np.stack([i, j, similarity], axis=1))
        if sum(map(len, kept)) > 2 * MOST:
            kept = [highest(kept)]
    shared[0][np.isin(codes_one, codes_other)] = shared[1][np.isin(codes_other, codes_one)] = True
    pairs = [(i, j, one[i] @ other[j], True) for i, j in itertools.islice(copies, MOST)]
    pairs += [(int(i), int(j), similarity, False) for i, j, similarity in highest(kept)]
    n_copies = sum(len(known.get(content, ())) for content in contents_one)
    return pairs, {'copies': n_copies, 'near_duplicates': n_near, 'images': [int(part.sum()) for part in shared]}


def highest(kept):
    """The up to MOST rows of highest similarity from several [n, 3] arrays of (i, j, similarity)."""
    rows = np.concatenate(kept)
    return rows[np.lexsort((rows[:, 1], rows[:, 0], -rows[:, 2]))[:MOST]]


def pair_row(images, one, i, other, j, similarity, same):
    """A row of overlap.csv."""
    row = {}
    for number, split, index in ((1, one, i), (2, other, j)):
        part = images[split]
        row |= {f'path_{number}': str(part.sources[index]), f'split_{number}': split,
                f'class_{number}': part.class_names[part.labels[index]]}
    return row | {'similarity': f'{similarity:.6f}', 'same_file': int(same)}


def table(found, threshold):
    """A text table of the numbers that overlap() returns for each pair of splits."""
    rows = [['splits', 'copies', f'similarity of {threshold:g} or more', 'images in such pairs']]
    for name, numbers in found.items():
        images = ', '.join(f'{number:,} of {split}' for split, number in numbers['images'].items())
        rows.append([name, f'{numbers["copies"]:,}', f'{numbers["near_duplicates"]:,}', images])
    return aligned(rows, left=(0, 3))


@styled
def draw(images, pairs, file, n_columns=4, gap=0.08):
    """Saves the images of pairs (split, i, split, j, similarity, same) side by side. gap: in sides of an image."""
    n_rows = -(-len(pairs) // n_columns)
    width, height = 2 + 3 * gap, 1 + 5 * gap
    scale = 2 * COLUMN / (n_columns * width)
    figure = new_figure(2 * COLUMN, scale * n_rows * height)
    figure.set_layout_engine('none')
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-gap, n_columns * width - gap), ylim=(n_rows * height, 0))
    axes.set_axis_off()
    for number, (one, i, other, j, similarity, same) in enumerate(pairs):
        top, left = number // n_columns * height + 3 * gap, number % n_columns * width
        axes.text(left, top - gap / 3, 'copies' if same else f'similarity {similarity:.4f}', fontsize=5.5)
        for split, index, start in ((one, i, left), (other, j, left + 1 + gap / 2)):
            part = images[split]
            axes.imshow(pictures.pixels(part, index), extent=(start, start + 1, top + 1, top), aspect='auto')
            name = pictures.short(part.class_names[part.labels[index]], 20)
            fit(axes.text(start, top + 1 + gap / 3, f'{split}: {name}', fontsize=4.5, va='top'), scale)
    save(figure, file)
