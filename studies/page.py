"""Result_Evaluations.py --study: docs/results.md, the page of the study, from a file of the final rows of its runs."""
import math
from pathlib import Path

from evaluation import titles
from records.columns import Column
from reports import runs, tables
from studies import answers, figures, study
from studies.answers import count, listed, markdown_table, p_of, signed
from studies.study import BASELINES, RECALL, SECTIONS
from utilities.errors import UserError
from utilities.files import read_csv, require_writable, require_writable_folder, write_text

METRICS = ('map_at_r', 'nmi', 'rho_spectrum@1', 'dists@intra_over_inter')
# flags of tables that have no effect on the page
NOT_OF_THE_PAGE = (*tables.FORMATS, 'rows', 'all_epochs', 'compare', 'figures', 'figure_metrics', 'script', 'seeds',
                   'with_unfinished', 'select', 'select_by', 'per_metric', 'baseline')
OF_REGULARISERS = ('h_ap', 'asi', 'ndcg', 'r_auroc', 'opis')
INTRODUCTION = """\
{} of {} on {}, which anyone can download. All networks of a data set are trained with the
same learning rate and the same number of iterations: {}. Most of them still improve at
the end, so that rankings also reflect how fast a method learns. All metrics are computed on test classes that are
disjoint from the training classes. Settings are not tuned; [claims.md](claims.md) compares tuned methods with their
controls.

The numbers of each method, with its command, stand in `studies/rows/study.csv` and, in the site that `make docs`
builds, on the page of each loss, miner and sampler.
[Result_Evaluations.py](result_evaluations.md) writes this page from the records."""
COMMANDS = """\
```bash
DATA=Datasets ./studies/Study_Runs.sh --list > study.sh
python Launch_Runs.py study.sh --workers 2
python Result_Evaluations.py --runs Training_Results --metrics e_recall@1 map_at_r \\
    --rows studies/rows/study.csv --all_epochs
DATA=Datasets ./studies/Study_Searches.sh
python Evaluate_Ensemble.py Studies/*/reproductions/*/omniglot/*_fold*_s*/ \\
    --evaluation_metrics e_recall@1 map_at_r nmi --rows studies/rows/folds.csv
python Result_Evaluations.py --runs studies/rows/study.csv --folds studies/rows/folds.csv --study docs/results.md
```

[study.md](study.md) says which data the folder `Datasets` holds, and how to run a part of the
study. All runs of a data set share these flags. If a method overrides a shared flag, its command has the flag twice,
and the last value is used:"""
EXPLAINED = """\
As in Roth et al., ICML 2020, nothing is tuned per method. One learning rate per data set was chosen by hand; proxies
and class weights have the learning rate 0.01. All other flags have their defaults, unless a command names them.

- ± is half of the 95 % confidence interval over seeds (Student's t), not corrected for multiple comparisons.
- Metrics are those of the last epoch, except for *best epoch*: the highest R@1 over the epochs of a run, averaged over
  seeds. It is optimistic, since the epoch is selected on the test classes. *gap* is *best epoch* minus R@1 at the last
  epoch.
- Δ is a difference of R@1 at the last epoch, in points, paired over the seeds that both methods have; p is that of the
  paired t-test between a method and the one that it extends. p-values are corrected by Holm's method over all tests of
  a table, so that an interval can exclude 0 while p is above 0.05. With three seeds, the tests have little power.
- R@1, MAP@R, NMI, H-AP, ASI and NDCG are in percent, and higher is better. A lower OPIS and a lower intra/inter are
  better. [metrics.md](metrics.md) defines the metrics. rho@1 is infinite where the embeddings do not span all
  dimensions.
- Bold: the highest mean, which may not differ significantly from others."""


def report(opt, listed_runs):
    """
    Writes --study and its figures, and prints their files.

    listed_runs: {section: the arguments of main.py in each run} of studies/Study_Runs.sh.
    """
    others = [f'--{name}' for name in NOT_OF_THE_PAGE if getattr(opt, name) not in (None, False, [], 'last')]
    if others:
        raise UserError('--study writes only the page and its figures, from the last epoch of every finished run; '
                        f'leave out {listed(others)}')
    require_writable(opt.study, '--study')
    require_writable_folder(Path(opt.study).with_suffix(''), '--study')
    page = Path(opt.study)
    if page.suffix != '.md':
        raise UserError(f'--study {page}: expected the name of a page that ends with .md, such as docs/results.md')
    folds = read_csv(Path(opt.folds)) if opt.folds else []
    if opt.folds and not folds:
        raise UserError(f'--folds {opt.folds}: no such file, or no line in it; Evaluate_Ensemble.py --rows writes it')
    found = study.gather(runs.collect(opt), listed_runs)
    text = '\n'.join(lines_of(found, folds, page.stem))
    files = figures.draw(found, page.with_suffix(''))
    write_text(page, f'{text}\n')
    print('\n'.join([f'page: {page}', *(f'figure: {file}' for file in files), *found.notes]))


def lines_of(found, folds, folder):
    """The lines of the page. folds: the lines of --folds; folder: of the figures, as the page names it."""
    methods = [method for method in found.methods.values() if method.runs]
    n_runs = sum(len(method.runs) for method in methods)
    data = listed(dict.fromkeys(study.named(method.data) for method in methods))
    lines = ['# Results of the study', '',
             INTRODUCTION.format(count(n_runs, 'run'), count(len(methods), 'method'), data, iterations(found)), '',
             '## Answers', '', *answers.answers(found, folds), *reproduction(found), '',
             '## Protocol 1: no tuning', '', EXPLAINED]
    for section in SECTIONS:
        lines += ['', f'### {SECTIONS[section][0]}', '', *of_section(found, section, folder)]
    return [*lines, '', '## Protocol 2: tuned on folds', '', *answers.of_folds(found, folds)]


def rows_of(found, folder):
    """The lines of the page of all rows, which `make docs` makes: tables by section, then each method by itself."""
    methods = [method for method in found.methods.values() if method.runs]
    lines = ['# Rows of the study', '', 'Every method of the study in numbers; [results.md](results.md) explains the '
             'columns and answers the questions.']
    for section in SECTIONS:
        lines += ['', f'## {SECTIONS[section][0]}', '', *of_section(found, section, folder, with_tables=True)]
    lines += ['', '## Methods', '', 'R@1 after each epoch is the mean over seeds. The first number is the R@1 of the '
              'network at initialisation, with the random weights of its embedding layer.']
    for name in sorted({method.name for method in methods}, key=str.casefold):
        lines += ['', f'### {name}', '']
        lines += [line for method in methods if method.name == name for line in of_method(method)]
    return lines


def iterations(found):
    """'6 epochs on Omniglot and 2 epochs on Grocery'"""
    epochs = {data: max(run.rows[-1]['epoch'] for method in found.trained(data) for run in method.runs.values())
              for data in BASELINES if found.trained(data)}
    return listed(f'{n} epochs on {study.named(data)}' for data, n in epochs.items())


def reproduction(found):
    origins = found.origins()
    lines = ['## How to reproduce', '', COMMANDS, '']
    for data in dict.fromkeys(method.data for method in found.methods.values()):
        commands = [flags_of(method.command) for method in found.methods.values()
                    if method.data == data and method.runs]
        if commands:
            shared = [flag for flag in commands[0] if all(flag in command for command in commands)]
            lines.append(f'- {study.named(data)}: `{" ".join(shared)}`')
    for name, title in (('git_commit', 'Commit'), ('versions', 'Packages')):
        counts = origins[name]
        texts = [(study.packages(text) if name == 'versions' and text.startswith('{') else f'`{text}`')
                 + (f' ({count(n, "run")})' if len(counts) > 1 else '') for text, n in counts.items()]
        lines += ['', f'{title}: {"; ".join(texts)}.']
    if found.notes:
        lines += ['', 'Runs that do not count:', '', *(f'- {note}' for note in found.notes)]
    return lines


def flags_of(command):
    """The flags of a command, each with its values as one text, but for the seed."""
    return [flag for flag in map(str.strip, command.replace(' --', '\n--').splitlines())
            if flag.startswith('--') and not flag.startswith('--seed ')]


def of_section(found, section, folder, with_tables=False):
    """The lines of a section: a table for each data set, or its figures."""
    lines = [SECTIONS[section][1]]
    for data, names in found.sections.get(section, {}).items():
        methods = found.of(section, data)
        lines += ['', f'#### {SECTIONS[section][0]}, {study.named(data)}', '',
                  seeds_of([found.methods[name] for name in names])]
        if methods and with_tables:
            lines += ['', *table(found, section, data, methods)]
        elif methods:
            lines += ['', *(f'![{what}]({folder}/{figures.of(section, data, file)})\n' for what, file in (
                ('R@1, mean and 95 % interval over seeds', 'means'),
                ('R@1 over epochs, mean and one standard deviation over seeds', 'curves')))]
            if (section, data) in [part[:2] for part in found.correlated()]:
                lines += [f'![R@1 against other metrics]({folder}/{figures.of(section, data, "correlations")})']
    return lines


def seeds_of(methods):
    """Which seeds the methods have, and which of those in the script are left out."""
    missing = {}
    for method in methods:
        absent = tuple(seed for seed in method.expected if seed not in method.runs)
        missing.setdefault((absent, not method.runs), []).append(method.name)
    n_runs = sum(len(method.runs) for method in methods)
    if not n_runs:
        return f'Not run: all {len(methods)} methods.'
    text = [f'{count(sum(bool(method.runs) for method in methods), "method")}, {count(n_runs, "run")}.']
    for (absent, are_all), names in missing.items():
        if absent:
            who = 'all methods' if len(names) == len(methods) else listed(names)
            text.append(f'Not run: {who}.' if are_all else
                        f'Not run: seed{"s" * (len(absent) > 1)} {listed(map(str, absent))} of {who}.')
    return ' '.join(text)


def table(found, section, data, methods):
    """The lines of the table of a section on a data set."""
    shown = [metric for metric in (*METRICS, *(OF_REGULARISERS if section == 'regularisers' else ()))
             if any(method.has(metric) for method in methods)]
    baseline = found.found(data, BASELINES.get(data, ''))
    references = [found.reference(method) for method in methods]
    heads = ['method', 'seeds', 'R@1', 'best epoch', 'gap', *(titles.metric(Column('test', one).name) for one in shown)]
    heads += [f'Δ to {baseline.name}'] if baseline else []
    heads += ['extends', 'Δ to it', 'p'] if any(references) else []
    pairs = [reference and study.difference(method.values(), reference.values())
             for method, reference in zip(methods, references, strict=True)]
    highest = max(percent(method.mean()) for method in methods)
    rows = []
    for method, reference, pair, p in zip(methods, references, pairs, study.corrected(pairs), strict=True):
        recall = interval(method, RECALL)
        row = [f'[{method.name}](#{method.name.casefold()})', len(method.runs),
               f'**{recall}**' if percent(method.mean()) == highest else recall,
               tables.printed(method.mean_at_best(), figures.NAME, 1),
               tables.printed(method.mean_at_best() - method.mean(), figures.NAME, 1),
               *(interval(method, metric, with_half=metric in METRICS[:2]) for metric in shown)]
        row += [signed(study.difference(method.values(), baseline.values()) if method is not baseline else None)
                ] if baseline else []
        row += [reference.name if reference else '', signed(pair), p_of(p)] if any(references) else []
        rows.append(row)
    return markdown_table(heads, rows)


def percent(value):
    return round(100 * value, 1)


def interval(method, metric, with_half=True):
    """'81.2 ± 0.3' of a metric that the method has, else ''."""
    if not method.has(metric):
        return ''
    name, (mean, half) = Column('test', metric).name, method.interval(metric)
    return tables.printed(mean, name, 1) + (
        f' ± {tables.printed(half, name, 1)}' if with_half and not math.isnan(half) else '')


def of_method(method):
    """The lines of a method on one data set: its numbers, its curve, its command."""
    numbers = [f'{titles.metric(Column("test", metric).name)} {interval(method, metric)}'
               for metric in (RECALL, *METRICS) if method.has(metric)]
    _, curve = method.curve()
    lines = [f'{study.named(method.data)}, {count(len(method.runs), "seed")}: {", ".join(numbers)}.', '',
             f'R@1 after each epoch: {", ".join(f"{100 * value:.1f}" for value in curve.mean(axis=1))}', '']
    return [*lines, '```bash', method.command, '```', ''] if method.command else lines
