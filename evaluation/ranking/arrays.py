"""Large arrays and tensors: rows of them, the places of what was chosen, and work on their parts in threads."""
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from tqdm import tqdm

from utilities import stopping


def take_rows(points, index):
    """Some rows of a tensor on any device; without a copy if these are all rows."""
    everything = np.array_equal(index, np.arange(len(points)))
    return points if everything else points[torch.as_tensor(index, device=points.device)]


def pick(scores, chosen):
    """
    Row, column and value of the `chosen` scores [n, m], faster than by indexing. chosen: a bool array, contiguous in
    either order.
    """
    if not chosen.flags.c_contiguous:
        column, row, score = pick(scores.T, chosen.T)
        return row, column, score
    places = np.flatnonzero(chosen)
    row = places // chosen.shape[1]
    return row, places - row * chosen.shape[1], scores.ravel().take(places)


def bisect(table, first, values):
    """
    Binary search: [n] the place in table.ravel() of the first number that is not below each value, in one row of the
    table [m, k], whose rows ascend; the end of the row if there is none. first: [n] int64, where the row of each value
    begins; values: [n].
    """
    flat = table.ravel()
    place = first.copy()
    left = table.shape[1]
    while left > 1:
        half = left // 2
        place += (flat.take(place + (half - 1)) < values) * half
        left -= half
    return place + (flat.take(place) < values)


def ranks_in_rows(scores, places, exists):
    """
    [q, R] float64, ascending: the ranks of the images `places` [q, R] by the scores [q, n] in their rows of a tensor,
    equal scores by index; inf where `exists` [q, R] is False.
    """
    columns = torch.arange(scores.shape[1], device=scores.device)
    before = [torch.empty_like(columns[:0])]
    for place in torch.as_tensor(places, device=scores.device).T[:, :, None]:
        own = scores.gather(1, place)
        before.append(((scores > own) | ((scores == own) & (columns < place))).sum(dim=1))
    before = torch.cat(before).reshape(places.shape[1], len(places)).T.cpu().numpy()
    return np.sort(np.where(exists, before + 1, np.inf), axis=1)


def chunks(rows, width, n_values=1 << 24):
    """Parts of an index array [n], each of one row or as many as have up to `n_values` values (64 MB), `width` each."""
    size = max(1, n_values // max(1, width))
    return [rows[start:start + size] for start in range(0, len(rows), size)]


def in_threads(function, items, description=None, stopped=None):
    """
    Yields function(item) for each item, on as many threads as torch would use, each with a single-threaded BLAS.

    stopped: a threading.Event; once it is set, as after Ctrl-C, the remaining items are skipped. A function that takes
             seconds ends when it is set.
    """
    try:
        from threadpoolctl import threadpool_limits
        limits = threadpool_limits(1, 'blas')
    except ImportError:                                              # slower
        limits = contextlib.nullcontext()
    stopped = stopped or threading.Event()

    def step(item):
        return None if stopped.is_set() else function(item)

    is_hidden = None if description else True                        # None: where the output is no terminal
    bar = tqdm(total=len(items), desc=description, leave=False, disable=is_hidden)
    with limits, bar, ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            for result in stopping.checked(pool.map(step, items)):
                bar.update()
                yield result
        finally:
            stopped.set()                                  # the rest is skipped after Ctrl-C
