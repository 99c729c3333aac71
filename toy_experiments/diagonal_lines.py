"""
Diagonal lines, a toy experiment: does a network learn to separate classes that it was not trained on?
After Roth et al., Revisiting Training Strategies, ICML 2020, https://arxiv.org/abs/2002.08473, section 5.

The training classes are four short segments in a row on a diagonal line, so that one direction of the plane separates
them. The test classes are four such segments on a vertical line and four on a horizontal line; to separate them takes
two directions. One network is trained with the contrastive loss on random triplets, and another with the switch of the
miner rho_distance: with probability p, a triplet (anchor, positive, negative) becomes (anchor, anchor, positive), which
pushes two points of one class apart.

    python -m toy_experiments.diagonal_lines --figure diagonal_lines.png
"""
import sys

import numpy as np
import torch
from tqdm import tqdm

import evaluation
from criteria.contrastive import contrastive_loss
from flags import command_line
from reports.significance import t_interval
from utilities.errors import exit_code
from utilities.plotting import COLUMN, new_figure, save, styled
from utilities.randomness import seed_everything
from utilities.text_tables import aligned

CENTRES = torch.tensor([-0.75, -0.25, 0.25, 0.75])            # centres of the segments on a line from -1 to 1
HALF_LENGTH = 0.15                                            # half the length of a segment
SETTINGS = ('without the switch', 'with the switch')


def segments(direction, n_points, width=0.02):
    """Four classes of points along a line through the origin: ([4 * n_points, 2], labels [4 * n_points])."""
    along = CENTRES[:, None] + HALF_LENGTH * (2 * torch.rand(4, n_points) - 1)
    direction = torch.nn.functional.normalize(torch.tensor(direction), dim=0)
    points = along.reshape(-1, 1) * direction + width * torch.randn(4 * n_points, 2)
    return points, torch.arange(4).repeat_interleave(n_points)


def test_set(n_points):
    """The eight test classes: four on a vertical line, four on a horizontal one."""
    (vertical, labels), (horizontal, others) = segments([0.0, 1.0], n_points), segments([1.0, 0.0], n_points)
    return torch.cat([vertical, horizontal]), torch.cat([labels, others + 4])


def triplets(labels, p):
    """One random triplet (a, p, n) per point as anchor: [N, 3]; with probability p, it becomes (a, a, p)."""
    same = labels[:, None] == labels
    anchors = torch.arange(len(labels))
    positives = torch.multinomial((same & ~torch.eye(len(labels), dtype=torch.bool)).float(), 1)[:, 0]
    negatives = torch.multinomial((~same).float(), 1)[:, 0]
    switched = torch.rand(len(labels)) < p
    return torch.stack([anchors, anchors.where(switched, positives), positives.where(switched, negatives)], dim=1)


class Normalize(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.normalize(x, dim=1)


def train(seed, p, n_steps, normalize, n_points=50, batch=64):
    """Trains a network 2 -> 30 -> 30 -> 2 with the contrastive loss: (network, training points, labels)."""
    seed_everything(seed)
    points, labels = segments([1.0, 1.0], n_points)
    network = torch.nn.Sequential(torch.nn.Linear(2, 30), torch.nn.ReLU(), torch.nn.Linear(30, 30), torch.nn.ReLU(),
                                  torch.nn.Linear(30, 2))
    if normalize:
        network.append(Normalize())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(n_steps):
        chosen = torch.randperm(len(points))[:batch]
        embeddings = network(points[chosen])
        anchors, positives, negatives = triplets(labels[chosen], p).T
        differences = embeddings[anchors.repeat(2)] - embeddings[torch.cat([positives, negatives])]
        distances = torch.linalg.vector_norm(differences, dim=1)
        positive = torch.arange(2 * batch) < batch
        optimizer.zero_grad()
        contrastive_loss(distances, positive, ~positive, pos_margin=0.0, neg_margin=1.0).backward()
        optimizer.step()
    return network, points, labels


@torch.no_grad()
def measure(network, points, labels):
    """{'points', 'labels', 'embeddings' [N, 2], 'e_recall@1', 'rho_spectrum@0' (singular values), 'rho_spectrum@1'}."""
    embeddings = network(points)
    values = evaluation.compute(['e_recall@1', 'rho_spectrum@0', 'rho_spectrum@1'], embeddings, labels.numpy())
    return values | {'points': points, 'labels': labels, 'embeddings': embeddings}


def run(n_seeds, p, n_steps, normalize):
    """{setting: list over seeds of {'train': measure(), 'test': measure()}}"""
    found = {setting: [] for setting in SETTINGS}
    bar = tqdm(total=2 * n_seeds, unit='network', disable=None)
    for seed in range(n_seeds):
        for setting, probability in zip(SETTINGS, (0.0, p), strict=True):
            network, *training = train(seed, probability, n_steps, normalize)
            seed_everything(10_000 + seed)
            found[setting].append({'train': measure(network, *training), 'test': measure(network, *test_set(50))})
            bar.update()
    bar.close()
    return found


def table(found):
    """Means and standard deviations over seeds, and the paired differences with their intervals, as text."""
    rows, columns = [['', 'train R@1', 'test R@1', 'rho, train', '2nd singular value']], {}
    for setting, seeds in found.items():
        columns[setting] = np.array([[seed['train']['e_recall@1'], seed['test']['e_recall@1'],
                                      seed['train']['rho_spectrum@1'], seed['train']['rho_spectrum@0'][-1]]
                                     for seed in seeds])
        rows.append([setting, *(f'{mean:.3f} ± {std:.3f}' for mean, std in zip(
            columns[setting].mean(0), columns[setting].std(0, ddof=1), strict=True))])
    differences = columns[SETTINGS[1]] - columns[SETTINGS[0]]
    rows.append(['the switch adds', *('{:+.3f} ± {:.3f}'.format(*t_interval(column)) for column in differences.T)])
    mean, half = t_interval(differences[:, 1])
    verdict = 'raises' if mean > half else 'lowers' if mean < -half else 'does not change (the interval contains 0)'
    lines = [aligned(rows), '',
             f'{len(differences)} seeds; mean ± standard deviation; differences paired by seed, 95 % t-intervals.',
             f'The switch {verdict} the recall on the test classes: {mean:+.3f} '
             f'[{mean - half:+.3f}, {mean + half:+.3f}].']
    return '\n'.join(lines)


@styled
def plot(found, file):
    """Plots the points, the embeddings of seed 0, the spectra of the training embeddings and the recall."""
    figure = new_figure(2.2 * COLUMN, 1.2 * COLUMN)
    axes = figure.subplots(2, 4)
    for row, split in enumerate(('train', 'test')):
        for column, setting in enumerate(SETTINGS, start=1):
            data = found[setting][0][split]
            colours = {'c': data['labels'], 'cmap': 'tab10', 'vmin': 0, 'vmax': 9, 's': 2}
            axes[row, column].scatter(*data['embeddings'].T, **colours)
            axes[row, column].set(title=f'embeddings, {split},\n{setting}', aspect='equal')
        axes[row, 0].scatter(*data['points'].T, **colours)                 # the same in both settings
        axes[row, 0].set(title=f'points, {split}', aspect='equal', xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    for i, setting in enumerate(SETTINGS):
        spectra = np.array([seed['train']['rho_spectrum@0'] for seed in found[setting]])
        recalls = np.array([[seed[split]['e_recall@1'] for split in ('train', 'test')] for seed in found[setting]])
        for row, values in ((0, spectra), (1, 100 * recalls)):
            axes[row, 3].bar(np.arange(2) + 0.4 * i, values.mean(0), 0.4, yerr=values.std(0, ddof=1), capsize=3,
                             label=setting)
    axes[0, 3].set(title=f'spectrum, train, {len(spectra)} seeds', xticks=[0.2, 1.2], ylabel='fraction of the sum')
    axes[0, 3].set_xticklabels(['1st singular value', '2nd'])
    axes[1, 3].set(title=f'R@1 (%), {len(spectra)} seeds', xticks=[0.2, 1.2], ylim=(0, 105))
    axes[1, 3].set_xticklabels(['train', 'test'])
    figure.legend(*axes[0, 3].get_legend_handles_labels(), loc='outside upper right', ncols=2)
    save(figure, file)


def main(arguments):
    parser = command_line.Parser(prog='toy_experiments.diagonal_lines', description=__doc__.splitlines()[1])
    parser.add_argument('--seeds', type=command_line.number(int, 2), default=10, help='number of seeds, from 0')
    parser.add_argument('--cp', type=command_line.FRACTION, default=0.2, help='probability p of the switch')
    parser.add_argument('--steps', type=command_line.POSITIVE_INT, default=500, help='number of training steps')
    command_line.switch(parser, '--normalize', help='train embeddings of norm 1, on a circle, instead of in the plane')
    parser.add_argument('--figure', metavar='FILE', help='file to save the figure in; by default there is none')
    opt = parser.parse_args(arguments)
    found = run(opt.seeds, opt.cp, opt.steps, opt.normalize)
    print(table(found))
    if opt.figure:
        plot(found, opt.figure)
        print(f'figure: {opt.figure}')


if __name__ == '__main__':
    sys.exit(exit_code('toy_experiments.diagonal_lines', lambda: main(sys.argv[1:])))
