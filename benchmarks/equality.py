"""
Value and gradients of each loss in the first step of a run, and those of pytorch-metric-learning's same loss, from the
same embeddings, labels, tuples, proxies and class weights.

python -m benchmarks.equality [--losses NAME ...] [--size 112]
"""
import argparse
from importlib.metadata import version

import torch

from batch_mining.random_triplets import random_triplets
from benchmarks.losses import CASES, SIZES, our_loss, random_batch, their_loss
from utilities.machine import processor
from utilities.text_tables import markdown

# counterparts that compute another loss, with the difference
OTHERS = {'npair': 'the library takes the pairs alone', 'npair, pairs': 'our miner takes a random pair of each class',
          'angular': 'the library computes the angular term alone', 'dr_triplet, given': 'no direction regularisation',
          'smoothap': 'the library swaps two numbers'}
SAME = [name for name, case in CASES.items() if case.counterpart and name not in OTHERS]
TOLERANCE = 1e-6
COLUMNS = 'W', 'fc'                                       # the library's matrices [D, C], whose columns are the classes
HEADS = ('loss', 'value', 'difference of the values', 'of the gradients', f'at most {TOLERANCE:g}')


def with_our_weights(loss, ours):
    """The library's `loss` with the proxies or class weights of ours; each side has at most one tensor of them."""
    for name, theirs in getattr(loss, 'named_parameters', dict)():
        weights, = (weight.detach() for weight in ours.parameters())
        rows = weights.reshape(-1, weights.shape[-1]) if weights.dim() > 1 else weights
        with torch.no_grad():
            theirs.copy_(rows.T if name in COLUMNS else rows)
    return loss


def differences(name, n_samples=112, dim=128):
    """
    (our value, the relative difference of the values, the norm of the gradients' difference over the norm of our
    gradient by the embeddings), in float64.
    """
    case = CASES[name]
    batch, labels = random_batch(n_samples, SIZES[n_samples], dim)
    torch.manual_seed(0)
    triplets = random_triplets(labels, n_samples) if case.triplets else None
    parts = case, batch.detach().double().requires_grad_(), labels, triplets, int(labels.max()) + 1
    (loss, arguments), (their, their_arguments) = our_loss(*parts), their_loss(*parts)
    their = with_our_weights(their, loss)
    for side in (loss, their):
        if isinstance(side, torch.nn.Module):
            side.double()
    values = loss(*arguments), their(*their_arguments)
    ours, theirs = (torch.autograd.grad(value, parts[1])[0] for value in values)
    value = values[0].item()
    return value, abs(value - values[1].item()) / abs(value), ((ours - theirs).norm() / ours.norm()).item()


def compared(losses=SAME, n_samples=112):
    """A line of cells for each loss, as HEADS names them."""
    for name in losses:
        value, *found = differences(name, n_samples)
        yield [name, f'{value:.6f}', *(f'{one:.0e}' for one in found), 'yes' if max(found) <= TOLERANCE else 'no']


def conditions(n_samples=112):
    return (f'{n_samples} x 128, float64, relative differences; torch {torch.__version__}, pytorch-metric-learning '
            f'{version("pytorch-metric-learning")}, {processor()}, threads: {torch.get_num_threads()}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--losses', nargs='+', metavar='NAME', choices=SAME, default=SAME, help='rows of the table')
    parser.add_argument('--size', type=int, choices=[*SIZES], default=112, help='batch size')
    opt = parser.parse_args()
    print(conditions(opt.size))
    print(markdown(HEADS, list(compared(opt.losses, opt.size))))
    print('\n'.join(f'Not the same loss: {name}: {reason}.' for name, reason in OTHERS.items()))


if __name__ == '__main__':
    main()
