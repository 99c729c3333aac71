"""The stored embeddings: what they hold after each step, and that a stopped and continued run holds the same."""
import pytest
import torch

from datasampler.storage import Storage
from tests import host_waits
from tests.helpers import fill, folder_of, images_of, kept_by, sampler_of

N, D = 9, 6


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(opt, **flags):
    storage = Storage(opt(embed_dim=D, **flags), N)
    fill(storage, lambda: random(N, D))
    return storage


def test_it_is_filled_once_and_updated_from_batches(opt):
    storage = filled(opt)
    fill(storage, lambda: pytest.fail('filled already'))
    assert torch.equal(storage[torch.arange(N)], random(N, D))
    batch = random(4, D, seed=1).requires_grad_()
    storage.stepped(batch, None, torch.tensor([3, 0, 3, 7]), 1)
    expected = random(N, D)
    expected[[0, 3, 7]] = batch.detach()[[1, 2, 3]]                      # of an image drawn twice, the last
    assert torch.equal(storage.embeddings, expected) and not storage.embeddings.requires_grad
    batch.detach().zero_()
    assert torch.equal(storage.embeddings, expected)                     # a copy


@pytest.mark.parametrize('flags', [{}, {'data_mb_mom': .9, 'data_mb_lr': .5}, {'data_sampler_lowproj_dim': 3}])
def test_an_update_does_not_make_the_host_wait_for_a_gpu(flags, opt):
    namespace = opt(embed_dim=D, **flags)
    namespace.device = torch.device('cuda')
    with host_waits.fake_gpu() as waits:
        storage = Storage(namespace, N)
        fill(storage, lambda: torch.randn(N, D, device='cuda'))
        waits.found.clear()
        storage.stepped(torch.randn(4, D, device='cuda', requires_grad=True), None, torch.tensor([3, 0, 3, 7]), 1)
    assert waits.found == [] and storage.embeddings.is_cuda


def test_embeddings_of_an_inference_pass_can_be_updated(opt):
    with torch.inference_mode():
        embedded = random(N, D)
    storage = Storage(opt(embed_dim=D), N)
    fill(storage, lambda: embedded)
    storage.stepped(torch.zeros(1, D), None, torch.tensor([2]), 1)
    assert not storage.embeddings[2].any() and embedded[2].any()


def test_no_update_and_all_anew(opt):
    storage = filled(opt, data_storage_no_update=True)
    storage.stepped(torch.zeros(2, D), None, torch.tensor([1, 2]), 1)
    assert torch.equal(storage.embeddings, random(N, D))
    storage = filled(opt, data_idx_full_prec=True)
    fill(storage, lambda: random(N, D, seed=5))
    assert torch.equal(storage.embeddings, random(N, D, seed=5))


def test_momentum_runs_ahead_of_the_changes(opt):
    momentum, rate = .7, .5
    storage = filled(opt, data_mb_mom=momentum, data_mb_lr=rate, data_idx_full_prec=True)
    stored, change = random(N, D).tolist(), [[0.0] * D for _ in range(N)]
    steps = [(random(3, D, seed=1), [4, 0, 8]), (random(2, D, seed=2), [4, 1]), (random(N, D, seed=3), list(range(N)))]
    for new, indices in steps:
        if len(indices) == N:
            fill(storage, lambda new=new: new)
        else:
            storage.stepped(new, None, torch.tensor(indices), 1)
        for row, i in enumerate(indices):
            for d in range(D):
                change[i][d] = momentum * change[i][d] + (1 - momentum) * (float(new[row, d]) - stored[i][d])
                stored[i][d] = float(new[row, d]) + rate * change[i][d]
    torch.testing.assert_close(storage.embeddings, torch.tensor(stored))


def test_the_projection_keeps_distances_and_is_fixed_by_the_seed(opt):
    points, storages = random(200, 512), []
    for seed in (0, 0, 1):
        storages.append(Storage(opt(embed_dim=512, data_sampler_lowproj_dim=64, seed=seed), 200))
        fill(storages[-1], lambda: points)
    first, same, other = (storage.embeddings for storage in storages)
    assert first.shape == (200, 64) and torch.equal(first, same) and not torch.equal(first, other)
    ratios = torch.nn.functional.pdist(first) / torch.nn.functional.pdist(points)
    assert abs(float(ratios.mean()) - 1) < .02 and ratios.std() < 1.3 * (1 / 128) ** .5
    storages[0].stepped(points[[5]], None, torch.tensor([0]), 1)
    torch.testing.assert_close(first[0], same[5])


def test_cosine_means_embeddings_of_norm_1(opt):
    points = filled(opt, data_sim_measure='cosine')[torch.tensor([2, 5])]
    torch.testing.assert_close(points, torch.nn.functional.normalize(random(N, D)[[2, 5]], dim=1))


@pytest.mark.parametrize('name', ['greedy_coreset', 'd2_coreset', 'fid_batchmatch', 'disthist_batchmatch'])
def test_an_epoch_is_drawn_from_what_is_stored_as_it_begins(name, opt):
    flags = {'data_sampler': name, 'bs': 8, 'data_batchmatch_bigbs': 30, 'embed_dim': 16, 'iterations_per_epoch': 6}
    images = images_of([6] * 10)
    sampler = sampler_of(opt(**flags), images)
    whole, iterator = list(sampler), iter(sampler)
    assert next(iterator) == whole[0]
    sampler.storage.stepped(random(60, 16), None, torch.arange(60), 1)
    assert list(iterator) == whole[1:]
    assert list(sampler) != whole


def test_the_storage_holds_the_training_images_and_then_the_batches(quick, run, tmp_path):
    arguments = [*quick, '--data_sampler', 'greedy_coreset', '--n_epochs', '1', '--iterations_per_epoch', '1',
                 '--evaluation_metrics', 'e_recall@1']
    for group, more in (('kept', ['--data_storage_no_update']), ('updated', [])):
        assert run(*arguments, *more, '--group', group) == 0
    kept, updated = (kept_by(folder_of(tmp_path, f'{group}_s1'), 'sampler.storage')['embeddings']
                     for group in ('kept', 'updated'))
    assert int((kept != updated).any(dim=1).sum()) == 12                 # the images of one batch
    torch.testing.assert_close(kept.norm(dim=1), torch.ones(36))


def test_a_storage_of_another_size_is_refused(quick, run, tmp_path, capsys):
    assert run(*quick, '--evaluation_metrics', 'e_recall@1', '--data_sampler', 'd2_coreset', '--n_epochs', '0') == 0
    for flag, value, before in (('data_sampler_lowproj_dim', 4, -1), ('data_sampler', 'class_random', 'd2_coreset')):
        assert run('--resume', folder_of(tmp_path), '--n_epochs', '2', f'--{flag}', value) == 2
        assert f'cannot change within a run: --{flag} {value} (was {before})' in capsys.readouterr().err
