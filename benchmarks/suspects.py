"""
How many wrong labels `Retrieve_Images.py suspects` finds: precision and recall of its suspects of the kind label, after
a fraction of the images, sampled at random, has been given the label of another class. The labels do not influence the
embeddings. Suspects whose labels were not changed count as errors, even if these labels were wrong before.

python -m benchmarks.suspects PHOTOS_OR_RUN [--run RUN] [--fractions 0.01 0.05 0.1] [--seeds 3] [flags of main.py]
"""
import argparse

import numpy as np
import torch

from retrieval import review, suspects
from utilities.text_tables import markdown


def shuffled(labels, fraction, random):
    """The labels [N], a fraction of them replaced by other classes' labels, and the indices [n] of the replaced."""
    labels, n_classes = labels.copy(), labels.max() + 1
    wrong = random.permutation(len(labels))[:round(fraction * len(labels))]
    labels[wrong] = (labels[wrong] + random.integers(1, n_classes, len(wrong))) % n_classes
    return labels, wrong


def measured(embeddings, labels, fraction, seed):
    """Number of suspects, their precision and recall, and the fraction of found images whose own label is suggested."""
    given, wrong = shuffled(labels, fraction, np.random.default_rng(seed))
    found = [suspect for suspect in suspects.find(embeddings, given) if suspect.kind == 'label']
    hits = np.isin([suspect.image for suspect in found], wrong)
    restored = [suspect.suggested == labels[suspect.image] for suspect, hit in zip(found, hits, strict=True) if hit]
    return len(found), hits.mean(), hits.sum() / len(wrong), np.mean(restored)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('photos')
    parser.add_argument('--run')
    parser.add_argument('--fractions', type=float, nargs='+', default=[0.01, 0.05, 0.1])
    parser.add_argument('--seeds', type=int, default=3)
    opt, flags = parser.parse_known_args()
    embedded = review.embedded(opt.photos, opt.run, flags)
    embeddings, (names, labels) = torch.cat([part.embeddings for part in embedded]), review.classes(embedded)
    clean = sum(suspect.kind == 'label' for suspect in suspects.find(embeddings, labels))
    print(f'{len(labels):,} images of {len(names):,} classes; {clean} suspects of the kind label before shuffling\n')
    rows = []
    for fraction in opt.fractions:
        values = np.array([measured(embeddings, labels, fraction, seed) for seed in range(opt.seeds)])
        rows.append([f'{fraction:.0%}', f'{round(fraction * len(labels)):,}', f'{values[:, 0].mean():.0f}',
                     *(f'{mean:.3f} ± {deviation:.3f}'
                       for mean, deviation in zip(values.mean(axis=0)[1:3], values.std(axis=0)[1:3], strict=True)),
                     f'{values[:, 3].mean():.3f}'])
    print(markdown(['shuffled', 'images', 'suspects', 'precision', 'recall', 'own label suggested'], rows))


if __name__ == '__main__':
    main()
