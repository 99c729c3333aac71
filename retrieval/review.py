"""Retrieve_Images.py suspects: embeds the images of a run, and writes the suspects among them to files."""
from pathlib import Path

import numpy as np
import torch

import configuration
import evaluation
import parameters
import parts
from evaluation import pictures
from evaluation.protocol import note_collapse
from flags.command_line import flags_in
from retrieval import suspects
from utilities import plotting
from utilities.errors import UserError
from utilities.files import require_writable, write_csv

COLUMNS = ('kind', 'path', 'label', 'suggested_label', 'score', 'neighbour', 'note')
TITLES = {
    'label': 'label: images whose neighbours contradict their label, and the nearest image of the suggested label',
    'duplicate': 'duplicate: nearly equal images, those with different labels first',
    'outlier': 'outlier: images without near neighbours, and the nearest one',
}
N_ROWS = {'label': 4}        # contact sheet: rows per kind; 2 for the others
N_PAIRS = 4                  # pairs per row
# main.py's flags of an evaluation that it does not read
WITHOUT = ('evaluation_metrics', 'bootstrap', 'eval_level', 'eval_reference', 'eval_draws', 'eval_draw_size',
           'pictures')


def review(run, flags, out):
    """
    Writes the suspects among the images that a run evaluates to the CSV file `out`, and the first of each kind to a
    contact sheet of the same name, .png.

    run:   a run folder or checkpoint, whose network embeds the images.
    flags: more flags of main.py, as for --evaluate.
    """
    require_writable(out, '--out')
    if Path(out).suffix != '.csv':
        raise UserError(f'--out {out}: give a file that ends in .csv')
    configuration.require_effect(flags_in(flags), 'suspects', {*parameters.training_flags(), *WITHOUT})
    opt = configuration.parse(['--evaluate', str(run), *flags])
    built = parts.restore(opt, run)
    splits = evaluation.splits_to_evaluate(opt, built.data)
    embedded = evaluation.embed_splits(opt, built.model, built.data, splits)
    note_collapse(embedded, splits)
    places = []
    for split in splits:
        images = embedded[split].images
        places += [(split, images, index) for index in np.flatnonzero(~images.is_distractor)]
    classes = [images.class_names[images.labels[index]] for _, images, index in places]
    names, labels = np.unique(classes, return_inverse=True)
    found = suspects.find(torch.cat([embedded[split].without_distractors()[0] for split in splits]), labels)

    def suspect_path(index):
        _, images, own = places[index]
        return str(images.sources[own])

    def splits_of(suspect):
        return {split for split, _, _ in (places[suspect.image], places[suspect.neighbour])}

    rows = [{'kind': suspect.kind, 'path': suspect_path(suspect.image), 'label': names[labels[suspect.image]],
             'suggested_label': '' if suspect.suggested is None else names[suspect.suggested],
             'score': round(suspect.score, 4), 'neighbour': suspect_path(suspect.neighbour),
             'note': note(suspect, splits_of(suspect))}
            for suspect in found]
    write_csv(Path(out), rows, COLUMNS)
    counts = ', '.join(f'{sum(suspect.kind == kind for suspect in found):,} {kind}' for kind in suspects.KINDS)
    print(f'{len(labels):,} images of {len(names):,} classes; suspects: {counts}')
    n_same = sum(is_same(suspect) for suspect in found)
    if n_same:
        print(f'the same image in {n_same:,} of the duplicates')
    n_across = sum(suspect.kind == 'duplicate' and len(splits_of(suspect)) > 1 for suspect in found)
    if n_across:
        print(f'one image in one split, and one in another, in {n_across:,} of the duplicates')
    sheet = Path(out).with_suffix('.png')
    sheet.unlink(missing_ok=True)                          # an earlier call may have left one
    if found:
        draw(found, places, names[labels], sheet)
        print(f'all: {out}\nthe first of each kind: {sheet}')


def is_same(suspect):
    return suspect.kind == 'duplicate' and suspect.score == suspects.SAME


def note(suspect, splits=()):
    """The note on a Suspect. splits: the names of the splits of its two images."""
    same = ['same image'] if is_same(suspect) else []
    across = [' and '.join(sorted(splits))] if suspect.kind == 'duplicate' and len(splits) > 1 else []
    return ', '.join(same + across)


@plotting.styled
def draw(found, places, names, file):
    """
    The first suspects of each kind beside their neighbours, as the network sees them, with their labels. places:
    [(split, its ImageSet, index in it)] of all images; names: the class of each.
    """
    def tile(index, colour, below=''):
        _, images, own = places[index]
        return pictures.pixels(images, own), colour, f'{pictures.short(names[index], 20)}\n{below}'.strip()

    rows = []
    for kind, title in TITLES.items():
        pairs = [[tile(suspect.image, plotting.WRONG), tile(suspect.neighbour, plotting.GREY, note(suspect))]
                 for suspect in [suspect for suspect in found if suspect.kind == kind][:N_ROWS.get(kind, 2) * N_PAIRS]]
        rows += [(title if not start else '', sum(pairs[start:start + N_PAIRS], []))
                 for start in range(0, len(pairs), N_PAIRS)]
    plotting.save(plotting.panel(rows, breaks=range(2, 2 * N_PAIRS, 2)), file)
