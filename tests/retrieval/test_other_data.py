"""A network on other data sets: each data set alone, and all of them in one gallery."""
import numpy as np
import pytest
import torch

import configuration
from datasets.base import ImageSet
from retrieval import other_data
from tests.conftest import draw_classes
from tests.evaluation.test_metrics import means
from tests.helpers import after_training, folder_of


class Images:
    roles = ImageSet.roles

    def __init__(self, labels, is_query=None, in_gallery=None):
        self.labels, self.n_classes = np.array(labels), max(labels) + 1
        self.is_query, self.in_gallery = is_query, in_gallery

    def __len__(self):
        return len(self.labels)


def by_loops(points, labels, queries, gallery):
    """Recall at 1 and MAP@R of the `queries`, a list of indices, among the images `gallery`."""
    rankings = []
    for q in queries:
        order = [g for g in gallery if g != q]
        order.sort(key=lambda g, q=q: float(((points[q] - points[g]) ** 2).sum()))
        rankings.append([int(labels[g] == labels[q]) for g in order])
    return means(['e_recall@1', 'map_at_r'], rankings)


def test_in_the_union_images_of_all_data_sets_are_searched_and_none_of_another_is_a_positive(opt):
    """One data set has queries and gallery apart, one a distractor; classes of different data sets are different."""
    generator = torch.Generator().manual_seed(0)
    is_query = np.arange(12) % 4 == 0
    images = [Images([0, 0, 0, 1, 1, 2]), Images([0, 1, 2] * 4, is_query),
              Images([0, 0, 1, 1, 2], np.arange(5) < 4, np.ones(5, bool))]
    embedded = [torch.randn(len(part), 2, generator=generator, dtype=torch.float64).float() for part in images]
    found = other_data.alone_and_together(opt(given=[]), embedded, images)
    points = torch.cat(embedded).double()
    labels = [(number, label) for number, part in enumerate(images) for label in part.labels]
    searched = [i for i in range(23) if not (6 <= i < 18 and is_query[i - 6])]
    for own, values in zip((range(6), range(6, 18), range(18, 23)), found, strict=True):
        queries = [i for i in own if i != 22 and (own[0] != 6 or is_query[i - 6])]
        alone = by_loops(points, labels, queries, [i for i in searched if i in own])
        union = by_loops(points, labels, queries, searched)
        for metric in ('e_recall@1', 'map_at_r'):
            assert values[metric] == pytest.approx((alone[metric], union[metric]))
        assert all(both[1] <= both[0] for both in values.values())


def test_a_run_on_other_data(quick, run, tmp_path, capsys, patterns, monkeypatch):
    other = draw_classes(tmp_path / 'other' / 'images', 4, 5, seed=3).parent
    assert run(*quick, '--n_epochs', '1', '--test_size', '0.25') == 0
    capsys.readouterr()
    assert run('--evaluate', folder_of(tmp_path), '--evaluation_metrics', 'e_recall@1', 'map_at_r') == 0
    own = {line.split()[0]: float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if '_' in line
           and not line.startswith('/')}
    compare, norms = other_data.alone_and_together, []
    monkeypatch.setattr(other_data, 'alone_and_together', lambda opt, embedded, images: norms.append(
        torch.cat([part.norm(dim=1) for part in embedded])) or compare(opt, embedded, images))
    assert after_training(folder_of(tmp_path), 'other_data', 'folder', f'folder:{other}', '--source_path',
                          tmp_path) == 0                                              # where cub200 would be sought
    torch.testing.assert_close(torch.cat(norms), torch.ones(56))                      # those of the trunk as well
    tables = capsys.readouterr().out.partition('e_recall@1 ')[2]
    first, second = (('e_recall@1 ' + tables).split('\n\n'))
    for table, metric in ((first, 'e_recall@1'), (second, 'map_at_r')):
        head, mine, others, mean = table.strip().splitlines()
        assert head.split()[0] == metric and 'random trunk, alone' in head and 'trained, union' in head
        assert mine.split()[:3] == ['folder', '18', '3']                   # the run's own test classes
        assert others.split()[:3] == [f'folder:{other}', '10', '2']        # by default half of the classes
        assert float(mine.split()[5]) == pytest.approx(own[metric], abs=1e-4)
        columns = np.array([line.split()[3:] for line in (mine, others)], float)
        np.testing.assert_allclose(np.array(mean.split()[1:], float), columns.mean(axis=0), atol=2e-4)
    assert after_training(folder_of(tmp_path), 'other_data', f'folder:{other}', '--split_scheme', 'half', '--test_size',
                          '1', '--evaluation_metrics', 'e_recall@1') == 0
    assert f'folder:{other}  ' in (out := capsys.readouterr().out) and out.split('other')[-1].split()[:2] == ['20', '4']
    for flags, message in (
            (['folder', 'folder'], 'named twice'), (['glyphs:here'], 'only folder takes a path'),
            (['flowers'], 'other_data flowers'), ([f'folder:{tmp_path}'], '--dataset folder: expected'),
            (['cub200'], '--dataset cub200: expected'), (['folder', '--pca', '2'], '--pca has no effect'),
            (['folder', '--evaluation_metrics', 'e_recall@1', 'nmi'], 'metrics of ranks only'),
            (['folder', '--loss', 'hyperbolic'], 'ranks by a distance of its own'),
            ([f'folder:{other}', '--split_scheme', 'half', '--test_size', '0'], 'it has no test split here')):
        assert after_training(folder_of(tmp_path), 'other_data', *flags) == 2
        assert message in capsys.readouterr().err, flags


def test_the_frozen_trunk_has_the_weights_from_before_the_training(quick, run, tmp_path):
    assert run(*quick, '--n_epochs', '1') == 0
    opt = configuration.parse(['--evaluate', str(folder_of(tmp_path))])
    opt.device = torch.device('cpu')
    first, again = other_data.untrained_network(opt), other_data.untrained_network(opt)
    trained = other_data.parts.restore_network(opt, opt.evaluate)
    for before, same, after in zip(first.parameters(), again.parameters(), trained.parameters(), strict=True):
        assert torch.equal(before, same) and (before.dim() < 2 or not torch.equal(before, after))
