"""Retrieve_Images.py suspects: embeds labelled photos, and writes the suspects among them to files."""
from pathlib import Path

import numpy as np
import torch

import configuration
import datasets
import evaluation
import parameters
import parts
from datasets import ImageSet, folder, image_list
from datasets.base import note_ignored
from evaluation import pictures
from evaluation.protocol import note_collapse
from flags.command_line import flags_in
from retrieval import loading, suspects
from utilities import device, plotting
from utilities.errors import UserError
from utilities.files import require_writable, write_csv
from utilities.randomness import seed_everything

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


def review(photos, run, flags, out):
    """
    Writes the suspects among labelled photos to the CSV file `out`, and the first of each kind to a contact sheet of
    the same name, .png.

    photos: a folder with a folder of images per class; a CSV file with columns path and label; or a run folder or
            checkpoint, for the data set of the run.
    run:    the run folder or checkpoint whose network embeds the photos; if None, `photos` if that is a run, otherwise
            the pretrained backbone of --arch.
    flags:  more flags of main.py.
    """
    require_writable(out, '--out')
    if Path(out).suffix != '.csv':
        raise UserError(f'--out {out}: give a file that ends in .csv')
    configuration.require_effect(flags_in(flags), 'suspects', {*parameters.of_training(), *WITHOUT})
    splits = embedded(photos, run, flags)
    note_collapse({f'{name} split' if is_run(photos) else name: part for name, part in splits.items()})
    several = [*splits.values()]
    places = [(part.images, index) for part in several for index in range(len(part.images))]
    split_names = [split for split, part in splits.items() for _ in range(len(part.images))]
    names, labels = classes(several)
    found = suspects.find(torch.cat([part.embeddings for part in several]), labels)

    def suspect_path(index):
        images, own = places[index]
        return str(images.sources[own])

    def splits_of(suspect):
        return {split_names[index] for index in (suspect.image, suspect.neighbour)}

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
    if len(splits) > 1:
        n_across = sum(suspect.kind == 'duplicate' and len(splits_of(suspect)) > 1 for suspect in found)
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


def embedded(photos, run, flags):
    """{split: Embedded} of a run, or {'photos': Embedded} of labelled photos; arguments as for review()."""
    return embed_run(photos, flags) if is_run(photos) else embed_photos(photos, run, flags)


def classes(embedded):
    """The names of all classes of several Embedded, sorted, and the label of each image by their order: [C], [N]."""
    names = np.concatenate([np.array(part.images.class_names)[part.images.labels] for part in embedded])
    return np.unique(names, return_inverse=True)


def is_run(place):
    return (Path(place) / 'config.yaml').is_file() or Path(place).suffix == '.pt'


def embed_run(run, flags):
    """{split: Embedded} of the splits that the run evaluates."""
    opt = configuration.parse(['--evaluate', str(run), *flags])
    built = parts.restore(opt, run)
    splits = evaluation.splits_to_evaluate(opt, built.data)
    embedded = evaluation.embed_splits(opt, built.model, built.data, splits)
    return {split: embedded[split] for split in splits}


def embed_photos(place, run, flags):
    """{'photos': Embedded} of labelled photos, by the network of `run`, or by the features of a pretrained backbone."""
    of_network = ['--evaluate', str(run)] if run else ['--eval_features', '--eval_normalize']
    opt = configuration.parse([*of_network, *flags])
    are_of_run = not any(flag.startswith('--csv_columns') for flag in flags)
    table = labelled(Path(place), () if are_of_run else opt.csv_columns)
    datasets.check_names(table)
    note_ignored(table.ignored)
    if opt.pca:
        raise UserError(f'--pca {opt.pca}: its components are fitted on the training images; give --pca 0')
    if run:
        model = loading.restore(opt, run)[0].model
    else:
        opt.device = device.select(opt)
        seed_everything(opt.seed)                          # --not_pretrained draws random weights
        model = parts.build_network(opt, parts.build_backbone(opt))
    if opt.skip_bad_images:
        table = datasets.without_bad_images(table)
        if not table.paths:
            raise UserError(f'{place}: no image can be read')
    images = ImageSet(table, range(len(table.paths)), datasets.pipelines(opt, model.input_size)[1])
    embedded = evaluation.embed(opt, model, images, 'photos', opt.eval_features, opt.eval_autocast)
    return evaluation.as_evaluated(opt, {'photos': embedded})


def labelled(place, columns=()):
    """
    The ImageTable of a CSV file (columns: of --csv_columns), of `place`/images if there is such a folder, or of the
    class folders in `place`.
    """
    if place.is_file():
        return image_list.read(place, place.parent, columns)
    if not place.is_dir():
        raise UserError(f'{place}: there is no such folder of photos, CSV file, run folder or checkpoint')
    table = folder.in_folders(place / 'images' if (place / 'images').is_dir() else place)
    if not table.paths:
        raise UserError(f'{place}: no images; expected one folder of images per class')
    return table


@plotting.styled
def draw(found, places, names, file):
    """The first suspects of each kind beside their neighbours, as the network sees them, with their labels."""
    def tile(index, colour, below=''):
        return pictures.pixels(*places[index]), colour, f'{pictures.short(names[index], 20)}\n{below}'.strip()

    rows = []
    for kind, title in TITLES.items():
        pairs = [[tile(suspect.image, plotting.WRONG), tile(suspect.neighbour, plotting.GREY, note(suspect))]
                 for suspect in [suspect for suspect in found if suspect.kind == kind][:N_ROWS.get(kind, 2) * N_PAIRS]]
        rows += [(title if not start else '', sum(pairs[start:start + N_PAIRS], []))
                 for start in range(0, len(pairs), N_PAIRS)]
    plotting.save(plotting.panel(rows, breaks=range(2, 2 * N_PAIRS, 2)), file)
