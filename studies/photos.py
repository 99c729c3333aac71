"""
The answers of the study on photos: the questions of photos.yaml, asked of the rows of Photos_Runs.sh and of
Frozen_Runs.sh, as tables of docs/results.md and README.md, and the picture of density against R@1.
"""
import functools
from pathlib import Path

import numpy as np
import yaml

from records.columns import Column
from reports import final_rows, groups
from studies import class_values, estimates
from studies.pages import rounded, span, with_interval
from utilities import plotting
from utilities.text_tables import ends, markdown

FOLDER = Path(__file__).parent
ROWS = FOLDER / 'rows'
TIERS = {'finetuned': 'Photos', 'frozen': 'Frozen'}           # {part of photos.yaml: prefix of groups}
TITLES = {'finetuned': 'fine-tuned', 'frozen': 'frozen features'}
# words of the tables in place of an answer
NOT_RUN = 'not run yet'
TOO_FEW = 'too few seeds'
FIXED = ('Untrained', 'Untrained_512')                        # settings without randomness
MAP, RECALL = 'map_at_r', 'e_recall@1'
DENSITY = 'rho_spectrum@2'                                    # on the training classes
DRAWS = 2000                                                  # samples of a bootstrap


@functools.cache
def registered():
    return yaml.safe_load((FOLDER / 'photos.yaml').read_text(encoding='utf-8'))


def class_file(file):
    """The file with MAP@R per test class beside a file of rows."""
    return file.with_name(f'{file.stem}_classes.csv')


def read(tier, rows=ROWS):
    """
    The runs of a tier: {set: ({setting: {seed: Run}}, {setting: {seed: (MAP@R per class [C], n queries [C])}})}.
    Raises UserError where runs on one set were evaluated on different test images.
    """
    file = rows / f'{TIERS[tier].lower()}.csv'
    found = {name: ({}, {}) for name in registered()['sets']}
    in_rows = {(run.group, run.seed): run for run in final_rows.read(file)}
    for place, part in enumerate((in_rows, class_values.read(class_file(file)))):
        for (group, seed), content in part.items():
            _, name, setting = group.split('_', 2)
            if name in found:                                 # other sets have no questions
                found[name][place].setdefault(setting, {})[seed] = content
    for name, (runs, _) in found.items():
        groups.require_one_test_set(name, [run for of_seeds in runs.values() for run in of_seeds.values()])
    return found


def common_seeds(question, runs):
    """The seeds that all settings of a question have; none if one of these has no run."""
    names = settings_of(question)
    return estimates.common_seeds(runs, names, FIXED) if names <= runs.keys() else set()


def points(runs, metric, split='test', settings=()):
    """
    {setting: {seed: points}} of a metric at the last epoch. settings: by default all but the trained ones with 512
    dimensions: a seed gives these another initial layer, so that they do not share its effect.
    """
    column = Column(split, metric).name
    settings = settings or [setting for setting in runs if not setting.endswith('_512') or setting in FIXED]
    return {setting: {seed: 100 * run.rows[-1][column] for seed, run in runs[setting].items()} for setting in settings}


def lost_by_selection(runs, settings, metric):
    """
    {setting: {seed: points}}: the best value of a metric on the test classes over the epochs, minus the value at the
    epoch that is best on the validation classes.
    """
    test, val = Column('test', metric).name, Column('val', metric).name
    found = {}
    for setting in settings:
        for seed, run in runs[setting].items():
            rows = [row for row in run.rows if test in row and val in row]
            lost = max(row[test] for row in rows) - max(rows, key=lambda row: row[val])[test]
            found.setdefault(setting, {})[seed] = 100 * lost
    return found


def effect(question, runs, metric, level):
    """The Estimate of a question's effect in a metric."""
    if question.get('paired'):
        tested = points(runs, metric, settings=settings_of(question))
        pairs = {seed: np.mean([tested[setting][seed] for setting in question['one']])
                 - np.mean([tested[setting][seed] for setting in question['other']])
                 for seed in common_seeds(question, runs)}
        return estimates.difference({'pairs': pairs}, ['pairs'], [], level)
    tested = points(runs, metric)
    if 'spread' in question:
        return estimates.spread(tested, question['spread'], level, FIXED)
    if 'selection' in question:
        lost = lost_by_selection(runs, question['selection'], metric)
        found = estimates.difference(lost, question['selection'], [], level)
        return found._replace(low=float(np.maximum(0, found.low)))
    if 'setting' in question:
        validated = estimates.means(points(runs, metric, 'val'), question['setting'])
        chosen = question['setting'][np.argmax(validated)]
        return estimates.behind_the_best(tested, chosen, question['setting'], level, FIXED)
    if 'correlation' in question:
        names = question['correlation']
        decays = estimates.means(points(runs, DENSITY, 'train'), names)
        return estimates.correlation(decays, estimates.means(points(runs, RECALL), names), level)
    return estimates.difference(tested, question['one'], question['other'], level, FIXED)


def settings_of(question):
    """The settings that a question is about."""
    return {setting for kind in ('one', 'other', 'spread', 'selection', 'setting', 'correlation')
            for setting in question.get(kind, ())}


def over_classes(question, classes, seeds):
    """
    (low, high) of an effect in MAP@R over resampled test classes, with networks and gallery as they are: the middle
    LEVEL of a bootstrap. None where values of classes say nothing of the effect, or are not there yet.
    """
    names = settings_of(question)
    if not {'one', 'spread'} & question.keys() or not names <= classes.keys():
        return None
    if any(not seeds <= classes[name].keys() for name in names if name not in FIXED):
        return None
    sizes = next(iter(classes[min(names)].values()))[1]
    drawn = np.random.default_rng(0).multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), DRAWS) * sizes
    shares = drawn / drawn.sum(axis=1, keepdims=True)                                               # [DRAWS, C]
    means = {setting: 100 * shares @ np.mean([values for seed, (values, _) in classes[setting].items()
                                              if seed in seeds or setting in FIXED], axis=0) for setting in names}
    if 'spread' in question:
        found = np.std([means[setting] for setting in names], axis=0, ddof=1)
    else:
        found = np.mean([means[setting] for setting in question['one']], axis=0)
        found = found - np.mean([means[setting] for setting in question['other']], axis=0)
    return tuple(np.percentile(found, [50 * (1 - estimates.LEVEL), 50 * (1 + estimates.LEVEL)]))


def findings(tier, found):
    """[(question, set, Estimate in MAP@R, Estimate in R@1, answer)]; intervals of a metric hold at once with LEVEL."""
    sets = registered()['sets']
    pairs = [(question, name) for question in registered()[tier] for name in question.get('sets', sets)]
    level = estimates.simultaneous(len(pairs))
    lines = []
    for question, name in pairs:
        runs, _ = found[name]
        if not common_seeds(question, runs):
            lines.append((question, name, None, None, NOT_RUN))
            continue
        estimate = effect(question, runs, MAP, level)
        in_recall = None if 'correlation' in question else effect(question, runs, RECALL, level)
        bound = question.get('bound', registered()['bound'])
        if 'correlation' in question:
            words = {'within': f'within ± {bound:g}', 'more': 'positive', 'less': 'negative'}
        elif 'spread' in question:
            words = {'within': f'at most {bound:g} point', 'more': f'more than {bound:g} point'}
        else:
            words = {'within': f'no more than {bound:g} point apart'}
        word = estimates.answer(estimate, bound, bound if 'spread' in question else 0)
        word = TOO_FEW if np.isnan(estimate.half) else words.get(word, word)
        lines.append((question, name, estimate, in_recall, word))
    return lines


def answer_table(tier, found):
    """The table of a tier's questions: effect, interval over test classes, R@1, seeds, prediction and answer."""
    rows = []
    lines = findings(tier, found)
    answered = {question['name'] for question, *_, word in lines if word != NOT_RUN}
    for question, name, estimate, in_recall, word in lines:
        names = question.get('sets', [*found])
        is_first = name == names[0]
        if question['name'] not in answered:
            if is_first:
                rows.append([question['title'], ', '.join(names), '', '', '', '', question['predicted'], word])
            continue
        cells = ['', '', '', '']
        if estimate is not None:
            runs, classes = found[name]
            seeds = common_seeds(question, runs)
            cells = [with_interval(estimate, 2 if 'correlation' in question else 1),
                     span(over_classes(question, classes, seeds)), with_interval(in_recall), f'{len(seeds)}']
        title, predicted = (question[key] if is_first else '' for key in ('title', 'predicted'))
        rows.append([title, name, *cells, predicted, word])
    return markdown(['question', 'photos', 'effect', 'over test classes', 'R@1', 'seeds', 'predicted', 'answer'], rows)


def short_table(found):
    """The questions of all tiers that are answered on one set or more, with the answers; for the README."""
    rows = []
    n_open = 0
    for tier in TIERS:
        lines = findings(tier, found[tier])
        for question in registered()[tier]:
            of_question = [line for line in lines if line[0] is question]
            if all(word in (NOT_RUN, TOO_FEW, 'open') for *_, word in of_question):
                n_open += 1
                continue
            digits = 2 if 'correlation' in question else 1
            cells = {name: f'{word}: {with_interval(estimate, digits)}'.removesuffix(': ')
                     for _, name, estimate, _, word in of_question}
            rows.append([question['title'], TITLES[tier], *(cells.get(name, '') for name in registered()['sets'])])
    texts = []
    if rows:
        texts.append(markdown(['question', 'network', *registered()['sets'].values()], rows))
    if n_open:
        texts.append(f'Without an answer: {n_open} questions of docs/results.md.')
    return '\n\n'.join(texts)


def mean_text(tested, setting):
    """'16.4±0.3': the mean over seeds, and half of its interval by the pooled variances; '' without a run."""
    if setting not in tested:
        return ''
    estimate = estimates.difference(tested, [setting], [], fixed=FIXED)
    half = '' if setting in FIXED or np.isnan(estimate.half) else f'±{rounded(estimate.half)}'
    return f'{rounded(estimate.mean)}{half}'


def row_of_means(title, cells):
    """A row of mean_text() and the number of seeds, over [(points, setting)] of its cells; None without a run."""
    counts = [len(tested[setting]) for tested, setting in cells if setting in tested]
    if not counts:
        return None
    return [title, *(mean_text(*cell) for cell in cells), ends(counts)]


def settings_table(found):
    """The table of the fine-tuned settings on each set, the highest MAP@R on the first set first."""
    tested = [points(runs, metric) for runs, _ in found.values() for metric in (MAP, RECALL)]
    names = dict.fromkeys(setting for of_set in tested for setting in of_set)
    order = sorted(names, key=lambda setting: -estimates.mean(tested[0].get(setting, {0: 0})))
    heads = [f'{name}, {title}' for name in found for title in ('MAP@R', 'R@1')]
    rows = [row_of_means(setting, [(of_set, setting) for of_set in tested]) for setting in order]
    return markdown(['setting', *heads, 'seeds'], rows)


def losses_table(found):
    """The table of the losses on frozen features: MAP@R with default settings and after the search."""
    tested = [points(runs, MAP) for runs, _ in found.values()]
    heads = [f'{name}, {kind}' for name in found for kind in ('default', 'tuned')]
    rows = [row_of_means(loss, [(of_set, loss + end) for of_set in tested for end in ('', '_Tuned')])
            for loss in [*FIXED, *registered()['losses']]]
    return markdown(['loss', *heads, 'seeds'], filter(None, rows))


def origin(tier, found):
    """The sentences on the runs of a tier: devices, hours, commits, and the variance of its seeds."""
    runs = [run for of_set, _ in found.values() for seeds in of_set.values() for run in seeds.values()]
    devices = sorted({run.flags.get('device', '') for run in runs} - {''})
    hours = sum(float(run.flags.get('seconds') or 0) for run in runs) / 3600
    commits = sorted({run.flags.get('git_commit', '')[:8] for run in runs} - {''})
    texts = [f'{len(runs)} runs, {rounded(hours)} hours of epochs, on {", ".join(devices) or "no device"}; '
             f'commits {", ".join(commits) or "none"}.']
    for name, (of_set, _) in found.items():
        tested = points(of_set, MAP)
        variances = estimates.variances(tested, FIXED)
        if variances.freedom:
            p = estimates.equal_variances(tested, FIXED)
            common = rounded(np.sqrt(max(0, variances.seeds)), digits=2)
            residual = rounded(np.sqrt(variances.residual), digits=2)
            equal = '< 0.01' if p < .01 else f'= {rounded(p, digits=2)}'
            texts.append(f'Standard deviation of the seeds on {name}: {common} points shared by all settings '
                         f'(degrees of freedom: {variances.freedom_of_seeds}), {residual} of each setting alone '
                         f'({variances.freedom}; Bartlett: p {equal}).')
    return ' '.join(texts)


@plotting.styled
def draw_density(found, file):
    """Writes the scatter of spectral decay against R@1: a panel per set, a point per setting (means over seeds)."""
    figure = plotting.new_figure(2 * plotting.COLUMN)
    labels = []
    for axes, (name, (runs, _)) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        decays = points(runs, DENSITY, 'train')
        recalls = points(runs, RECALL)
        for setting in sorted({*runs} - {*FIXED}):
            decay = estimates.mean(decays[setting]) / 100
            recall = estimates.mean(recalls[setting])
            axes.plot(decay, recall, 'o', color=plotting.COLOURS[0])
            labels.append(axes.annotate(setting, (decay, recall), xytext=(3, -2), textcoords='offset points',
                                        fontsize=5))
        axes.set(title=registered()['sets'][name], xlabel='spectral decay of the training embeddings', ylabel='R@1')
        axes.locator_params(nbins=5)
    figure.draw_without_rendering()                           # places the axes, on which the extents of labels depend
    separate(labels)
    plotting.save(figure, file)


def separate(labels):
    """Moves the lower one of two annotations that overlap further down."""
    placed = []
    for label in sorted(labels, key=lambda label: -label.xy[1]):
        while any(label.get_window_extent().overlaps(other.get_window_extent()) for other in placed):
            x, y = label.xyann
            label.xyann = x, y - 0.5
        placed.append(label)


def tables(found):
    """{name: text} of the tables and sentences. found: {tier: read()}."""
    texts = {'photos in short': short_table(found), 'settings': settings_table(found['finetuned']),
             'losses': losses_table(found['frozen'])}
    for tier in TIERS:
        texts |= {f'{tier} answers': answer_table(tier, found[tier]), f'{tier} origin': origin(tier, found[tier])}
    return texts
