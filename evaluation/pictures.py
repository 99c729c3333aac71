"""Pictures of the embeddings of one split, for papers. PICTURES is the registry."""
import importlib.util
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from evaluation import geometry, verification
from evaluation import why as explanations
from evaluation.protocol import embed_splits, split_of_pictures
from evaluation.ranking.arrays import chunks
from evaluation.ranking.nearest import first, first_by_class, nearest
from utilities import plotting, processes
from utilities.errors import UserError
from utilities.files import require_writable_folder
from utilities.plotting import COLUMN, GREY, RIGHT, WRONG, new_figure


def check(opt):
    """Raises UserError if --pictures contradict each other."""
    if 'none' in opt.pictures and len(opt.pictures) > 1:
        raise UserError(f'--pictures {" ".join(opt.pictures)}: none cannot be combined with others; leave it out')
    if 'tsne' in opt.pictures and importlib.util.find_spec('sklearn') is None:
        raise UserError('--pictures tsne needs scikit-learn: pip install scikit-learn')


def draw(opt, model, data, criterion, folder, pair=()):
    """
    Saves --pictures of the split protocol.split_of_pictures() in `folder`, as PNG and SVG. Raises UserError if `folder`
    cannot be made, or no picture is asked for.

    pair: two image files of the split, for the picture why, which then shows them, and is drawn alone.
    """
    if pair and (len(pair) != 2 or opt.pictures != ['why']):
        raise UserError(f'pictures {folder}: two images go with --pictures why, which shows them')
    if not set(opt.pictures) & {*PICTURES}:
        raise UserError(f'pictures {folder}: there is nothing to draw with --pictures {opt.pictures[0]}, which may be '
                        f'the setting of the run; name some of {", ".join(PICTURES)}')
    processes.run_on_rank_zero(require_writable_folder, folder, 'pictures')
    split = split_of_pictures(opt, data)
    embedded = embed_splits(opt, model, data, [split], criterion)[split]
    if pair:
        one, other = (place_of(path, embedded.images, split) for path in pair)
        processes.run_on_rank_zero(save_pair, embedded, one, other, Path(folder))
        return
    saved = processes.run_on_rank_zero(save, opt, embedded, split, folder, None, ('png', 'svg'))
    for file in saved:
        print(file)
    drawn = {Path(file).stem for file in saved}
    missing = [name for name in opt.pictures if name in PICTURES and f'{name}_{split}' not in drawn]
    if missing:
        print(f'Not drawn: {", ".join(missing)}: the {split} split has too few images, no two images of one '
              'class, or only identical embeddings.')


def place_of(path, images, split):
    """The index of an image file in an ImageSet."""
    places = [place for place, own in enumerate(images.paths) if os.path.abspath(own) == os.path.abspath(path)]
    if not places:
        raise UserError(f'pictures: {path} is no image of the {split} split (--splits_to_eval)')
    return places[0]


@plotting.styled
def save_pair(embedded, one, other, folder):
    figure = explained(embedded, [(one, [other])])
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ('png', 'svg'):
        plotting.save(figure, folder / f'why_pair.{suffix}')
        print(folder / f'why_pair.{suffix}')


@plotting.styled
def save(opt, embedded, split, folder, panel=None, formats=('png',)):
    """
    Saves <picture>_<split>.png in `folder` for each of --pictures that has something to show.

    panel:   None, or the file for the PNG of `retrieval`, which is then made even if --pictures does not name it.
    formats: suffixes of the files of each picture, png first; each takes as long as the picture itself.

    Returns the files.
    """
    folder = Path(folder)
    saved = []
    files = {name: [folder / f'{name}_{split}.{suffix}' for suffix in formats]
             for name in opt.pictures if name in PICTURES}
    if panel:
        files['retrieval'] = [Path(panel), *files.get('retrieval', [])[1:]]
    if files:
        folder.mkdir(parents=True, exist_ok=True)
    for name, paths in files.items():
        figure = PICTURES[name](embedded, opt.seed)
        saved += [plotting.save(figure, path) for path in paths if figure]
    return saved


def short(name, length=26):
    """'001.Black_footed_Albatross' -> 'Black footed Albatross', for a figure; long names are cut."""
    name = str(name)
    number, _, rest = name.partition('.')
    if number.isdigit() and rest:
        name = rest
    return plotting.literal(name.replace('_', ' '), length)


def sample_queries(search, labels, seed, n_queries):
    """Samples up to n_queries queries that have a positive, each of another class."""
    random = np.random.default_rng(seed)
    candidates = random.permutation(search.query_index[search.n_positives > 0])
    _, places = np.unique(labels[candidates], return_index=True)
    return candidates[random.permutation(places)[:n_queries]]


def retrieval(embedded, seed, n_queries=6, n_neighbours=8):
    """
    Queries and their nearest images. The colour of the frame tells whether an image is of the query's class; images of
    other classes also have a cross, for readers who do not see the colours.
    """
    search, images = embedded.search(), embedded.images
    queries = sample_queries(search, images.labels, seed, n_queries)
    if not len(queries):
        return None

    def tile(query, index):
        colour = RIGHT if images.labels[index] == images.labels[query] else WRONG
        if index == query:
            colour = 'black'
        return pixels(images, index), colour, None

    rows = [(short(images.class_names[images.labels[query]], 60), [tile(query, index) for index in (query, *found)])
            for query, found in zip(queries, nearest(search, queries, n_neighbours), strict=True)]
    return plotting.panel(rows)


def pixels(images, index):
    """An image as the network sees it: [H, W, 3] uint8."""
    return (images[int(index)][0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def some_images(labels, seed, limit=2000):
    """Indices of the images of classes sampled with `seed`, up to `limit` images."""
    order = np.random.default_rng(seed).permutation(np.unique(labels))
    sizes = np.bincount(labels)[order]
    kept = order[:max(1, np.searchsorted(sizes.cumsum(), limit, 'right'))]
    return np.flatnonzero(np.isin(labels, kept))[:limit]


def tsne(embedded, seed):
    """
    Sampled classes on a plane: the ten largest ones in colours, the others in grey. van der Maaten and Hinton,
    Visualizing Data using t-SNE, JMLR 2008.
    """
    embeddings, labels = embedded.without_distractors()
    chosen = some_images(labels, seed)
    if len(chosen) < 8:
        return None
    points = embeddings[torch.as_tensor(chosen)].cpu().numpy()
    if not np.ptp(points, axis=0).any():                   # t-SNE crashes (segmentation fault) on equal points
        return None
    from sklearn.manifold import TSNE
    perplexity = min(30, (len(points) - 1) / 3)
    init = 'pca' if points.shape[1] > 1 else 'random'
    points = TSNE(perplexity=perplexity, init=init, random_state=seed % 2 ** 32).fit_transform(points)
    labels = labels[chosen]
    sizes = np.bincount(labels)
    width, height = np.ptp(points, axis=0)
    figure = new_figure(1.5 * COLUMN, COLUMN * np.clip(height / width, 0.6, 1.2))
    axes = figure.add_subplot(xticks=[], yticks=[], aspect='equal')
    axes.margins(0.02)
    axes.spines[:].set_visible(False)
    largest = np.argsort(-sizes, kind='stable')[:min(10, np.count_nonzero(sizes))]
    rest = ~np.isin(labels, largest)
    axes.scatter(*points[rest].T, s=3, color='0.82', linewidths=0,
                 label=f'{len(np.unique(labels[rest]))} other classes' if rest.any() else None)
    for index, label in enumerate(largest):
        colour, marker, _ = plotting.mark(index)
        axes.scatter(*points[labels == label].T, s=7, color=colour, marker=marker, linewidths=0,
                     label=short(embedded.images.class_names[label]))
    figure.legend(loc='outside right center', markerscale=1.8, handletextpad=0.1)
    return figure


def spectrum(embedded, seed):
    """The singular values divided by their sum, and a uniform spectrum."""
    embeddings, _ = embedded.without_distractors()
    values = geometry.singular_values(embeddings.cpu().numpy())
    fractions = geometry.rho_spectrum(values, 0)
    n_zeros = np.count_nonzero(fractions == 0)
    rho = f'∞, since {n_zeros} are 0' if n_zeros else f'{geometry.rho_spectrum(values, 1):.3f}'
    figure = new_figure(COLUMN, 0.7 * COLUMN)
    axes = figure.add_subplot(xlabel='singular value', ylabel='fraction of their sum', yscale='log')
    axes.plot(np.arange(1, len(fractions) + 1), np.where(fractions > 0, fractions, np.nan), '.-', markersize=3,
              linewidth=0.8, label=f'embeddings, ρ = {rho}')
    axes.axhline(1 / len(fractions), color=GREY, linestyle='--', linewidth=0.8, label='uniform, ρ = 0')
    plotting.legend_above(axes)
    return figure


def distances(embedded, seed, n_pairs=200_000):
    """Histograms of distances: random pairs of images of one class, and of two classes."""
    embeddings, labels = embedded.without_distractors()
    pairs = sample_pairs(labels, np.random.default_rng(seed), n_pairs)
    if pairs is None:
        return None
    values = {name: pair_distances(embeddings, embedded.ranking, *pair) for name, pair in pairs.items()}
    lowest, highest = np.quantile(np.concatenate(list(values.values())), [0, 1])
    if lowest == highest:                                              # all embeddings are identical
        return None
    figure = new_figure(COLUMN, 0.7 * COLUMN)
    axes = figure.add_subplot(xlabel='score' if embedded.ranking else 'Euclidean distance', ylabel='density')
    bins = np.linspace(lowest, highest, 81)
    for (name, found), colour in zip(values.items(), (RIGHT, WRONG), strict=True):
        axes.hist(found, bins, density=True, histtype='stepfilled', alpha=0.35, color=colour)
        axes.hist(found, bins, density=True, histtype='step', color=colour, linewidth=0.8,
                  label=f'{name}, median {np.median(found):{".2f" if highest < 1e4 else ".3g"}}')
    plotting.legend_above(axes)
    return figure


def sample_pairs(labels, random, n_pairs):
    """{'same class', 'different classes': two index arrays} of random pairs; None if there is no pair of one kind."""
    order = np.argsort(labels, kind='stable')
    sizes = np.bincount(labels)
    starts = sizes.cumsum() - sizes
    has_positive = sizes[labels[order]] > 1
    if not has_positive.any() or sizes.max() == len(labels):
        return None
    first = random.choice(np.flatnonzero(has_positive), n_pairs)       # indices into `order`
    own = labels[order[first]]
    step = 1 + (random.random(n_pairs) * (sizes[own] - 1)).astype(int)
    second = starts[own] + (first - starts[own] + step) % sizes[own]
    one, other = random.integers(0, len(labels), (2, n_pairs))
    differ = labels[one] != labels[other]
    return {'same class': (order[first], order[second]), 'different classes': (one[differ], other[differ])}


def pair_distances(embeddings, ranking, one, other):
    """The distances of pairs of images, or scores if the criterion has its own ranking. one, other: index arrays."""
    queries, gallery = ranking(embeddings) if ranking else (embeddings, embeddings)
    found = []
    for some in np.array_split(np.arange(len(one)), 50):       # the embeddings of all pairs may not fit in memory
        left, right = queries[torch.as_tensor(one[some])], gallery[torch.as_tensor(other[some])]
        found.append((left * right).sum(dim=1) if ranking else (left - right).norm(dim=1))
    return torch.cat(found).cpu().numpy()


def classes(embedded, seed, n_worst=12):
    """Recall@1 of every class in ascending order; for the worst classes, the class they are most often mistaken for."""
    search = embedded.search()
    names = embedded.images.class_names
    rows = np.flatnonzero(search.n_positives)
    if not len(rows):
        return None
    images = np.concatenate([first(search, part, search.scores(part), 1)[0][:, 0]
                             for part in chunks(rows, len(search.gallery))])
    labels, taken = search.query_labels[rows], search.gallery_labels[images]
    present, n_images = np.unique(labels, return_counts=True)
    recall = 100 * np.bincount(labels, taken == labels)[present] / n_images
    order = np.lexsort((present, recall))
    worst = order[:n_worst][::-1]
    figure = new_figure(2 * COLUMN, 0.8 * COLUMN)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    left.stairs(recall[order], np.linspace(0, 100, len(order) + 1), baseline=None, color=GREY)
    left.axhline(100 * (taken == labels).mean(), color='black', linestyle='--', linewidth=0.8, label='mean over images')
    left.set(xlabel='classes (%)', ylabel='R@1 (%)', ylim=(-2, 102))
    plotting.legend_above(left)
    right.barh(range(len(worst)), recall[worst], color='0.8', height=0.7)
    for bar, c in enumerate(worst):
        wrong = taken[(labels == present[c]) & (taken != labels)]
        if len(wrong):
            others, counts = np.unique(wrong, return_counts=True)
            most = counts.argmax()
            text = f'{counts[most] / n_images[c]:.0%} {short(names[others[most]], 24)}'
            plotting.fit(right.text(1, bar, text, va='center', fontsize=5.5), 2.2)        # the axes' width in inches
    right.set(xlim=(0, 100), xlabel='R@1 (%) of the worst classes,\nand their main mistake')
    for tick in right.set_yticks(range(len(worst)), [short(names[present[c]]) for c in worst]):
        plotting.fit(tick.label1, 1.6)
    return figure


def roc(embedded, seed, n_points=300):
    """The true-positive rate over the false-positive rate, for all pairs of images (verification.py)."""
    accepted = verification.Pairs(*embedded.without_distractors()).histograms[:, ::-1].cumsum(axis=1)
    if not accepted[:, -1].all():
        return None
    true, false = accepted / accepted[:, -1:]
    rates = np.geomspace(1 / accepted[1, -1], 1, n_points)
    figure = new_figure(COLUMN, 0.7 * COLUMN)
    axes = figure.add_subplot(xscale='log', xlabel='false-positive rate', ylabel='true-positive rate',
                              ylim=(-0.02, 1.02))
    axes.plot(rates, np.append(0, true)[false.searchsorted(rates, 'right')], color='black', linewidth=0.8)
    axes.plot(rates, rates, color=GREY, linestyle='--', linewidth=0.8, label='chance')
    plotting.legend_above(axes)
    return figure


def why(embedded, seed, n_queries=4):
    """
    Queries with their nearest image of the same class and their nearest image of another class. In both images of a
    pair, yellow places add most to the cosine of the pair (why.py), and blue places lower it.
    """
    search, images = embedded.search(), embedded.images
    queries = sample_queries(search, images.labels, seed, n_queries)
    if not len(queries) or len(np.unique(images.labels)) < 2:
        return None
    rows = np.searchsorted(search.query_index, queries)
    nearest_of_both = np.concatenate([found for found, _ in first_by_class(search, rows, 1)], axis=1)
    if nearest_of_both.min() < 0:                          # a gallery without images of another class
        return None
    pairs = search.gallery_index[nearest_of_both]
    return explained(embedded, list(zip(queries, pairs, strict=True)))


def explained(embedded, groups):
    """The figure of why(). groups: [(index of a query, indices of images that are compared with it)]."""
    images = embedded.images
    network = embedded.network
    unit = F.normalize(embedded.embeddings.to(network.mean.device), dim=1)

    def maps(one, other):
        return [explanations.similarity_map(network, images[int(index)][0], unit[partner], embedded.of_features)
                for index, partner in ((one, other), (other, one))]

    drawn = []
    for query, others in groups:
        found = [maps(query, other) for other in others]
        top = max(float(part.abs().max()) for parts in found for part in parts)
        tiles = [(pixels(images, query), 'black', 'query')]
        for other, parts in zip(others, found, strict=True):
            colour = RIGHT if images.labels[other] == images.labels[query] else WRONG
            cosine = f'cosine {float(parts[0].sum()):.3f}'
            tiles += [(heated(pixels(images, query), parts[0], top), plotting.GREY, cosine),
                      (heated(pixels(images, other), parts[1], top), colour, short(
                          images.class_names[images.labels[other]]))]
        drawn.append((short(images.class_names[images.labels[query]], 60), tiles))
    return plotting.panel(drawn, breaks=range(1, 2 * len(groups[0][1]), 2))


def heated(image, added, top):
    """An image [H, W, 3] uint8 in grey, under colours of what each place adds, [h, w], up to `top`; blue below 0."""
    import matplotlib
    added = F.interpolate(added[None, None], image.shape[:2], mode='bicubic')[0, 0].numpy() / top
    heat = 255 * matplotlib.colormaps['inferno'](np.clip(added, 0, 1))[:, :, :3]
    heat = np.where(added[:, :, None] < 0, np.array([0, 114, 178]) * np.clip(-added, 0, 1)[:, :, None], heat)
    grey = image.mean(axis=2, keepdims=True)
    return (0.5 * grey + 0.5 * heat).clip(0, 255).round().astype(np.uint8)


PICTURES = {'retrieval': retrieval, 'tsne': tsne, 'spectrum': spectrum, 'distances': distances,
            'classes': classes, 'roc': roc, 'why': why}
