"""
Time and memory, forward and backward, of losses since 2021 for small and large numbers of training classes: batches of
56 classes with 2 images.

OMP_NUM_THREADS=1 python -m benchmarks.recent_losses [--losses NAME ...] [--classes C ...] [--dim D]
"""
import argparse

import torch

import batch_mining
import criteria
import parameters
from benchmarks.losses import random_batch
from benchmarks.measure import median_times, peak_memory, table

LOSSES = ('multisimilarity', 'proxyanchor', 'multisimilarity+tcm', 'proxyanchor+tcm', 'multisimilarity+hier',
          'proxyanchor+hier', 's2sd', 's2sd of proxyanchor', 'oproxy', 'nir', 'happier', 'pfml', 'pfml of 2 proxies')
N_FEATURES = 2048
MOST = {'pfml': 300, 'pfml of 2 proxies': 3000}          # classes; the time grows with the square of their number
FLAGS = {'of proxyanchor': {'loss_s2sd_source': 'proxyanchor', 'loss_s2sd_target': 'proxyanchor'},
         'of 2 proxies': {'loss_pfml_n_proxies': 2}}


def step(name, n_classes, dim):
    """A function that computes the loss and its gradient."""
    name, _, variant = name.partition(' ')
    opt = parameters.build().parse_args([])
    superclasses = (torch.arange(n_classes) % 12)[:, None]
    vars(opt).update(FLAGS.get(variant, {}), loss=name, batch_mining='none', n_classes=n_classes, embed_dim=dim,
                     superclasses=superclasses, n_features=N_FEATURES, n_maps=N_FEATURES, device=torch.device('cpu'))
    torch.manual_seed(0)
    batch, labels = random_batch(112, 2, dim)
    features = torch.rand(len(batch), N_FEATURES).requires_grad_()
    criterion = criteria.select(opt, batch_mining.select(opt))
    trained = [batch, features, *criterion.parameters()]
    return lambda: torch.autograd.grad(criterion(batch=batch, labels=labels, batch_features=features), trained,
                                       allow_unused=True)


def main():
    parser = argparse.ArgumentParser(prog='benchmarks.recent_losses', description=__doc__)
    parser.add_argument('--losses', nargs='+', choices=LOSSES, default=LOSSES)
    parser.add_argument('--classes', nargs='+', type=int, default=[100, 11318], help='numbers of training classes')
    parser.add_argument('--dim', type=int, default=512, help='dimension of the embeddings')
    options = parser.parse_args()
    if min(options.classes) < 56:
        parser.error(f'--classes {min(options.classes)}: the batch has 56 classes')
    torch.set_num_threads(1)
    rows = []
    for name in options.losses:
        cells = []
        for n_classes in options.classes:
            if n_classes > MOST.get(name, n_classes):
                cells += ['-', '-']
                continue
            function = step(name, n_classes, options.dim)
            seconds = median_times({name: function}, repeats=9, budget=5)[name]
            cells += [f'{seconds * 1e3:,.1f}', f'{peak_memory(function) / 1e6:,.1f}']
        rows.append([name, *cells])
        print(*rows[-1], flush=True)
    heads = [head for n_classes in options.classes for head in (f'ms, {n_classes:,}', f'MB, {n_classes:,}')]
    print(table(['loss', *heads], rows))


if __name__ == '__main__':
    main()
