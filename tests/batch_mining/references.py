"""
The rules of the miners of triplets, one pair at a time: what each may sample for every anchor, with its probability.

A reference takes (batch, labels, parameters of the miner) and gives {anchor: {(positive, negative): probability}}.
"""
import math


def squared_distances(batch):
    rows = batch.tolist()
    return [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]


def anchors(labels):
    """(anchor, its positives, its negatives), for each that has both."""
    labels = labels.tolist()
    for a in range(len(labels)):
        positives = [j for j in range(len(labels)) if labels[j] == labels[a] and j != a]
        negatives = [j for j in range(len(labels)) if labels[j] != labels[a]]
        if positives and negatives:
            yield a, positives, negatives


def independent(positives, negatives):
    """Two distributions {index: probability} -> that of the pair."""
    return {(p, n): u * v for p, u in positives.items() for n, v in negatives.items() if u * v}


def uniform(indices):
    return {i: 1 / len(indices) for i in indices}


def weighted(weights):
    total = sum(weights.values())
    return {i: w / total for i, w in weights.items()}


def hard(batch, labels):
    d = squared_distances(batch)
    return {a: {(max(pos, key=d[a].__getitem__), min(neg, key=d[a].__getitem__)): 1} for a, pos, neg in anchors(labels)}


def easyhard(batch, labels, pos='easy', neg='semihard'):
    d, found = squared_distances(batch), {}
    for a, positives, negatives in anchors(labels):
        p = (min if pos == 'easy' else max)(positives, key=d[a].__getitem__)
        allowed = negatives if neg == 'hard' else [n for n in negatives if d[a][n] > d[a][p]]
        if allowed:
            found[a] = {(p, min(allowed, key=d[a].__getitem__)): 1}
    return found


def semihard(batch, labels, margin=.2, power=2):
    d, found = [[squared ** (power / 2) for squared in row] for row in squared_distances(batch)], {}
    for a, positives, negatives in anchors(labels):
        found[a] = {}
        for p in positives:
            window = [n for n in negatives if d[a][p] < d[a][n] < d[a][p] + margin]
            found[a] |= independent({p: 1 / len(positives)}, uniform(window or negatives))
    return found


def softhard(batch, labels):
    d, found = squared_distances(batch), {}
    for a, positives, negatives in anchors(labels):
        near = [n for n in negatives if d[a][n] < max(d[a][p] for p in positives)]
        far = [p for p in positives if d[a][p] > min(d[a][n] for n in negatives)]
        found[a] = independent(uniform(far or positives), uniform(near or negatives))
    return found


def inverse_density(distance, dim, lower_cutoff=.5):
    d = min(max(distance, lower_cutoff), 2 - 1e-3)
    return (2 - dim) * math.log(d) - (dim - 3) / 2 * math.log(1 - d * d / 4)


def distance(batch, labels, lower_cutoff=.5):
    d, found = squared_distances(batch), {}
    for a, positives, negatives in anchors(labels):
        logs = {n: inverse_density(math.sqrt(d[a][n]), batch.shape[1], lower_cutoff) for n in negatives}
        largest = max(logs.values())
        found[a] = independent(uniform(positives), weighted({n: math.exp(v - largest) for n, v in logs.items()}))
    return found


def distance_of_pairs(batch, labels, lower_cutoff=.5):
    """{(anchor, positive): {negative: probability}}"""
    found = {}
    for a, chances in distance(batch, labels, lower_cutoff).items():
        for (p, n), chance in chances.items():
            pair = found.setdefault((a, p), {})
            pair[n] = chance
    return {pair: {n: chance / sum(chances.values()) for n, chance in chances.items()}
            for pair, chances in found.items()}


def rho_distance(batch, labels, lower_cutoff=.5, cp=.2):
    found = distance(batch, labels, lower_cutoff)
    for a, positives, _ in anchors(labels):
        found[a] = ({pair: (1 - cp) * chance for pair, chance in found[a].items() if cp < 1}
                    | {(a, p): cp / len(positives) for p in positives if cp > 0})
    return found


def parametric(batch, labels, weights, support_lim=(.1, 1.4), among_all=False):
    d, found = squared_distances(batch), {}
    low, high = support_lim
    edges = [low + (high - low) * k / len(weights) for k in range(1, len(weights))]
    for a, positives, negatives in anchors(labels):
        if among_all:
            positives, negatives = [a, *positives], range(len(labels))
        weight_of = {n: float(weights[sum(math.sqrt(d[a][n]) > edge for edge in edges)]) for n in negatives}
        found[a] = independent(uniform(positives), weighted(weight_of))
    return found
