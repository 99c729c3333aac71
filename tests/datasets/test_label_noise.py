"""--label_noise: wrong labels of training images, true labels in the evaluation."""
import numpy as np
import pytest
import yaml

import configuration
import datasets
from tests.helpers import assert_same_end, folder_of


def data_of(quick, *flags):
    return datasets.select(configuration.parse([*quick, *flags]), 16)


def test_a_share_of_the_training_labels_is_wrong_and_no_other_label_changes(quick):
    true, noisy = data_of(quick), data_of(quick, '--label_noise', '0.3')
    changed = np.flatnonzero(true.train.labels != noisy.train.labels)
    assert len(changed) == round(0.3 * len(true.train)) > 0
    assert {str(true.train.paths[i]): true.train.class_names[noisy.train.labels[i]] for i in changed} \
        == noisy.description['label_noise']['given']
    assert noisy.train.n_classes == true.train.n_classes and noisy.description['hash'] == true.description['hash']
    for split, images in true.evaluation.items():
        assert (images.labels == noisy.evaluation[split].labels).all()
    assert 'label_noise' not in true.description


def test_the_seed_alone_determines_the_labels_and_they_are_uniform_over_the_other_classes(quick):
    first, again = (data_of(quick, '--label_noise', '0.3').train.labels for _ in range(2))
    assert (first == again).all()
    true, counts = data_of(quick).train, 0
    differs = False
    for seed in range(15):
        labels = data_of(quick, '--label_noise', '0.3', '--seed', str(seed)).train.labels
        wrong = labels != true.labels
        differs |= (labels != first).any()
        counts = counts + np.bincount((labels - true.labels)[wrong] % true.n_classes, minlength=true.n_classes)
    expected = counts.sum() / (true.n_classes - 1)
    assert differs and counts[0] == 0 and (abs(counts[1:] - expected) < 4 * expected ** 0.5).all()


def test_a_resumed_run_has_the_same_labels(quick, run, tmp_path):
    noisy = [*quick, '--label_noise', '0.3', '--evaluation_metrics', 'e_recall@1']
    assert run(*noisy) == 0 and run(*noisy, '--n_epochs', '1', '--group', 'halved') == 0
    halved = folder_of(tmp_path, 'halved_s1')
    assert run('--resume', halved, '--n_epochs', '2') == 0
    assert_same_end(folder_of(tmp_path), halved)
    recorded = [yaml.safe_load((folder / 'splits.yaml').read_text())['label_noise']
                for folder in (folder_of(tmp_path), halved)]
    assert recorded[0] == recorded[1] and recorded[0]['n_images'] == len(recorded[0]['given']) > 0


@pytest.mark.parametrize('flags, sentence', [
    ('--label_noise 1.5', '--label_noise: expected a number'),
    ('--label_noise 0.3 --unsupervised --samples_per_class 1 --views 2',
     'which --unsupervised does not use; leave one of them out')])
def test_wrong_input_gets_a_sentence(quick, run, capsys, flags, sentence):
    assert run(*quick, *flags.split()) == 2
    assert sentence in ' '.join(capsys.readouterr().err.split())
