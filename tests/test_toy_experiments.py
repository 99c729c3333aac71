"""The toy experiment: its data, the switch, and that its figure and its statement are made."""
import pytest
import torch

from toy_experiments import diagonal_lines


def test_the_training_line_is_a_diagonal_and_the_test_lines_are_not():
    torch.manual_seed(0)
    points, labels = diagonal_lines.segments([1.0, 1.0], 50)
    assert points.shape == (200, 2) and (points[:, 0] - points[:, 1]).abs().max() < 0.15 < points.std()
    along = [points[labels == c].sum(dim=1) for c in range(4)]
    assert all(one.max() < other.min() for one, other in zip(along, along[1:], strict=False))   # short, one by one
    points, labels = diagonal_lines.test_set(50)
    assert points[labels < 4, 0].abs().max() < 0.1 and points[labels >= 4, 1].abs().max() < 0.1
    assert labels.unique().tolist() == list(range(8))


def test_the_switch():
    torch.manual_seed(0)
    labels = torch.arange(4).repeat_interleave(250)
    a, p, n = diagonal_lines.triplets(labels, p=0.3).T
    switched = a == p
    assert switched.float().mean() == pytest.approx(0.3, abs=0.05)
    assert (labels[n] == labels[a])[switched].all() and (n != a).all()          # pushes one of the own class
    assert (labels[n] != labels[a])[~switched].all() and (labels[p] == labels[a]).all()
    assert (diagonal_lines.triplets(labels, p=0)[:, :2].diff() != 0).all()


def test_the_command(tmp_path, capsys):
    arguments = ['--seeds', '2', '--steps', '5', '--figure', str(tmp_path / 'toy.png')]
    diagonal_lines.main(arguments)
    out = capsys.readouterr().out
    assert 'The switch ' in out and '2 seeds; mean' in out and (tmp_path / 'toy.png').stat().st_size > 10_000
