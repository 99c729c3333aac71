"""The parametric miner's distributions, and PADS, which adapts them: state, reward, learning, exact resumption."""
import copy

import numpy as np
import pytest
import torch

import architectures
import batch_mining
import configuration
import datasets
import evaluation
import parts
from batch_mining import distance, parametric
from flags.namespace import changed
from tests.helpers import assert_same_end, folder_of
from utilities.errors import UserError

ADAPT = ('--batch_mining', 'parametric', '--miner_parametric_adapt', '--use_tv_split', '--tv_split_by_samples',
         '--tv_split_perc', '0.5')


def metrics(recall=.5, nmi=.6, progress=.1):
    return {'e_recall@1': recall, 'e_recall@2': .6, 'e_recall@4': .7, 'e_recall@8': .8, 'nmi': nmi,
            'dists@intra': .2, 'dists@inter': .9, 'progress': progress}


@pytest.fixture
def adaptive(opt):
    """adaptive(history=3, ...): a miner that learns, with these flags."""
    def make(**flags):
        torch.manual_seed(0)
        return batch_mining.select(opt(batch_mining='parametric', miner_parametric_adapt=True,
                                       **{f'miner_parametric_{name}': value for name, value in flags.items()}))
    return make


@pytest.mark.parametrize(('mode', 'low', 'high'), [('uniform', 0, 9), ('hards', 0, .5), ('semihards', .3, .7),
                                                   ('veryhards', 0, .3)])
def test_fixed_distributions(opt, mode, low, high):
    miner = batch_mining.select(opt(batch_mining='parametric', miner_parametric_mode=mode))
    width = 1.3 / 29
    centres = [.1 + width * (k + .5) for k in range(29)]
    assert miner.weights.tolist() == pytest.approx([1 if low <= centre <= high else 1e-15 for centre in centres])
    assert miner.update_every == 0


def test_distances_on_an_edge_or_beyond_the_limits():
    """An inner edge belongs to the bin below it; the first and the last bin take what is beyond; a single bin all."""
    batch = torch.tensor([0., 5., .01, .25, .5, .75, 1., 3.], dtype=torch.float64)[:, None]
    labels = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6])
    torch.manual_seed(0)
    reached = [{n for _ in range(100) for a, _, n in parametric.parametric_triplets(
        batch, labels, weights, (.25, 1)).tolist() if a == 0} for weights in (*torch.eye(3), torch.ones(1))]
    assert reached == [{2, 3, 4}, {5}, {6, 7}, {2, 3, 4, 5, 6, 7}]         # edges .25 .5 .75 1


def test_the_state_holds_history_means_distribution_and_progress(adaptive):
    miner = adaptive()
    start = miner.weights.clone()
    for k in range(25):
        before = miner.weights
        miner.update(metrics(recall=k / 100, progress=k / 50))
        state = miner.pads.state
        assert state.shape == (198,)
        history, means, weights, progress = state.split([140, 28, 29, 1])
        seen = [j / 100 for j in range(k + 1)]
        padded = [0.] * (20 - len(seen)) + seen
        torch.testing.assert_close(history.view(20, 7)[:, 0], torch.tensor(padded[-20:]))
        torch.testing.assert_close(history.view(20, 7)[0, 1:], torch.tensor([.6, .7, .8, .6, .2, .9]))
        torch.testing.assert_close(means.view(4, 7)[:, 0],
                                   torch.tensor([sum(seen[-n:]) / len(seen[-n:]) for n in (2, 8, 16, 32)]))
        torch.testing.assert_close(weights, before / before.sum())
        assert progress.item() == pytest.approx(k / 50)
    assert start.equal(torch.tensor([1. if 4 <= k <= 12 else 1e-15 for k in range(29)]))    # centres .302 to .660


def test_updates_multiply_the_weights_by_the_actions_within_limits(adaptive):
    miner = adaptive()
    for _ in range(10):
        before = miner.weights
        miner.update(metrics())
        factors = torch.tensor([.8, 1, 1.25])[miner.pads.actions]
        torch.testing.assert_close(miner.weights, before * factors)
    for factor, limit in ((1e9, 1e25), (1e-9, 1e-25)):
        miner = adaptive(actions=[factor])
        for _ in range(6):
            miner.update(metrics())
        assert (miner.weights == torch.tensor(limit)).all()
        labels = torch.arange(4).repeat_interleave(2)
        assert len(miner(torch.nn.functional.normalize(torch.randn(8, 4)), labels)) == 8


@pytest.mark.parametrize(('reward', 'change', 'sign'), [
    ('recall', {'recall': .6, 'nmi': .1}, 1), ('recall', {'recall': .4, 'nmi': .9}, -1), ('recall', {'nmi': .9}, 0),
    ('recall_nmi', {'recall': .6, 'nmi': .4}, -1), ('recall_nmi', {'recall': .4, 'nmi': .8}, 1)])
def test_ppos_step_is_the_papers(adaptive, reward, change, sign):
    """Against a copy of the policy, one bin at a time, with a policy that has moved away from the old one."""
    miner = adaptive(reward=reward, policy_lr=.1)
    pads = miner.pads
    miner.update(metrics())
    with torch.no_grad():
        for parameter in pads.policy.parameters():
            parameter.add_(.05 * torch.randn_like(parameter))
    policy, state, actions = copy.deepcopy(pads.policy), pads.state, pads.actions
    optimizer = torch.optim.Adam(policy.parameters(), lr=.1)
    miner.update(metrics(**change))

    chances, value = policy(state)
    advantage = sign + .99 * policy(pads.state)[1].item() - value.item()
    gains = []
    for k, action in enumerate(actions.tolist()):
        ratio = torch.exp(chances[action, k] - pads.old(state)[0][action, k].detach())
        gains.append(min(ratio * advantage, ratio.clamp(.8, 1.2) * advantage, key=lambda gain: gain.item()))
    changed = {'recall': .5, 'nmi': .6} | change
    score = changed['recall'] if reward == 'recall' else (changed['recall'] + changed['nmi']) / 2
    (.5 * (value - score) ** 2 - sum(gains) / 29).backward()
    optimizer.step()
    for mine, expected in zip(pads.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_reinforces_step_has_the_moving_average_of_earlier_rewards_as_baseline(adaptive):
    miner = adaptive(learning='reinforce', reward='recall', policy_lr=.1)
    pads, baseline = miner.pads, 0.
    policy, recalls = copy.deepcopy(pads.policy), [.5, .6, .7, .6, .6, .8]
    optimizer = torch.optim.Adam(policy.parameters(), lr=.1)
    miner.update(metrics(recall=recalls[0]))
    for k in range(1, len(recalls)):
        state, actions = pads.state, pads.actions
        miner.update(metrics(recall=recalls[k]))
        reward = float(np.sign(recalls[k] - recalls[k - 1]))
        taken = policy(state)[0][actions, torch.arange(29)]
        optimizer.zero_grad()
        (-(reward - baseline) * taken.mean()).backward()
        optimizer.step()
        baseline = reward if k == 1 else .95 * baseline + .05 * reward
        assert pads.baseline == pytest.approx(baseline)
        for mine, expected in zip(pads.policy.parameters(), policy.parameters(), strict=True):
            torch.testing.assert_close(mine, expected)


def test_the_old_policy_follows_every_few_updates(adaptive):
    miner = adaptive(old_update=3)

    def follows():
        return all(old.equal(new) for old, new in zip(miner.pads.old.parameters(), miner.pads.policy.parameters(),
                                                      strict=True))
    found = []
    for k in range(8):
        miner.update(metrics(recall=k / 10))
        found.append(follows())
    assert found == [True, False, False, True, False, False, True, False]      # the first one has nothing to learn from


def test_without_self_regularisation_only_negatives_are_drawn(adaptive):
    labels, batch = torch.arange(3).repeat_interleave(4), torch.nn.functional.normalize(torch.randn(12, 4))
    for switch in (False, True):
        miner = adaptive(no_self_reg=switch)
        triplets = torch.cat([miner(batch, labels) for _ in range(50)])
        own = labels[triplets[:, 0]] == labels[triplets[:, 2]]
        itself = triplets[:, 0] == triplets[:, 1]
        assert own.any() == itself.any() == (not switch)
        assert (labels[triplets[:, 0]] == labels[triplets[:, 1]]).all()


def test_adaptation_needs_a_validation_split_with_something_to_find(quick, run, capsys, tmp_path):
    arguments = [*quick, '--batch_mining', 'parametric', '--miner_parametric_adapt']
    assert run(*arguments) == 2
    assert '--use_tv_split' in capsys.readouterr().err
    assert run(*arguments, '--use_tv_split', '--tv_split_perc', '0.9', '--bs', '6') == 2          # one class validates
    assert 'the validation split has 1 classes' in capsys.readouterr().err
    assert not (tmp_path / 'runs').exists()


def test_limits_of_the_support_are_checked():
    with pytest.raises(UserError, match='the first must be less than the second'):
        configuration.parse(['--batch_mining', 'parametric', '--miner_parametric_support_lim', '1', '0.5'])
    assert configuration.parse(['--miner_parametric_support_lim', '1', '0.5'])           # which no miner here reads


def test_only_the_validation_split_is_seen(quick, monkeypatch):
    """Neither the test classes nor the training images."""
    opt = configuration.parse([*quick, *ADAPT, '--eval_reference', 'all'])
    opt.device = torch.device('cpu')
    model = architectures.select(opt)
    data = datasets.select(opt, model.input_size)
    seen, updates = [], []
    monkeypatch.setattr(evaluation.protocol, 'embed', lambda opt, model, images, *more: seen.append(images) or embed(
        opt, model, images, *more))
    embed = evaluation.embedding.embed

    miner = batch_mining.select(changed(opt, miner_parametric_update_every=3))
    monkeypatch.setattr(miner, 'update', updates.append)
    parts.let_embed(changed(opt, n_epochs=2), parts.Parts(model, data, miner=miner), n_steps=5)
    for step in range(1, 8):
        miner.stepped(None, None, None, step)
    assert seen == [data.evaluation['val']] * 2
    assert [found.keys() for found in updates] == [{*parametric.PADS.METRICS, 'progress'}] * 2
    assert [found['progress'] for found in updates] == [.3, .6]
    assert not set(data.evaluation['val'].paths) & (set(data.train.paths) | set(data.evaluation['test'].paths))


def test_training_does_not_notice_the_evaluations(quick, run, tmp_path, monkeypatch):
    """A run whose miner is shown validation metrics at every step, and does nothing with them."""
    class Looking(distance.BatchMiner):
        update_every = 1

        def stepped(self, embeddings, labels, indices, step):
            assert all(np.isfinite(value) for value in self.validate(parametric.PADS.METRICS, step).values())

    arguments = [*quick, *ADAPT, '--batch_mining', 'distance', '--n_epochs', '1']
    assert run(*arguments) == 0
    monkeypatch.setattr(distance, 'BatchMiner', Looking)
    assert run(*arguments, '--group', 'looking') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'looking_s1'))
