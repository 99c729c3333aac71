"""Retrieve_Images.py suspects: planted faults are found, and the scores are those of a brute-force computation."""
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import Retrieve_Images
from retrieval import suspects
from tests.helpers import csv_rows, folder_of


def clusters(n_classes=10, n_images=20, dim=32, seed=0):
    """Embeddings [N, dim] of norm 1 around a centre per class, and labels."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_classes), n_images)
    points = random.normal(size=(n_classes, dim))[labels] + 0.6 * random.normal(size=(len(labels), dim))
    return torch.nn.functional.normalize(torch.from_numpy(points).float(), dim=1), labels, random


def of_kind(found, kind):
    return [suspect for suspect in found if suspect.kind == kind]


def test_planted_wrong_labels_are_found_and_corrected():
    embeddings, true, random = clusters()
    labels, wrong = true.copy(), random.permutation(200)[:10]
    labels[wrong] = (labels[wrong] + random.integers(1, 10, 10)) % 10
    found = of_kind(suspects.find(embeddings, labels), 'label')
    assert {suspect.image for suspect in found} == set(wrong)
    for suspect in found:
        assert suspect.suggested == true[suspect.image] == labels[suspect.neighbour] and suspect.score > 1
    assert [suspect.score for suspect in found] == sorted((suspect.score for suspect in found), reverse=True)


def test_planted_duplicates_and_outliers_are_found():
    embeddings, labels, _ = clusters()
    assert suspects.find(embeddings, labels) == []
    copies = embeddings.clone()
    copies[150] = torch.nn.functional.normalize(embeddings[3] + 0.01, dim=0)
    pair, = of_kind(suspects.find(copies, labels), 'duplicate')
    assert {pair.image, pair.neighbour} == {3, 150} and pair.suggested == labels[pair.neighbour]
    centre = embeddings.view(10, 20, -1).mean(dim=1)
    alien = torch.linalg.svd(centre, full_matrices=True).Vh[-1]           # orthogonal to all classes
    strange = torch.cat([embeddings, alien[None]])
    outlier, = of_kind(suspects.find(strange, np.append(labels, 0)), 'outlier')
    assert outlier.image == 200 and outlier.suggested is None


@pytest.mark.parametrize('is_doubled', [False, True])
def test_copies_within_a_class_follow_those_with_other_labels(is_doubled):
    """Also where each image is there twice, so that the nearest image of all is a copy."""
    embeddings, labels, random = clusters()
    rows = [*range(200)] if is_doubled else [5, 7]
    noise = torch.from_numpy(random.normal(size=32)).float()
    near = torch.nn.functional.normalize(embeddings[9] + 0.002 * noise, dim=0)
    copies = torch.cat([embeddings, embeddings[rows], near[None], embeddings[3][None]])
    own = np.concatenate([labels, labels[rows], labels[[9]], [labels[100]]])
    found = of_kind(suspects.find(copies, own), 'duplicate')
    first = found[:1 + is_doubled]                             # the last image has the label of another class
    assert {frozenset((pair.image, pair.neighbour)) for pair in first} == {
        frozenset((image, len(own) - 1)) for image in ([3, 203] if is_doubled else [3])}
    assert [pair.score for pair in first] == [suspects.SAME] * len(first)
    same = [pair for pair in found if pair.score == suspects.SAME and pair not in first]
    assert {frozenset((pair.image, pair.neighbour)) for pair in same} == {
        frozenset((row, 200 + place)) for place, row in enumerate(rows)}
    others = [pair for pair in found if pair not in first and pair not in same]
    assert {frozenset((pair.image, pair.neighbour)) for pair in others} == {
        frozenset((image, len(own) - 2)) for image in ([9, 209] if is_doubled else [9])}
    assert all(pair.suggested == own[pair.image] and 1 / suspects.COPY < pair.score < suspects.SAME for pair in others)


def test_scores_are_those_of_a_brute_force_computation(monkeypatch):
    """Also of classes of one and two images, whose means are of fewer distances, and in several chunks."""
    monkeypatch.setattr(suspects, 'chunks', lambda rows, n, size: np.array_split(rows, 7))
    monkeypatch.setattr(suspects, 'LABEL_Z', 0.5)
    random = np.random.default_rng(1)
    labels = np.array([0] + [1] * 2 + [2] * 9 + [3] * 30)
    embeddings = torch.from_numpy(random.normal(size=(len(labels), 5))).float()
    distances = torch.cdist(embeddings.double(), embeddings.double()).numpy()
    ratios = np.full(len(labels), np.nan)
    for i in range(1, len(labels)):                                       # the first has no image of its class
        own = sorted(distances[i, j] for j in range(len(labels)) if labels[j] == labels[i] and j != i)
        others = sorted(distances[i, j] for j in range(len(labels)) if labels[j] != labels[i])
        ratios[i] = np.mean(own[:3]) / np.mean(others[:3])
    logs = np.log(ratios[1:])
    z = (logs - np.median(logs)) / (1.4826 * np.median(abs(logs - np.median(logs))))
    wanted = {i: ratios[i] for i in np.flatnonzero(np.append(False, z > 0.5)) if ratios[i] > 1}
    found = {suspect.image: suspect.score for suspect in of_kind(suspects.find(embeddings, labels), 'label')}
    assert len(wanted) > 3 and found.keys() == wanted.keys()
    np.testing.assert_allclose([found[i] for i in wanted], [*wanted.values()], rtol=1e-4)


@pytest.mark.parametrize('labels', [[0], [0, 0, 0], [0, 1, 2], [0, 0, 1, 1, 1]])
@pytest.mark.parametrize('spread', [0, 1])
def test_few_or_equal_images(labels, spread):
    embeddings = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0)) * spread
    for suspect in suspects.find(embeddings, np.array(labels)):
        assert np.isfinite(suspect.score)


def test_the_command_writes_a_list_and_a_contact_sheet(quick, run, tmp_path, capsys, inspected):
    photos, random = tmp_path / 'images', np.random.default_rng(0)
    for c, colour in enumerate(random.uniform(40, 215, (8, 3))):
        (photos / f'class_{c:02d}').mkdir(parents=True)
        for i in range(8):
            pixels = colour + random.normal(0, 6, 3) + random.normal(0, 4, (24, 24, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(photos / f'class_{c:02d}' / f'{i}.png')
    moved = photos / 'class_00' / 'moved.png'
    (photos / 'class_05' / '2.png').rename(moved)
    for name in ('class_03', 'class_06'):
        shutil.copy(photos / 'class_03' / '4.png', photos / name / 'copy.png')
    assert run(*quick, '--source_path', tmp_path, '--input_size', '24', '--n_epochs', '0') == 0
    out, trained = tmp_path / 'found.csv', folder_of(tmp_path)
    flags = ['--eval_features', '--eval_normalize', '--no_train_metrics', 'false']
    capsys.readouterr()
    assert Retrieve_Images.main(['suspects', str(trained), '--out', str(out), *flags]) == 0
    copy, first, *rows = csv_rows(out)
    assert (copy['kind'], copy['label'], copy['suggested_label'], copy['note']) == ('label', 'class_06', 'class_03', '')
    assert list(first) == ['kind', 'path', 'label', 'suggested_label', 'score', 'neighbour', 'note']
    assert (first['kind'], first['path'], first['label']) == ('label', str(moved), 'class_00')
    assert first['suggested_label'] == 'class_05' and f'{photos}/class_05/' in first['neighbour']
    with Image.open(tmp_path / 'found.png') as sheet:
        assert sheet.width > 1500 and np.asarray(sheet).std() > 5
    same = [row for row in rows if row['note'].startswith('same image')]
    assert {tuple(sorted((row['label'], row['suggested_label']))): row['note'] for row in same} == {
        ('class_03', 'class_06'): 'same image, test and train', ('class_03', 'class_03'): 'same image'}
    assert {(row['kind'], row['score']) for row in same} == {('duplicate', '1000.0')} and len(same) == 3
    printed = capsys.readouterr().out
    assert '66 images of 8 classes; suspects: ' in printed and 'the same image in 3 of the duplicates\n' in printed
    assert 'one image in one split, and one in another, in 2 of the duplicates\n' in printed
    assert sum(text.get_text().endswith('same image') for text in inspected[-1].axes[0].texts) == 3
    assert Retrieve_Images.main(['suspects', str(trained / 'checkpoint_last.pt'), '--out', str(out),
                                 '--no_train_metrics']) == 0
    assert '32 images of 4 classes' in capsys.readouterr().out


def test_the_training_split_can_be_reviewed_although_the_run_left_it_out(quick, run, tmp_path, capsys):
    assert run(*quick, '--no_train_metrics') == 0
    trained = folder_of(tmp_path)
    capsys.readouterr()
    assert Retrieve_Images.main(['suspects', str(trained), '--out', str(tmp_path / 'found.csv'), '--splits_to_eval',
                                 'train', 'test']) == 0
    assert '72 images of 12 classes' in capsys.readouterr().out


@pytest.mark.parametrize('arguments, sentence', [
    (['nowhere'], 'nowhere: not a run folder'),
    (['nowhere', '--out', 'found.txt'], '--out found.txt: give a file that ends in .csv'),
    (['nowhere', '--archh', 'conv4'], '--archh: unknown flag; did you mean arch?'),
    (['nowhere', '--loss_snr_margin', '3'], '--loss_snr_margin has no effect on suspects; leave it out'),
    (['nowhere', '--eval_level', 'parent'], '--eval_level has no effect on suspects')])
def test_what_cannot_be_examined(arguments, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Retrieve_Images.main(['suspects', *arguments]) == 2
    assert sentence in capsys.readouterr().err
