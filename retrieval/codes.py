"""
Short codes of embeddings, and how well images are found by them: `Evaluate_Network.py RUN codes 64 int8 binary pq16`.

- 64: the first 64 components (Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022), and beside them
  pca64, the first 64 principal components of the training split.
- int8: each embedding as whole numbers from -127 to 127 and a scale of its own.
- binary: the signs; images are ranked by the Hamming distance.
- pq16: product quantisation with 16 bytes (Jegou et al., TPAMI 2011), fitted to the training split by faiss.

In int8 and pq, only the gallery is coded, and queries keep their embeddings. Images are ranked by the Euclidean
distance from the query to what their codes stand for, which orders signs as the Hamming distance does.
"""
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

import parts
from evaluation import geometry, retrieval
from evaluation.metrics import compute
from evaluation.protocol import build_pool, embed_splits, split_of_pictures
from evaluation.ranking import precision
from evaluation.ranking.arrays import chunks, in_threads
from evaluation.ranking.nearest import first
from evaluation.ranking.nearest_rows import exact, faiss_or_none, measured
from evaluation.ranking.neighbours import Search
from flags.command_line import COUNT
from retrieval.unknown import containing_folder
from utilities import plotting, processes
from utilities.errors import UserError
from utilities.files import require_writable, write_csv
from utilities.text_tables import aligned

NAME = re.compile(r'([1-9]\d*)|(int8)|(binary)|pq([1-9]\d*)')
METRICS = ('e_recall@1', 'map_at_r')
CHUNK = 1 << 21              # scores, or differences of components, that each thread holds at a time
N_TIMED, N_NEAREST = 500, 10  # most queries that are timed, and images that each of them finds
OPEN = {'linestyle': ':', 'markerfacecolor': 'white'}      # markers of re-scored codes in the figure
CENTROIDS = 256              # centroids of each part in product quantisation: a byte


@dataclass
class Code:
    """
    name, n_bytes: as in the table; bytes of an image.
    as_query:  embeddings [n, D] float32 -> what a query is compared by, [n, d] float32.
    encode:    embeddings [n, D] -> codes [n, ...].
    decode:    codes [n, ...] -> what they stand for, [n, d]; or an object whose rows are read so.
    prepare:   codes of the gallery -> their search, (queries [q, d], k) -> the k nearest of the gallery [q, k].
    symmetric: whether queries and gallery are the same points, whose order float64 decides where float32 cannot.
    """
    name: str
    n_bytes: int
    as_query: Callable
    encode: Callable
    decode: Callable
    prepare: Callable
    symmetric: bool = False

    def ranking(self, embeddings):
        """Embeddings [n, D], a tensor -> (queries [n, d + 1], gallery [n, d + 1]), whose inner product is the score."""
        points = embeddings.numpy()
        queries, gallery = self.as_query(points), np.asarray(self.decode(self.encode(points)))
        move = precision.around_their_mean(torch.from_numpy(gallery), torch.from_numpy(queries))
        queries, gallery = move(torch.from_numpy(queries)), move(torch.from_numpy(gallery))
        half_norms = gallery.double().square().sum(dim=1, keepdim=True) / 2
        return (torch.cat([queries, torch.ones(len(queries), 1)], dim=1),
                torch.cat([gallery, -half_norms.float()], dim=1))


def prefix(dim, normalize):
    def cut(points):
        return F.normalize(torch.from_numpy(points[:, :dim]), dim=1).numpy() if normalize else points[:, :dim].copy()
    return floats(str(dim), dim, cut)


def floats(name, dim, reduce):
    """A code of `dim` numbers in float32, compared as they are. reduce: embeddings [n, D] -> [n, dim]."""
    return Code(name, 4 * dim, reduce, reduce, lambda codes: codes,
                lambda codes: lambda queries, k: exact(codes, queries, k), symmetric=True)


def int8(dim):
    return Code('int8', dim + 4, lambda points: points, to_int8, Int8,
                lambda codes: lambda queries, k: exact(Int8(codes), queries, k))


def to_int8(embeddings):
    """
    [n, D] float32 -> uint8 [n, D + 4]: each row as D signed bytes and a float32 scale, the largest absolute value
    divided by 127. Nothing is fitted, so that images can be added at any time.
    """
    scales = (abs(embeddings).max(axis=1, keepdims=True) / 127).astype('<f4')
    numbers = np.rint(embeddings / np.where(scales > 0, scales, 1)).astype(np.int8)
    return np.hstack([numbers.view(np.uint8), scales.view(np.uint8)])


class Int8:
    """Codes of to_int8, an array [n, D + 4] that may be mapped into memory; indexing gives float32 rows [..., D]."""

    def __init__(self, codes):
        self.codes, self.shape, self.ndim, self.dtype = codes, (len(codes), codes.shape[1] - 4), 2, np.dtype(np.float32)

    def __len__(self):
        return len(self.codes)

    def __getitem__(self, rows):
        codes = self.codes[rows]
        return codes[..., :-4].view(np.int8) * np.ascontiguousarray(codes[..., -4:]).view('<f4')

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or np.float32, copy=False)


def binary(dim):
    """The signs: 1 where a component is positive, 0 elsewhere, packed into bytes."""
    return Code('binary', -(-dim // 8), lambda points: np.where(points > 0, 1, -1).astype(np.float32),
                lambda points: np.packbits(points > 0, axis=1),
                lambda codes: 2 * np.unpackbits(codes, axis=1, count=dim).astype(np.float32) - 1,
                lambda codes: lambda queries, k: by_hamming(codes, np.packbits(queries > 0, axis=1), k))


def by_hamming(codes, queries, k):
    """[q, k]: the codes nearest to the queries by the number of different bits; uint8 arrays [N, b] and [q, b]."""
    if faiss := faiss_or_none():
        index = faiss.IndexBinaryFlat(8 * codes.shape[1])
        index.add(np.ascontiguousarray(codes))
        return index.search(queries, k)[1]
    distances = np.stack([np.unpackbits(codes ^ query, axis=1).sum(axis=1) for query in queries])
    return np.argsort(distances, axis=1, kind='stable')[:, :k]


def product_quantised(n_parts, train):
    """
    Each of `n_parts` equal parts of the components is replaced by the nearest of 256 centroids, which k-means finds in
    the embeddings `train` [M, D].
    """
    import faiss
    dim = train.shape[1]
    index = faiss.IndexPQ(dim, n_parts, 8)
    index.pq.cp.min_points_per_centroid = 1                  # otherwise faiss prints a warning for few images
    index.train(train)

    def prepare(codes):
        index.reset()
        index.add_sa_codes(codes)
        return lambda queries, k: index.search(queries, k)[1]
    return Code(f'pq{n_parts}', n_parts, lambda points: points, index.sa_encode, index.sa_decode, prepare)


def flags(parser):
    parser.add_argument('codes', nargs='+', metavar='CODE',
                        help='a number of dimensions, int8, binary, or pqM for M bytes, as in: 64 int8 binary pq16')
    parser.add_argument('--rescore', metavar='N', type=COUNT, default=100,
                        help='also rank the N nearest images by the embeddings themselves; 0 means no re-scoring')


def check(opt):
    """Raises UserError for codes that do not exist, that no embedding has, or that need faiss, which is missing."""
    for name in opt.codes:
        if not NAME.fullmatch(name):
            raise UserError(f'codes {name}: unknown; give a number of dimensions, int8, binary, or pq and a number '
                            'of bytes, as in codes 64 int8 binary pq16')
        if name.startswith('pq') and faiss_or_none() is None:
            raise UserError(f'codes {name}: product quantisation needs faiss: pip install faiss-cpu')
        if not (opt.eval_features or opt.pca):
            parsed(name, opt.embed_dim)


def parsed(name, dim):
    """
    The number of dimensions and of parts in the name of a code, as text or None. Raises UserError for a code that
    embeddings of `dim` dimensions do not have.
    """
    number, n_parts = NAME.fullmatch(name).group(1, 4)
    if number and int(number) > dim or n_parts and dim % int(n_parts):
        expected = f'at most {dim} dimensions' if number else f'a divisor of {dim} after pq'
        raise UserError(f'codes {name}: the embeddings have {dim} dimensions; give {expected}')
    return number, n_parts


def build_codes(names, dim, train, normalize=False, normalize_pca=False):
    """
    The Codes of these names, for embeddings of `dim` dimensions, each once.

    train:         [M, D] float32, the training embeddings, to which PCA and product quantisation are fitted; or None.
    normalize:     whether prefixes get norm 1. normalize_pca: whether principal components do.

    Raises UserError for codes that these embeddings cannot have.
    """
    found = []
    for name in dict.fromkeys(names):
        number, n_parts = parsed(name, dim)
        if n_parts and (train is None or len(train) < CENTROIDS):
            n = 'none' if train is None else f'{len(train):,}'
            raise UserError(f'codes {name}: product quantisation is fitted to {CENTROIDS} training images or more, '
                            f'and there are {n}; leave it out')
        if number:
            found.append(prefix(int(number), normalize and int(number) < dim))
            if int(number) < dim and train is not None:
                found.append(principal(int(number), train, normalize_pca))
        else:
            others = {'int8': int8, 'binary': binary}
            found.append(product_quantised(int(n_parts), train) if n_parts else others[name](dim))
    return found


def principal(dim, train, normalize):
    """The first principal components of the embeddings `train`, as in --pca."""
    reduce = geometry.principal_components(train, dim)
    return floats(f'pca{dim}', dim, lambda points: F.normalize(torch.from_numpy(reduce(points)), dim=1).numpy()
                  if normalize else reduce(points))


def measure(code, pool, n_rescored=0):
    """
    {'code', 'bytes', 'e_recall@1', 'map_at_r', 'ms'} of a Pool's retrieval by the Code and, with n_rescored, the same
    with `rescored_` in front: the `n_rescored` nearest images by the code are ranked anew by the distances of the
    embeddings themselves. ms: milliseconds per query of a search for the nearest images in the whole gallery.
    """
    coded, ranking = pool, code.ranking
    if code.symmetric:
        coded, ranking = replace(pool, embeddings=torch.from_numpy(code.as_query(pool.embeddings.numpy()))), None
    values = compute(METRICS, coded.embeddings, pool.labels, pool=coded, ranking=ranking)
    row = {'code': code.name, 'bytes': code.n_bytes} | values
    row['ms'], rescored_ms = times(code, pool, n_rescored)
    if n_rescored:
        again = rescored(coded, ranking, pool, n_rescored)
        row |= {f'rescored_{name}': value for name, value in again.items()} | {'rescored_ms': rescored_ms}
    return row


def rescored(coded, ranking, pool, n):
    """{metric: value} where the n nearest images of a query by the Pool `coded` are ranked by distances in `pool`."""
    found = {name: [] for name in METRICS}
    for (_, arguments), (_, original) in zip(coded.parts(), pool.parts(), strict=True):
        search = Search(**arguments, ranking=ranking(arguments['embeddings']) if ranking else None)
        plain, rows = Search(**original), np.flatnonzero(search.n_positives)

        def part_ranks(part, search=search, plain=plain):
            n_positives = search.n_positives[part]
            order, _ = first(search, part, search.scores(part), max(n, n_positives.max()))
            some = order[:, :n]
            every = torch.zeros(some.shape).masked_fill_(torch.from_numpy(some < 0), -torch.inf)
            order[:, :n], _ = first(plain, part, every, n, some)
            hits = (order >= 0) & (plain.gallery_labels[order] == plain.query_labels[part][:, None])
            ranks = np.where(hits, np.arange(1, order.shape[1] + 1), np.inf)
            return np.sort(ranks, axis=1)[:, :n_positives.max()]

        parts = chunks(rows, max(len(search.gallery), n * pool.embeddings.shape[1]), CHUNK)
        for part, ranks in zip(parts, in_threads(part_ranks, parts, 'rank'), strict=True):
            found['e_recall@1'].append(retrieval.recall_at(ranks, search.n_positives[part], 1))
            found['map_at_r'].append(retrieval.map_at_r(ranks, search.n_positives[part]))
    return {name: float(np.concatenate(values).mean()) if values else np.nan for name, values in found.items()}


def times(code, pool, n_rescored):
    """Milliseconds per query of a search in the gallery: by the code alone, and with re-scoring (None without it)."""
    search = Search(pool.embeddings, pool.labels, pool.is_query, pool.in_gallery)
    gallery, queries = search.gallery.numpy(), search.queries.numpy()[:N_TIMED]
    find, k = code.prepare(code.encode(gallery)), min(max(N_NEAREST, n_rescored), len(gallery))
    asked = code.as_query(queries)
    find(asked[:1], 1)                                       # tables that are computed once
    begin = time.perf_counter()
    find(asked, min(N_NEAREST, k))
    alone = time.perf_counter()
    if n_rescored:
        measured(gallery, queries, find(asked, k), k)
    end, per_query = time.perf_counter(), 1000 / max(len(queries), 1)
    return (alone - begin) * per_query, (end - alone) * per_query if n_rescored else None


def work(opt):
    """
    Prints the table for the split of split_of_pictures() and writes it and its figure into the run folder. Raises
    UserError where the codes do not go with the embeddings.
    """
    check(opt)
    built = parts.restore(opt, opt.evaluate)
    split = split_of_pictures(opt, built.data)
    file = containing_folder(opt.evaluate) / f'codes_{split}.csv'
    processes.run_on_rank_zero(require_writable, file, 'codes')
    splits = [name for name in built.data.evaluation if name in ('train', split)]
    embedded = embed_splits(opt, built.model, built.data, splits, built.criterion)
    if embedded[split].ranking:
        raise UserError(f'codes: --loss {opt.loss} ranks by a distance of its own, and codes keep Euclidean distances; '
                        'give --eval_features')
    print(processes.run_on_rank_zero(write, opt, embedded, split, file))


def write(opt, embedded, split, file):
    """The text of work(). embedded: {split: Embedded}."""
    embedded = {name: replace(part, embeddings=part.embeddings.cpu().float()) for name, part in embedded.items()}
    train, level = embedded['train'].embeddings.numpy() if 'train' in embedded else None, opt.eval_level[0]
    is_unit = opt.eval_normalize or '_normalize' in opt.arch and not (opt.eval_features or opt.eval_views or opt.pca)
    pool = build_pool(opt, embedded, split, level)
    codes = build_codes(opt.codes, pool.embeddings.shape[1], train, is_unit, opt.eval_normalize)
    rows = [measure(code, pool, opt.rescore) for code in codes]
    write_csv(file, rows)
    plot(rows, file.with_suffix('.png'))
    title = f'{split}: {len(embedded[split].images):,} images, embeddings of {pool.embeddings.shape[1]} dimensions'
    title += f'; re-scored: the {opt.rescore} nearest by the code' if opt.rescore else ''
    return f'{title}\n{table(rows)}\n{file}\n{file.with_suffix(".png")}'


def table(rows):
    """The rows of measure() as text; metrics in percent."""
    titles = {'code': 'code', 'bytes': 'bytes', 'e_recall@1': 'R@1', 'map_at_r': 'MAP@R', 'ms': 'ms'}
    titles |= {f'rescored_{name}': f're-scored {titles[name]}' for name in (*METRICS, 'ms')}
    names = [name for name in titles if name in rows[0]]
    cells = [[titles[name] for name in names]]
    for row in rows:
        cells.append([f'{row[name]:.3f}' if 'ms' in name else f'{100 * row[name]:.2f}' if isinstance(row[name], float)
                      else str(row[name]) for name in names])
    return aligned(cells)


@plotting.styled
def plot(rows, file):
    """The figure of MAP@R against bytes: filled markers for codes alone, open ones for re-scored codes."""
    figure = plotting.new_figure()
    axes = figure.add_subplot(xlabel='bytes per image', ylabel='MAP@R (%)')
    groups = {}
    for row in rows:
        kind = 'PCA' if row['code'].startswith('pca') else 'prefix' if row['code'].isdecimal() else row['code']
        groups.setdefault(kind, []).append(row)
    for number, (kind, own) in enumerate(groups.items()):
        colour, marker, _ = plotting.mark(number)
        for name, style in (('map_at_r', {'label': kind}), ('rescored_map_at_r', OPEN)):
            points = sorted((row['bytes'], 100 * row[name]) for row in own if name in row)
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, **style) if points else None
    if 'rescored_map_at_r' in rows[0]:
        axes.plot([], [], color=plotting.GREY, marker='o', label='re-scored', **OPEN)
    axes.set_xscale('log', base=2)
    axes.xaxis.set_major_formatter('{x:.0f}')
    axes.grid()
    plotting.legend_above(axes)
    plotting.save(figure, file)
