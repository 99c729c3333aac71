"""
The formula of every loss, mostly one scalar at a time, with loops over samples: slow, and independent of the losses'
code.

Each takes the embeddings x [B, D], the labels y, a list, the flags, and where it needs them the mined tuples and the
trained parameters w. Mined tuples are a list of triples (a, p, n), or two lists of pairs: positive and negative ones.
"""
import argparse
import itertools
import math

import torch

EXP, LOG = torch.exp, torch.log


def zero(x):
    return x.sum() * 0


def average(terms, x):
    return torch.stack(terms).mean() if terms else zero(x)


def average_active(terms, x):
    return average([term for term in terms if term > 0], x)


def hinge(value):
    return torch.relu(value)


def dot(x, y):
    return x @ y


def squared(x, y):
    difference = x - y
    return dot(difference, difference)


def distance(x, y):
    """With gradient 0 for equal points."""
    value = squared(x, y)
    return value.sqrt() if value > 0 else value * 0


def unit(x):
    return [row / dot(row, row).sqrt() for row in x]


def table(function, rows, columns=None):
    """function(r, c) of every row and column: a list of lists."""
    return [[function(r, c) for c in (rows if columns is None else columns)] for r in rows]


def cosines(x, w=None):
    return table(dot, unit(x), None if w is None else unit(w))


def logistic(value):
    return 1 / (1 + EXP(-value))


def log_sum_exp(terms):
    return LOG(EXP(torch.stack(list(terms))).sum())


def cross_entropy(logits, target):
    return log_sum_exp(logits) - logits[target]


def direction(anchor, positive, negative):
    """cos(n − a, p − a); 0 where a difference vanishes."""
    lengths = distance(negative, anchor) * distance(positive, anchor)
    return dot(negative - anchor, positive - anchor) / lengths if lengths > 0 else lengths * 0


def positives(y, i):
    return [j for j in range(len(y)) if j != i and y[j] == y[i]]


def negatives(y, i):
    return [j for j in range(len(y)) if y[j] != y[i]]


def all_pairs(y):
    n = range(len(y))
    return [(i, j) for i in n for j in positives(y, i)], [(i, j) for i in n for j in negatives(y, i)]


def all_triplets(y):
    return [(a, p, n) for a in range(len(y)) for p in positives(y, a) for n in negatives(y, a)]


def triplets_of(mined):
    if isinstance(mined, list):
        return mined
    return [(a, p, n) for (a, p), (b, n) in itertools.product(*mined) if a == b]


def pairs_of(mined):
    if isinstance(mined, tuple):
        return mined
    return [(a, p) for a, p, _ in mined], [(a, n) for a, _, n in mined]


def mean_norm(x):
    return sum(dot(row, row).sqrt() for row in x) / len(x)


# Losses of tuples

def triplet(x, y, opt, mined):
    power, d = opt.loss_triplet_power, table(distance, x)
    terms = [hinge(d[a][p] ** power - d[a][n] ** power + opt.loss_triplet_margin)
             for a, p, n in triplets_of(mined)]
    return average_active(terms, x) if opt.loss_triplet_active_only else average(terms, x)


def contrastive(x, y, opt, mined, references=None):
    references = x if references is None else references
    mean = average_active if opt.loss_contrastive_active_only else average
    pull, push = pairs_of(mined)
    return (mean([hinge(distance(x[i], references[j]) - opt.loss_contrastive_pos_margin) for i, j in pull], x)
            + mean([hinge(opt.loss_contrastive_neg_margin - distance(x[i], references[j])) for i, j in push], x))


def margin(x, y, opt, mined, w):
    total, count, d = zero(x) + 0 * w.sum(), 0, table(distance, x)
    for a, p, n in triplets_of(mined):
        beta = w[0] if opt.loss_margin_beta_shared else w[y[a]]
        u = hinge(d[a][p] - beta + opt.loss_margin_margin)
        v = hinge(beta - d[a][n] + opt.loss_margin_margin)
        total, count = total + u + v + opt.loss_margin_nu * beta, count + int(u > 0) + int(v > 0)
    return total / count if count else 0 * total


def quadruplet(x, y, opt, mined, fourths):
    d = table(distance, x)
    first = [hinge(d[a][p] - d[a][n] + opt.loss_quadruplet_margin_alpha_1) for a, p, n in mined]
    second = [hinge(d[a][p] - d[n][f] + opt.loss_quadruplet_margin_alpha_2)
              for (a, p, n), f in zip(mined, fourths, strict=True) if f >= 0]
    return average(first, x) + average(second, x)


def variance_ratio(x, y):
    def variance(z):
        return ((z - z.mean()) ** 2).mean()
    return variance(x - y) / variance(x)


def snr(x, y, opt, mined):
    terms = [hinge(variance_ratio(x[a], x[p]) - variance_ratio(x[a], x[n]) + opt.loss_snr_margin) for a, p, n in mined]
    return average_active(terms, x) + opt.loss_snr_reg_lambda * average([row.sum().abs() for row in x], x)


def snr_contrastive(x, y, opt):
    pull, push = all_pairs(y)
    return (average_active([hinge(variance_ratio(x[i], x[j]) - opt.loss_snr_contrastive_pos_margin)
                            for i, j in pull], x)
            + average_active([hinge(opt.loss_snr_contrastive_neg_margin - variance_ratio(x[i], x[j]))
                              for i, j in push], x)
            + opt.loss_snr_contrastive_reg_lambda * average([row.sum().abs() for row in x], x))


def tuple_terms(mined, exponent):
    """log(1 + Σ_n e^exponent(a, p, n)) of each positive pair (a, p)."""
    pull, push = mined
    return [LOG(1 + sum(EXP(exponent(a, p, n)) for b, n in push if a == b)) for a, p in pull
            if any(a == b for b, _ in push)]


def npair_terms(x, mined):
    return tuple_terms(mined, lambda a, p, n: dot(x[a], x[n]) - dot(x[a], x[p]))


def angular_terms(x, mined, alpha):
    t, u = math.tan(math.radians(alpha)) ** 2, unit(x)
    return tuple_terms(mined, lambda a, p, n: 4 * t * dot(u[a] + u[p], u[n]) - 2 * (1 + t) * dot(u[a], u[p]))


def npair(x, y, opt, mined):
    return average(npair_terms(x, mined), x) + opt.loss_npair_l2 * mean_norm(x)


def angular(x, y, opt, mined):
    terms = angular_terms(x, mined, opt.loss_angular_alpha)
    return (average(npair_terms(x, mined), x) + opt.loss_angular_npair_ang_weight * average(terms, x)
            + opt.loss_angular_npair_l2 * mean_norm(x))


# Losses of all pairs

def multisimilarity_mining(s, own, other, epsilon):
    """The kept positives and negatives of an anchor with similarities s."""
    if not own or not other:
        return [], []
    if epsilon >= 2:
        return own, other
    return ([p for p in own if s[p] - epsilon < max(s[n] for n in other)],
            [n for n in other if s[n] + epsilon > min(s[p] for p in own)])


def multisimilarity(x, y, opt, references=None, reference_labels=None, own=None):
    s = cosines(x, references)
    reference_labels, own = y if references is None else reference_labels, own or range(len(y))
    alpha, beta = opt.loss_multisimilarity_pos_weight, opt.loss_multisimilarity_neg_weight
    total = zero(x)
    for i in range(len(y)):
        pull = [j for j, label in enumerate(reference_labels) if j != own[i] and label == y[i]]
        push = [j for j, label in enumerate(reference_labels) if label != y[i]]
        pull, push = multisimilarity_mining(s[i], pull, push, opt.loss_multisimilarity_margin)
        base = opt.loss_multisimilarity_thresh
        total = total + torch.log1p(sum([EXP(-alpha * (s[i][p] - base)) for p in pull], zero(x))) / alpha
        total = total + torch.log1p(sum([EXP(beta * (s[i][n] - base)) for n in push], zero(x))) / beta
    return total / len(y)


def lifted(x, y, opt, mined=None):
    d = table(distance, x)
    terms = [hinge(log_sum_exp([d[i][p] for p in positives(y, i)])
                   + log_sum_exp([opt.loss_lifted_neg_margin - d[i][n] for n in negatives(y, i)]))
             for i in range(len(y)) if positives(y, i) and negatives(y, i)]
    return average(terms, x) + opt.loss_lifted_l2 * mean_norm(x)


def liftedstructure(x, y, opt):
    d, terms = table(distance, x), []
    for i, j in itertools.combinations(range(len(y)), 2):
        if y[i] == y[j] and negatives(y, i):
            push = [opt.loss_liftedstructure_neg_margin - d[k][n] for k in (i, j) for n in negatives(y, k)]
            terms.append(hinge(d[i][j] + log_sum_exp(push)) ** 2 / 2)
    return average(terms, x) + opt.loss_liftedstructure_l2 * mean_norm(x)


def triangle(value, node, width):
    return hinge(1 - (value - node).abs() / width)


def histogram(x, y, opt):
    s, n_nodes = cosines(x), opt.loss_histogram_nbins
    pairs = list(itertools.combinations(range(len(y)), 2))
    same = [s[i][j].clamp(-1, 1) for i, j in pairs if y[i] == y[j]]
    other = [s[i][j].clamp(-1, 1) for i, j in pairs if y[i] != y[j]]
    if not same or not other:
        return zero(x)
    width, total, cumulated = 2 / (n_nodes - 1), zero(x), 0
    for r in range(n_nodes):
        cumulated = cumulated + triangle(torch.stack(same), r * width - 1, width).mean()
        total = total + triangle(torch.stack(other), r * width - 1, width).mean() * cumulated
    return total


def fastap(x, y, opt):
    u, n_bins, terms = unit(x), opt.loss_fastap_nbins, []
    for i in range(len(y)):
        own, width = positives(y, i), 4 / n_bins
        if not own:
            continue
        d_own, d = (torch.stack([squared(u[i], u[j]) for j in some]) for some in (own, [*own, *negatives(y, i)]))
        cumulated, cumulated_own, precision = 0, 0, 0
        for r in range(n_bins + 1):
            share, share_own = (triangle(some, r * width, width).sum() for some in (d, d_own))
            cumulated, cumulated_own = cumulated + share, cumulated_own + share_own
            if cumulated > 0:
                precision = precision + share_own * cumulated_own / cumulated
        terms.append(1 - precision / len(own))
    return average(terms, x)


def ntxent(x, y, opt, references=None, reference_labels=None, own=None):
    s, terms = cosines(x, references), []
    reference_labels, own = y if references is None else reference_labels, own or range(len(y))
    for i in range(len(y)):
        others = [s[i][n] / opt.loss_ntxent_temperature for n, label in enumerate(reference_labels) if label != y[i]]
        for j, label in enumerate(reference_labels):
            if j != own[i] and label == y[i]:
                terms.append(cross_entropy([s[i][j] / opt.loss_ntxent_temperature, *others], 0))
    return average(terms, x)


def contextual(x, y, opt):
    flags = {name: getattr(opt, f'loss_contextual_{name}') for name in (
        'k', 'eps', 'context_weight', 'contrastive_weight', 'reg_weight', 'pos_margin', 'neg_margin', 'reg_similarity')}
    n, s, k = len(y), cosines(x), flags['k']
    d = [[2 - 2 * s[i][j] if i != j else zero(x) for j in range(n)] for i in range(n)]

    def step(value):
        return (value >= 0) + 10 * (value - value.detach())

    def neighbours(i, k):
        limit = sorted(value.item() for value in d[i])[min(k, n) - 1] + flags['eps']
        return torch.stack([step(limit - value) for value in d[i]])

    near, nearest = ([neighbours(i, size) for i in range(n)] for size in (k, k // 2))
    c = [[near[i][j] / 2 * (dot(near[i], near[j]) / near[i].sum().detach()
                            + dot(1 - near[i], 1 - near[j]) / max((1 - near[i]).sum().detach(), 1))
          for j in range(n)] for i in range(n)]
    mutual = [[nearest[i][j] * nearest[j][i] for j in range(n)] for i in range(n)]
    half = [[sum(mutual[i][m] * c[m][j] for m in range(n)) / sum(mutual[i]) for j in range(n)] for i in range(n)]
    pull, push = all_pairs(y)
    joint = {(i, j): (half[i][j] + half[j][i]) / 2 for i, j in pull + push}
    context = sum([(1 - joint[pair]) ** 2 for pair in pull] + [joint[pair] ** 2 for pair in push], zero(x)) / n ** 2
    contrastive = (average_active([hinge(flags['pos_margin'] - s[i][j]) for i, j in pull], x)
                   + average_active([hinge(s[i][j] - flags['neg_margin']) for i, j in push], x))
    regulariser = (average([value for row in s for value in row], x) - flags['reg_similarity']) ** 2
    return (flags['context_weight'] * context + flags['contrastive_weight'] * contrastive
            + flags['reg_weight'] * regulariser)


def dcl(x, y, opt):
    s, pairs = cosines(x), all_pairs(y)[0]
    if len(set(y)) < 2 or not pairs:
        return zero(x)
    tau, sigma, terms = opt.loss_dcl_temperature, opt.loss_dcl_sigma, []
    total = sum(EXP(s[i][p] / sigma) for i, p in pairs)
    for i in range(len(y)):
        own = positives(y, i)
        w = [2 - len(pairs) * EXP(s[i][p] / sigma) / total if opt.loss_dcl_weighted else 1 for p in own]
        if own:
            terms.append(log_sum_exp([s[i][n] / tau for n in negatives(y, i)])
                         - sum(weight * s[i][p] for weight, p in zip(w, own, strict=True)) / tau / len(own))
    return average(terms, x)


def supcon(x, y, opt, references=None, reference_labels=None, own=None):
    s, terms = cosines(x, references), []
    reference_labels, own = y if references is None else reference_labels, own or range(len(y))
    for i in range(len(y)):
        logits = {k: s[i][k] / opt.loss_supcon_temperature for k in range(len(reference_labels)) if k != own[i]}
        same = [value for k, value in logits.items() if reference_labels[k] == y[i]]
        if same:
            terms.append(average([log_sum_exp(logits.values()) - value for value in same], x))
    return average(terms, x)


def circle(x, y, opt, references=None, reference_labels=None, own=None):
    s, terms, m = cosines(x, references), [], opt.loss_circle_margin
    reference_labels, own = y if references is None else reference_labels, own or range(len(y))
    for i in range(len(y)):
        pull = [-opt.loss_circle_gamma * hinge(1 + m - s[i][j]).detach() * (s[i][j] - 1 + m)
                for j, label in enumerate(reference_labels) if j != own[i] and label == y[i]]
        push = [opt.loss_circle_gamma * hinge(s[i][j] + m).detach() * (s[i][j] - m)
                for j, label in enumerate(reference_labels) if label != y[i]]
        if pull and push:
            terms.append(cross_entropy([zero(x), log_sum_exp(push) + log_sum_exp(pull)], 0))
    return average(terms, x)


def smoothap(x, y, opt):
    s, terms, tau = cosines(x), [], opt.loss_smoothap_temperature
    for q in range(len(y)):
        if positives(y, q):
            own, precisions = [q, *positives(y, q)], []
            for j in own:
                own_rank, rank = (1 + logistic((torch.stack([s[q][k] for k in some if k != j]) - s[q][j]) / tau).sum()
                                  for some in (own, range(len(y))))
                precisions.append(own_rank / rank)
            terms.append(1 - average(precisions, x))
    return average(terms, x)


def recallatk(x, y, opt, shares=None):
    """shares: of the first of each pair of a class in its virtual sample, in the order of the pairs; None: no SiMix."""
    points = unit(x)
    if shares is not None:
        pairs = [(i, j) for i, j in itertools.combinations(range(len(y)), 2) if y[i] == y[j]]
        points = points + [share * points[i] + (1 - share) * points[j]
                           for share, (i, j) in zip(shares, pairs, strict=True)]
        y = y + [y[i] for i, _ in pairs]
    s, terms = table(dot, points), []
    for q in range(len(y)):
        own = positives(y, q)
        if not own:
            continue
        ranks, recalls = [], []
        for p in own:
            others = torch.stack([s[q][z] for z in range(len(y)) if z not in (p, q)])
            ranks.append(1 + logistic((others - s[q][p]) / opt.loss_recallatk_rank_temperature).sum())
        for k in opt.loss_recallatk_k:
            k = min(k, len(y))
            found = logistic((k - torch.stack(ranks)) / opt.loss_recallatk_k_temperature).sum()
            recalls.append((found if found < k else zero(x) + k) / min(k, len(own)))
        terms.append(1 - average(recalls, x))
    return average(terms, x)


def smooth_step(opt, prefix):
    """The step function of SupAP and HAPPIER."""
    tau, rho, delta, offset = (getattr(opt, f'{prefix}_{name}') for name in ('tau', 'rho', 'delta', 'offset'))
    offset = 1 / (1 + math.exp(-delta / tau)) + .5 if offset < 0 else offset

    def step(t):
        return rho * (t - delta) + offset if t > delta else logistic(t / tau) + (.5 if t > 0 else 0)
    return step


def supap(x, y, opt):
    s, terms, step = cosines(x), [], smooth_step(opt, 'loss_roadmap')
    for q in range(len(y)):
        if positives(y, q):
            own, precisions = [q, *positives(y, q)], []
            for j in own:
                rank = 1 + sum(int(s[q][k] >= s[q][j]) for k in own if k != j)
                precisions.append(rank / (rank + sum(step(s[q][n] - s[q][j]) for n in negatives(y, q))))
            terms.append(zero(x) + 1 - sum(precisions) / len(own))
    return average(terms, x)


def calibration(x, y, opt):
    s, (pull, push) = cosines(x), all_pairs(y)
    return (average_active([hinge(opt.loss_roadmap_pos_margin - s[i][j]) for i, j in pull], x)
            + average_active([hinge(s[i][j] - opt.loss_roadmap_neg_margin) for i, j in push], x))


def roadmap(x, y, opt):
    weight = opt.loss_roadmap_lambda
    return (1 - weight) * supap(x, y, opt) + weight * calibration(x, y, opt)


def to_ball(point, c, clip_r):
    norm = dot(point, point).sqrt()
    if clip_r and norm > clip_r:
        point, norm = point * (clip_r / norm), zero(point) + clip_r
    return torch.tanh(c ** .5 * norm) * point / (c ** .5 * norm)


def ball_distance(z, w, c):
    """(2/√c) artanh(√c ‖−z ⊕ w‖), by the Möbius addition."""
    x = -z
    total = ((1 + 2 * c * dot(x, w) + c * dot(w, w)) * x + (1 - c * dot(x, x)) * w) / (
        1 + 2 * c * dot(x, w) + c ** 2 * dot(x, x) * dot(w, w))
    return 2 / c ** .5 * torch.atanh(c ** .5 * distance(total, 0 * total))


def hyperbolic(x, y, opt):
    c, tau = opt.loss_hyperbolic_c, opt.loss_hyperbolic_temperature
    if c:
        points = [to_ball(row, c, opt.loss_hyperbolic_clip_r) for row in x]
        logits = table(lambda z, w: -ball_distance(z, w, c) / tau, points)
    else:
        logits = [[s / tau for s in row] for row in cosines(x)]
    samples = [[i for i in range(len(y)) if y[i] == label] for label in sorted(set(y))]
    terms = []
    for a, b in itertools.permutations(range(max(map(len, samples))), 2):
        both = [own for own in samples if len(own) > max(a, b)]
        terms.append(average([cross_entropy(
            [logits[own[a]][own[b]], *(logits[own[a]][other[slot]] for other in both if other is not own
                                       for slot in (a, b))], 0) for own in both], x))
    return average(terms, x)


def tcm(x, y, opt):
    s, (pull, push) = cosines(x), all_pairs(y)
    far = [opt.loss_tcm_margin_pos - s[i][j] for i, j in pull if s[i][j] <= opt.loss_tcm_margin_pos]
    near = [s[i][j] - opt.loss_tcm_margin_neg for i, j in push if s[i][j] >= opt.loss_tcm_margin_neg]
    return opt.loss_tcm_weight_pos * average(far, x) + opt.loss_tcm_weight_neg * average(near, x)


def hier(x, y, opt, drawn, w):
    """drawn: of the samples and of the proxies, the triplets and two lists of the Gumbel noise of each proxy."""
    c, tau, m, points = opt.loss_hier_c, opt.loss_hier_temperature, opt.loss_hier_margin, []
    for row in [*x, *w]:
        point = to_ball(row, c, opt.loss_hier_clip_r)
        factor = ((1 - c * dot(point, point)) ** 2 / 4).detach()                     # of the Riemannian gradient
        points.append(factor * point + ((1 - factor) * point).detach())
    samples, proxies = points[:len(y)], points[len(y):]

    def safe(z, w):
        return ball_distance(z, w, c) if squared(z, w) > 0 else zero(z)

    def larger(a, b):
        return (a + b) / 2 if a == b else max(a, b)                # of equals, each has half of the gradient

    def ancestor(d, noise):
        """The one of the largest logit, and the weights of all: 1 or 0 with the gradient of the softmax."""
        logits = [g - value / tau for g, value in zip(noise, d, strict=True)]
        chosen = max(range(len(d)), key=lambda p: logits[p])
        soft = [EXP(value - log_sum_exp(logits)) for value in logits]
        return chosen, [(p == chosen) + value - value.detach() for p, value in enumerate(soft)]

    def weighted(d, weights):
        return sum(value * weight for value, weight in zip(d, weights, strict=True))

    total = zero(x)
    for part, (triplets, pair_noise, triple_noise) in zip((samples, proxies), drawn, strict=True):
        d, terms = table(safe, part, proxies), []
        for (i, j, k), pair, triple in zip(triplets, pair_noise, triple_noise, strict=True):
            both = [larger(a, b) for a, b in zip(d[i], d[j], strict=True)]
            one, of_pair = ancestor(both, pair)
            other, of_triple = ancestor([larger(a, b) for a, b in zip(both, d[k], strict=True)], triple)
            terms.append(zero(x) if one == other else hinge(weighted(d[i], of_pair) - weighted(d[i], of_triple) + m)
                         + hinge(weighted(d[j], of_pair) - weighted(d[j], of_triple) + m)
                         + hinge(weighted(d[k], of_triple) - weighted(d[k], of_pair) + m))
        total = total + average(terms, x)
    return total


# Losses of class weights

def oproxy(x, y, opt, w):
    s, terms, prefix = cosines(x, w), [], 'loss_oproxy_'
    pos_alpha, neg_alpha, pos_delta, neg_delta = (
        getattr(opt, prefix + name) for name in ('pos_alpha', 'neg_alpha', 'pos_delta', 'neg_delta'))
    if getattr(opt, f'{prefix}mode') == 'nca' and opt.loss == 'oproxy':
        for i in range(len(y)):
            pull = torch.log1p(y.count(y[i]) * EXP(-pos_alpha * (s[i][y[i]] - pos_delta)))
            push = [EXP(neg_alpha * (s[i][c] - neg_delta)) for c in range(len(w)) if c != y[i]]
            terms.append(pull + torch.log1p(sum(push, zero(x))))
        return average(terms, x)
    for j in range(len(y)):
        terms.append(torch.log1p(sum(EXP(-pos_alpha * (s[i][y[j]] - pos_delta)) for i in range(len(y))
                                     if y[i] == y[j])))
    push = [torch.log1p(sum([EXP(neg_alpha * (s[i][c] - neg_delta)) for i in range(len(y)) if y[i] != c], zero(x)))
            for c in range(len(w))]
    return average(terms, x) + average(push, x)


def nir(x, y, opt, drawn, w, *layers):
    """drawn: the permutations of the blocks, and the noise. layers: the weights and biases of the flow's MLPs."""
    mode, depth, n_blocks = opt.loss_nir_nf_cond_mode, opt.loss_nir_nf_fc_depth, opt.loss_nir_nf_cblocks
    layers, (orders, noise) = iter(layers), drawn

    nets = [(mlp_of(layers, depth), mlp_of(layers, depth)) for _ in range(n_blocks)]
    n_embedders = {'dense': 0, 'dense_embed': 1}.get(mode, n_blocks * ('dense' in mode))
    embedders = [mlp_of(layers, 2) for _ in range(n_embedders)]
    only = {'start': 0, 'mid': n_blocks // 2, 'end': n_blocks - 1}.get(mode)
    terms = []
    for i, row in enumerate(x):
        proxy, total, stacked = unit(w)[y[i]], zero(x), unit(w)[y[i]]
        if opt.loss_nir_noise:
            row = unit([row + opt.loss_nir_noise * noise[i]])[0]
        for k, (second, first) in enumerate(nets):
            given = proxy
            if mode == 'dense_embed':
                given = embedders[0](proxy)
            elif mode == 'dense_embed_multi':
                given = embedders[k](proxy)
            elif mode == 'dense_embed_multi_stacked':
                given = stacked = embedders[k](stacked)
            condition = [given] if only in (None, k) else []
            row = torch.stack([row[place] for place in orders[k]])
            half = round(len(row) / 2)
            a, b = row[:half], row[half:]
            for net in (second, first):                              # the second time with the halves swapped
                out = net(torch.cat([b, *condition]))
                s = .636 * opt.loss_nir_nf_clamp_alpha * torch.atan(out[:len(a)])
                a, b, total = b, EXP(s) * a + out[len(a):], total + s.sum()
            row = torch.cat([a, b])
        n = dot(row, row) / 2 - total
        terms.append(EXP(n) if n <= 20 else math.exp(20) * (n - 19))
    return average(terms, x) + opt.loss_nir_w_align * oproxy(x, y, opt, w)


def mlp_of(layers, depth):
    """A function of a row, with the next weights and biases of an iterator."""
    own = [next(layers) for _ in range(2 * depth)]

    def apply(row):
        for place in range(depth):
            weight, bias = own[2 * place:2 * place + 2]
            row = torch.stack([dot(line, row) + b for line, b in zip(weight, bias, strict=True)])
            row = row if place == depth - 1 else hinge(row)
        return row
    return apply


def s2sd(x, y, opt, *parameters):
    """The features are the embeddings; with pool_aggr those of cases.maps_of."""
    parameters, features, tau, s = iter(parameters), list(x), opt.loss_s2sd_T, cosines(x)
    if opt.loss_s2sd_pool_aggr:
        values = 1, .5, -1, 2
        features = [row * sum(values) / 4 + torch.where(row > 0, row * max(values), row * min(values)) for row in x]
    heads = [mlp_of(parameters, 2) for _ in opt.loss_s2sd_target_dims]
    n_own = {'multisimilarity': 0, 'softmax': 1}

    def loss(name, rows):
        return globals()[name](torch.stack(rows), y, opt, *(next(parameters) for _ in range(n_own[name])))

    def divergence(targets):
        terms = []
        for row, wanted in zip(s, targets, strict=True):
            logs, others = ([value / tau - log_sum_exp([other / tau for other in values]) for value in values]
                            for values in (row, [value.detach() for value in wanted]))
            terms.append(sum(EXP(q) * (q - p) for p, q in zip(logs, others, strict=True)))
        return tau ** 2 * average(terms, x)

    source, losses, divergences = loss(opt.loss_s2sd_source, unit(x)), [], []
    for head in heads:
        larger = unit([head(row) for row in features])
        losses.append(loss(opt.loss_s2sd_target, larger))
        divergences.append(divergence(cosines(larger)))
    total = (source + average(losses, x)) / 2 + opt.loss_s2sd_w * average(divergences, x)
    if opt.loss_s2sd_feat_distill and not opt.loss_s2sd_feat_distill_delay:
        total = total + opt.loss_s2sd_feat_w * divergence(cosines(features))
    return total


def pfml(x, y, opt, w):
    points = unit(x) + [proxy for proxies in w for proxy in unit(proxies)]
    labels = y + [c for c, proxies in enumerate(w) for _ in proxies]
    alpha, delta = opt.loss_pfml_alpha, opt.loss_pfml_delta
    pairs = list(itertools.permutations(range(len(points)), 2))
    i, j = torch.tensor(pairs).T
    square = ((torch.stack(points)[i] - torch.stack(points)[j]) ** 2).sum(dim=1)
    d = torch.where(square > 1e-6, square, 1e-6).sqrt()
    same = torch.tensor([labels[i] == labels[j] for i, j in pairs])
    pull, push = torch.where(d > delta, d, delta) ** -alpha, torch.where(d < delta, d, delta) ** -alpha
    return torch.where(same, -pull, push).sum()


def happier(x, y, opt, w):
    s, terms, step = cosines(x), [], smooth_step(opt, 'loss_happier')
    labels = [[label, *torch.as_tensor(opt.superclasses)[label].tolist()] for label in y]
    for q in range(len(y)):
        level = [sum(a == b for a, b in zip(labels[q], other, strict=True)) for other in labels]
        if sum(value > 0 for value in level) == 1:
            continue
        relevance = [(value / len(labels[q])) ** opt.loss_happier_alpha / level.count(value) if value else 0
                     for value in level]
        total = zero(x)
        for j in [j for j in range(len(y)) if level[j]]:
            hrank = sum(min(relevance[j], relevance[k]) for k in range(len(y)) if k == j or s[q][k] >= s[q][j])
            rank = 1 + sum(int(s[q][k] >= s[q][j]) for k in range(len(y)) if k != j and level[k] >= level[j])
            total = total + hrank / (rank + sum(step(s[q][k] - s[q][j]) for k in range(len(y)) if level[k] < level[j]))
        terms.append(1 - total / sum(relevance))
    clustering = average([cross_entropy([value / opt.loss_happier_temperature for value in row], own)
                          for row, own in zip(cosines(x, w), y, strict=True)], x)
    return (1 - opt.loss_happier_lambda) * average(terms, x) + opt.loss_happier_lambda * clustering


def softmax(x, y, opt, w):
    return average([cross_entropy([s / opt.loss_softmax_temperature for s in row], own)
                    for row, own in zip(cosines(x, w), y, strict=True)], x)


def center(x, y, opt, centers):
    return average([sum((a - b) ** 2 for a, b in zip(row, centers[own], strict=True)) / 2
                    for row, own in zip(x, y, strict=True)], x)


def linear_classifier(x, y, opt, w, b):
    return average([cross_entropy([dot(row, weight) + bias for weight, bias in zip(w, b, strict=True)], own)
                    for row, own in zip(x, y, strict=True)], x)


def margin_cosine(s, m):
    """cos(θ + m), continued beyond π."""
    return torch.cos(torch.acos(s) + m) if torch.acos(s) + m <= math.pi else s - m * math.sin(m)


def margin_softmax(rows, y, scale, own_cosine):
    terms = []
    for row, own in zip(rows, y, strict=True):
        logits = [scale * (own_cosine(s) if c == own else s) for c, s in enumerate(row)]
        terms.append(cross_entropy(logits, own))
    return average(terms, rows[0][0])


def arcface(x, y, opt, w):
    return margin_softmax(cosines(x, w), y, opt.loss_arcface_feature_scale,
                          lambda s: margin_cosine(s, opt.loss_arcface_angular_margin))


def cosface(x, y, opt, w):
    return margin_softmax(cosines(x, w), y, opt.loss_cosface_scale, lambda s: s - opt.loss_cosface_margin)


def subcenter_arcface(x, y, opt, w):
    rows = [[max(dot(row, centre) for centre in unit(centres)) for centres in w] for row in unit(x)]
    return margin_softmax(rows, y, opt.loss_subcenter_arcface_feature_scale,
                          lambda s: margin_cosine(s, opt.loss_subcenter_arcface_angular_margin))


def dynamic_arcface(x, y, opt, w):
    t, lo, hi = ([n ** -opt.loss_dynamic_arcface_power for n in opt.class_counts], opt.loss_dynamic_arcface_margin_low,
                 opt.loss_dynamic_arcface_margin_high)
    margins = [lo + (hi - lo) * (value - min(t)) / (max(t) - min(t)) for value in t]
    terms = []
    for row, own in zip(unit(x), y, strict=True):
        s = [max(dot(row, centre) for centre in unit(centres)) for centres in w]
        terms.append(margin_softmax([s], [own], opt.loss_dynamic_arcface_feature_scale,
                                    lambda s, m=margins[own]: margin_cosine(s, m)))
    return average(terms, x)


def ldam(x, y, opt, w):
    counts, beta, total, weights = opt.class_counts, opt.loss_ldam_weights_beta, zero(x), 0
    for row, own in zip(cosines(x, w), y, strict=True):
        m = opt.loss_ldam_max_margin * (counts[own] / min(counts)) ** -.25
        weight = 1 / counts[own] if beta == 1 else (1 - beta) / (1 - beta ** counts[own])
        total = total + weight * margin_softmax([row], [own], opt.loss_ldam_scale, lambda s, m=m: s - m)
        weights += weight
    return total / weights


def mfcont(x, y, opt, w):
    terms, n_classes, between = [], len(w), cosines(w)
    for row, own in zip(cosines(x, w), y, strict=True):
        push = [hinge(opt.loss_mfcont_neg_margin - (1 - s)) for c, s in enumerate(row) if c != own]
        terms.append(hinge(1 - row[own] - opt.loss_mfcont_pos_margin) + sum(push))
    apart = [hinge(opt.loss_mfcont_neg_margin - (1 - between[c][other])) ** 2
             for c, other in itertools.permutations(range(n_classes), 2)]
    return average(terms, x) + opt.loss_mfcont_reg_weight * sum(apart, zero(x)) / n_classes


def mfcwms(x, y, opt, w):
    s, between, classes, total = cosines(x, w), cosines(w), range(len(w)), zero(x)
    alpha, beta, b = opt.loss_mfcwms_alpha, opt.loss_mfcwms_beta, opt.loss_mfcwms_margin

    def mean(c, function):
        return average([function(i) for i in range(len(y)) if y[i] == c], x)
    for c in classes:
        total = total + torch.log1p(mean(c, lambda i, c=c: EXP(-alpha * (s[i][c] - b)))) / alpha / len(set(y))
        for other in classes:
            if other != c:
                n = (mean(c, lambda i, other=other: EXP(beta * (s[i][other] - b)))
                     + mean(other, lambda i, c=c: EXP(beta * (s[i][c] - b))))
                apart = torch.log1p(EXP(beta * (between[c][other] - b))) / beta
                total = (total + torch.log1p(n) / (2 * beta) / len(set(y))
                         + opt.loss_mfcwms_reg_weight * apart ** 2 / len(w))
    return total


def antico(x, y, opt, w):
    names = ('pos_alpha', 'neg_alpha', 'pos_delta', 'neg_delta')
    own = argparse.Namespace(loss='antico', loss_oproxy_mode='anchor', **{
        f'loss_oproxy_{name}': getattr(opt, f'loss_antico_{name}') for name in names})
    dim, kind = len(x[0]), opt.loss_antico_type
    classes = sorted(set(y)) if kind == 'batch_proxy' else range(len(w))
    points = list(x) if kind == 'pair' else [unit(w)[c] for c in classes]
    scale = dim / len(points)
    if kind != 'pair' and opt.loss_antico_rate_scale == 'code':
        scale = 1 / scale
    matrix = [[(i == j) + opt.loss_antico_gam1 / opt.loss_antico_eps * scale * sum(z[i] * z[j] for z in points)
               for j in range(dim)] for i in range(dim)]
    rate = opt.loss_antico_gam2 * LOG(torch.det(torch.stack([torch.stack(row) for row in matrix]))) / 2
    term = EXP(-rate) if opt.loss_antico_rate_term == 'exp' else -rate
    return opt.loss_antico_w_align * oproxy(x, y, own, w) + opt.loss_antico_w * term


def softtriplet(x, y, opt, w):
    terms = []
    for row, own in zip(unit(x), y, strict=True):
        logits = []
        for c, centres in enumerate(w):
            s = [dot(row, centre) for centre in unit(centres)]
            total = sum(EXP(value / opt.loss_softtriplet_gamma) for value in s)
            similarity = sum(EXP(value / opt.loss_softtriplet_gamma) / total * value for value in s)
            logits.append(opt.loss_softtriplet_lambda * (similarity - opt.loss_softtriplet_margin_delta * (c == own)))
        terms.append(cross_entropy(logits, own))
    n_centres = len(w[0])
    apart = [(2 + 1e-5 - 2 * dot(*pair)).sqrt() for centres in w for pair in itertools.combinations(unit(centres), 2)]
    regulariser = sum(apart) / (len(w) * n_centres * (n_centres - 1)) if n_centres > 1 else 0
    return average(terms, x) + opt.loss_softtriplet_reg_weight * regulariser


def proxy_distances(x, w, scale):
    return table(squared, [scale * row for row in unit(x)], [scale * row for row in unit(w)])


def proxynca(x, y, opt, w):
    if len(w) == 1:
        return zero(x)
    return average([row[own] + log_sum_exp([-d for c, d in enumerate(row) if c != own])
                    for row, own in zip(proxy_distances(x, w, opt.loss_proxynca_scale), y, strict=True)], x)


def proxynca_pp(x, y, opt, w):
    return average([cross_entropy([-d for d in row], own)
                    for row, own in zip(proxy_distances(x, w, opt.loss_proxynca_pp_scale), y, strict=True)], x)


def proxyanchor(x, y, opt, w):
    s, m, alpha = cosines(x, w), opt.loss_proxyanchor_margin, opt.loss_proxyanchor_alpha
    pull, push = [], []
    for c in range(len(w)):
        own = [EXP(-alpha * (s[i][c] - m)) for i in range(len(y)) if y[i] == c]
        other = [EXP(alpha * (s[i][c] + m)) for i in range(len(y)) if y[i] != c]
        pull += [torch.log1p(sum(own))] if own else []
        push += [torch.log1p(sum(other, zero(x)))]
    return average(pull, x) + average(push, x)


# Direction regularisation

def dr_triplet(x, y, opt, mined):
    return average([hinge(distance(x[a], x[p]) - distance(x[a], x[n]) + opt.loss_dr_triplet_margin
                          - opt.loss_dr_triplet_gamma * direction(x[a], x[p], x[n])) for a, p, n in mined], x)


def dr_proxynca(x, y, opt, w):
    if len(w) == 1:
        return zero(x)
    scale, measure = opt.loss_dr_proxynca_scale, distance
    if scale:
        x, w, measure = [scale * row for row in unit(x)], [scale * row for row in unit(w)], squared
    terms = []
    for row, own in zip(x, y, strict=True):
        others = [-measure(row, proxy) - opt.loss_dr_proxynca_gamma * direction(row, w[own], proxy)
                  for c, proxy in enumerate(w) if c != own]
        terms.append(measure(row, w[own]) + log_sum_exp(others))
    return average(terms, x)


def dr_multisimilarity(x, y, opt):
    s, u, total = cosines(x), unit(x), zero(x)
    alpha, beta = opt.loss_dr_multisimilarity_pos_weight, opt.loss_dr_multisimilarity_neg_weight
    for i in range(len(y)):
        pull, push = multisimilarity_mining(s[i], positives(y, i), negatives(y, i), opt.loss_dr_multisimilarity_margin)
        base = opt.loss_dr_multisimilarity_thresh
        total = total + torch.log1p(sum([EXP(-alpha * (s[i][p] - base)) for p in pull], zero(x))) / alpha
        if push:
            hardest = min(positives(y, i), key=lambda p: s[i][p])
            total = total + torch.log1p(sum(EXP(beta * (
                s[i][n] - base - opt.loss_dr_multisimilarity_gamma * direction(u[i], u[hardest], u[n])))
                for n in push)) / beta
    return total / len(y)
