"""Pictures of one split's embeddings, made for papers: PNG and SVG of each. PICTURES is their registry."""
import importlib.util
from pathlib import Path

import numpy as np
import torch

from evaluation import geometry
from evaluation.ranking import chunks
from utilities.errors import UserError
from utilities.files import atomic

RIGHT, WRONG, GREY = 'tab:green', 'tab:red', '0.45'
COLOURS = [f'C{number}' for number in (0, 1, 2, 3, 4, 5, 6, 8, 9)] + ['black']      # without grey
COLUMN = 3.4                 # width of a paper's column, in inches
STYLE = {'font.size': 7, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.linewidth': 0.6,
         'figure.constrained_layout.use': True, 'savefig.dpi': 300, 'legend.frameon': False,
         'svg.hashsalt': 'evaluation'}                     # the same picture is the same file


def check(opt):
    """Raises UserError where pictures exclude each other, or one needs a package that is not installed."""
    if 'none' in opt.pictures and len(opt.pictures) > 1:
        raise UserError(f'--pictures {" ".join(opt.pictures)}: none leaves no room for others; leave it out')
    if 'umap' in opt.pictures and importlib.util.find_spec('umap') is None:
        raise UserError('--pictures umap needs umap-learn: pip install umap-learn, or choose tsne')


def draw(opt, embedded, folder, split):
    """<picture>_<split>.png and .svg in `folder` for each of --pictures that has something to show; the files."""
    import matplotlib
    Path(folder).mkdir(exist_ok=True)
    files = []
    for name in [name for name in opt.pictures if name != 'none']:
        with matplotlib.rc_context(STYLE):
            figure = PICTURES[name](embedded, opt.seed)
            for suffix in ('png', 'svg') if figure else ():
                files.append(Path(folder) / f'{name}_{split}.{suffix}')
                with atomic(files[-1]) as temporary:
                    figure.savefig(temporary, metadata={'Date': None} if suffix == 'svg' else None)
    return files


def new_figure(width, height):
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height))


def short(name, length=26):
    """'001.Black_footed_Albatross' -> 'Black footed Albatross'; cut where it is long."""
    name = str(name)
    number, _, rest = name.partition('.')
    name = (rest if number.isdigit() and rest else name).replace('_', ' ')
    return name if len(name) <= length else name[:length - 1] + '…'


def draw_queries(embedded, seed, n_queries, n_neighbours):
    """Queries that have something to find, drawn with `seed`, one per class as far as they go, and their neighbours."""
    search, labels = embedded.search(), embedded.images.labels
    random = np.random.default_rng(seed)
    candidates = random.permutation(search.query_index[search.n_positives > 0])
    _, first = np.unique(labels[candidates], return_index=True)
    queries = candidates[random.permutation(first)[:n_queries]]
    return queries, search.nearest(queries, n_neighbours) if len(queries) else None


def retrieval(embedded, seed, n_queries=6, n_neighbours=8):
    """Queries and their nearest images, framed by whether they are of the query's class."""
    queries, neighbours = draw_queries(embedded, seed, n_queries, n_neighbours)
    if not len(queries):
        return None
    images, n_columns = embedded.images, neighbours.shape[1] + 1
    side = 2 * COLUMN / (n_columns + 0.3)
    figure = new_figure(2 * COLUMN, len(queries) * side * 1.12)
    grid = figure.add_gridspec(len(queries), n_columns + 1, width_ratios=[1, 0.12] + [1] * (n_columns - 1))
    for row, query in enumerate(queries):
        for column, index in enumerate([query, *neighbours[row]]):
            axes = figure.add_subplot(grid[row, column + (column > 0)], xticks=[], yticks=[])
            axes.imshow((images[int(index)][0].clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy(), interpolation='none')
            right = images.labels[index] == images.labels[query]
            for spine in axes.spines.values():
                spine.set(visible=True, linewidth=2, color='black' if not column else RIGHT if right else WRONG)
            if not column:
                axes.set_title(short(images.class_names[images.labels[query]], 18), fontsize=5.5, pad=2, loc='left')
    return figure


def some_images(labels, seed, limit=2000):
    """Indices of the images of whole classes, drawn with `seed`, up to `limit` of them."""
    order = np.random.default_rng(seed).permutation(np.unique(labels))
    sizes = np.bincount(labels)[order]
    kept = order[:max(1, np.searchsorted(sizes.cumsum(), limit, 'right'))]
    return np.flatnonzero(np.isin(labels, kept))[:limit]


def map_of(project):
    """A picture of classes on a plane: the ten largest of those drawn in colours, the others grey."""
    def picture(embedded, seed):
        images = embedded.images
        chosen = some_images(images.labels, seed)
        if len(chosen) < 8:
            return None
        places = project(embedded.embeddings[torch.as_tensor(chosen)].cpu().numpy(), seed)
        labels = images.labels[chosen]
        sizes = np.bincount(labels)
        wide, high = np.ptp(places, axis=0)
        figure = new_figure(1.5 * COLUMN, COLUMN * np.clip(high / wide, 0.6, 1.2))
        axes = figure.add_subplot(xticks=[], yticks=[], aspect='equal')
        axes.margins(0.02)
        axes.spines[:].set_visible(False)
        largest = np.argsort(-sizes, kind='stable')[:min(10, np.count_nonzero(sizes))]
        rest = ~np.isin(labels, largest)
        axes.scatter(*places[rest].T, s=3, color='0.82', linewidths=0,
                     label=f'{len(np.unique(labels[rest]))} other classes' if rest.any() else None)
        for number, label in enumerate(largest):
            axes.scatter(*places[labels == label].T, s=7, color=COLOURS[number], linewidths=0,
                         label=short(images.class_names[label]))
        figure.legend(loc='outside right center', markerscale=1.8, handletextpad=0.1)
        return figure
    return picture


def tsne(points, seed):
    """van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 2008."""
    from sklearn.manifold import TSNE
    perplexity = min(30, (len(points) - 1) / 3)
    return TSNE(perplexity=perplexity, init='pca', random_state=seed % 2 ** 32).fit_transform(points)


def umap(points, seed):
    """McInnes et al., UMAP, https://arxiv.org/abs/1802.03426."""
    from umap import UMAP
    return UMAP(n_neighbors=min(15, len(points) - 1), random_state=seed % 2 ** 32, n_jobs=1).fit_transform(points)


def spectrum(embedded, seed):
    """The singular values over their sum, and what a uniform spectrum would be."""
    values = geometry.singular_values(embedded.embeddings.cpu().numpy())
    share = geometry.rho_spectrum(values, 0)
    figure = new_figure(COLUMN, 0.7 * COLUMN)
    axes = figure.add_subplot(xlabel='singular value', ylabel='share of their sum', yscale='log')
    axes.plot(np.arange(1, len(share) + 1), np.where(share > 0, share, np.nan), '.-', markersize=3, linewidth=0.8,
              label=f'embeddings, ρ = {geometry.rho_spectrum(values, 1):.3f}')
    axes.axhline(1 / len(share), color=GREY, linestyle='--', linewidth=0.8, label='uniform, ρ = 0')
    axes.legend()
    return figure


def distances(embedded, seed, n_pairs=200_000):
    """Histograms of the distances of random pairs of one class and of two."""
    labels, random = embedded.images.labels, np.random.default_rng(seed)
    order = np.argsort(labels, kind='stable')
    sizes = np.bincount(labels)
    starts, several = sizes.cumsum() - sizes, sizes[labels[order]] > 1
    if not several.any() or len(sizes) < 2:
        return None
    first = random.choice(np.flatnonzero(several), n_pairs)           # places in the order of the classes
    own = labels[order[first]]
    step = 1 + (random.random(n_pairs) * (sizes[own] - 1)).astype(int)
    second = starts[own] + (first - starts[own] + step) % sizes[own]
    pairs = {'same class': (order[first], order[second])}
    one, other = random.integers(0, len(labels), (2, n_pairs))
    unlike = labels[one] != labels[other]
    pairs['different classes'] = one[unlike], other[unlike]
    search = embedded.ranking(embedded.embeddings) if embedded.ranking else (embedded.embeddings, embedded.embeddings)
    found = {name: np.concatenate([closeness(search, *part, euclidean=embedded.ranking is None) for part in zip(
        np.array_split(one, 50), np.array_split(other, 50), strict=True)]) for name, (one, other) in pairs.items()}
    figure = new_figure(COLUMN, 0.7 * COLUMN)
    axes = figure.add_subplot(xlabel='score' if embedded.ranking else 'Euclidean distance', ylabel='density')
    bins = np.linspace(*np.quantile(np.concatenate(list(found.values())), [0, 1]), 81)
    for (name, values), colour in zip(found.items(), (RIGHT, WRONG), strict=True):
        axes.hist(values, bins, density=True, histtype='stepfilled', alpha=0.35, color=colour)
        axes.hist(values, bins, density=True, histtype='step', color=colour, linewidth=0.8,
                  label=f'{name}, median {np.median(values):.2f}')
    axes.set_ylim(top=axes.get_ylim()[1] * 1.25)
    axes.legend(loc='upper left')
    return figure


def closeness(points, one, other, euclidean):
    """The distances, or inner products, of some pairs."""
    left, right = points[0][torch.as_tensor(one)], points[1][torch.as_tensor(other)]
    return ((left - right).norm(dim=1) if euclidean else (left * right).sum(dim=1)).cpu().numpy()


def classes(embedded, seed, n_worst=12):
    """Recall@1 of every class in ascending order, and of the worst ones what their images are taken for."""
    search, names = embedded.search(), embedded.images.class_names
    rows = np.flatnonzero(search.n_positives)
    if not len(rows):
        return None
    nearest = np.concatenate([search.scores(part).max(dim=1).indices.cpu().numpy()
                              for part in chunks(rows, len(search.gallery))])
    labels, taken = search.query_labels[rows], search.gallery_labels[nearest]
    present, n_images = np.unique(labels, return_counts=True)
    recall = np.bincount(labels, taken == labels)[present] / n_images
    order = np.lexsort((present, recall))
    worst = order[:n_worst][::-1]
    figure = new_figure(2 * COLUMN, 0.8 * COLUMN)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    left.plot((np.arange(len(order)) + 0.5) / len(order) * 100, recall[order], color=GREY, drawstyle='steps-mid')
    left.axhline((taken == labels).mean(), color='black', linestyle='--', linewidth=0.8, label='mean over images')
    left.set(xlabel='classes, percent', ylabel='recall@1', ylim=(-0.02, 1.02))
    left.legend(loc='lower right')
    right.barh(range(len(worst)), recall[worst], color=GREY, height=0.7)
    for place, c in enumerate(worst):
        wrong = taken[(labels == present[c]) & (taken != labels)]
        if len(wrong):
            others, counts = np.unique(wrong, return_counts=True)
            most = counts.argmax()
            inside = recall[c] > 0.52
            right.text(recall[c] + (-0.01 if inside else 0.01), place,
                       f'{counts[most] / n_images[c]:.0%} {short(names[others[most]], 24)}', va='center', fontsize=5.5,
                       ha='right' if inside else 'left', color='white' if inside else WRONG)
    right.set(xlim=(0, 1), xlabel='recall@1 of the worst classes; their main mistake')
    right.set_yticks(range(len(worst)), [short(names[present[c]]) for c in worst])
    return figure


PICTURES = {'retrieval': retrieval, 'tsne': map_of(tsne), 'umap': map_of(umap), 'spectrum': spectrum,
            'distances': distances, 'classes': classes}
