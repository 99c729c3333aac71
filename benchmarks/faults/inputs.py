"""Faults of input: YAML, CSV and command lines with a few characters or words changed."""
import functools
import os
import re
import shlex
import shutil
import signal

from benchmarks.faults.runs import outcome, start
from records import run_folder

PATIENCE = 15                                  # seconds after which a run with mutated input is asked to stop
NASTY = ['', '0', '-1', '9', '1e400', '9' * 25, '9' * 400, '9' * 5000, '0x10', '1_0', '.5', 'nan', '-inf', 'true',
         'null', '~', '2001-01-01', '12:30', '!!int abc', '!!binary a', '{a: 1}', '[1, [2]]',
         '"', "'", ': ', '- ', '#', '%', '=', ' ', '--', '\0', '\udc80', '\n', '\t', '−', 'é', '\u2028', '/', '..',
         '@1', '_', '<<: *a', '? x', '|\n', 'k' * 300]


def mutated(text, generator):
    """A text with one or two words replaced by something nasty, or characters removed, repeated or replaced."""
    for _ in range(1 + (generator.random() < .3)):
        words = list(re.finditer(r'[\w.@-]+', text))
        if words and generator.random() < .6:
            start, end = generator.choice(words).span()
            text = text[:start] + generator.choice(NASTY) + text[end:]
            continue
        place = generator.randrange(len(text) + 1)
        text = generator.choice([
            text[:place] + generator.choice(NASTY) + text[place:],
            text[:place] + text[place + 1:],
            text[:place] + text[place:place + 8] + text[place:],
            text[:place] + chr(generator.randrange(1, 256)) + text[place + 1:]])
    return text


def survives_input(lab, arguments):
    """None where main.py ends with 0 or 2; after PATIENCE seconds of work, it must stop when it is asked."""
    child = start([*arguments, '--save_path', 'runs'], functools.partial(os.chdir, lab.folder))
    if child.code(PATIENCE) is None:
        child.send(signal.SIGTERM)
    diverged = {1} if 'not finite' in child.text else set()             # such as with a learning rate of 9001
    problem = outcome(child, {0, 2, 130} | diverged)
    return problem and f'{shlex.join(map(str, arguments))!r}: {problem}'


def mutated_yaml(lab, n):
    """A --config file with mutated text."""
    settings = settings_in(lab.arguments('plain', 'mutated')) | {'n_epochs': '0'}
    del settings['save_path']                                # survives_input() gives another
    text = ''.join(f'{name}: {value}\n' for name, value in settings.items())
    file = lab.folder / 'mutated.yaml'
    for _ in range(n):
        write(file, mutated(text, lab.random))
        problem = survives_input(lab, ['--config', file])
        if problem:
            kept = lab.folder / f'failed_{lab.group()}.yaml'
            shutil.copy(file, kept)
            problem += f' ({kept})'
        yield problem


def settings_in(arguments):
    """The arguments of a command line -> {flag: its value, or a list of several, as YAML}."""
    values = {}
    for argument in map(str, arguments):
        if argument.startswith('--'):
            flag = argument.removeprefix('--')
            values[flag] = []
        else:
            values[flag].append(argument)
    return {flag: several if len(several) > 1 else ''.join(several) or 'true' for flag, several in values.items()}


def mutated_csv(lab, n):
    """A --csv file of images with mutated text."""
    file = lab.folder / 'mutated.csv'
    images = sorted((lab.folder / 'data').rglob('*.png'))
    text = 'path,label\n' + ''.join(f'{image},{image.parent.name}\n' for image in images)
    for _ in range(n):
        write(file, mutated(text, lab.random))
        yield survives_input(lab, [*lab.arguments('plain', 'mutated'), '--n_epochs', '0', '--csv', file])


def changed_data(lab, n):
    """The --csv file of a run that has begun changes so that classes and their sizes stay: a resume refuses it."""
    file = lab.folder / 'list.csv'
    group = lab.group()
    images = sorted((lab.folder / 'data').rglob('*.png'))
    rows = [[str(image), image.parent.name, '0', '0', '8', '8'] for image in images]
    head = ['path', 'label', 'x1', 'y1', 'x2', 'y2']

    def save(head, rows):
        write(file, '\n'.join(map(','.join, [head, *rows])))

    save(head, rows)
    folder = lab.done([*lab.arguments('plain', group), '--n_epochs', 1, '--label_noise', .2, '--csv', file],
                      lab.place(group))
    for i in range(n):
        changed = [list(row) for row in rows]
        columns = list(head)
        one, other = lab.random.sample(range(len(rows)), 2)
        if i % 4 == 0:                                     # a box
            changed[one][lab.random.choice([4, 5])] = str(lab.random.randrange(1, 8))
        elif i % 4 == 1:                                   # two rows change places
            changed[one], changed[other] = changed[other], changed[one]
        elif i % 4 == 2:                                   # two files change places, and so their labels
            changed[one][0], changed[other][0] = changed[other][0], changed[one][0]
        else:
            column = lab.random.randrange(len(head))
            columns[column] = lab.random.choice([columns[column].upper(), columns[column] + ' ', columns[column - 1]])
        save(columns, changed)
        child = start(['--resume', folder, '--n_epochs', 2])
        yield outcome(child, {2})


def wrong_splits(lab, n):
    """
    A --splits file with a key that is unknown or there twice, or a class that is listed twice or not in the data:
    refused in a sentence. Class names that are numbers: the classes with these names are trained and tested.
    """
    images = lab.folder / 'numbers.csv'
    file = lab.folder / 'classes.yaml'
    classes = lab.folder / 'data' / 'images'
    names = [str(number) for number in range(len([*classes.iterdir()]))]
    write(images, 'path,label\n' + ''.join(f'{image},{int(image.parent.name[-2:])}\n'
                                           for image in sorted(classes.rglob('*.png'))))
    for number in range(n):
        lab.random.shuffle(names)
        group = lab.group()
        train = names[:6]
        test = names[6:-1]
        wrong = number % 5
        further = [('val', names[-1:]),                    # the right one
                   ('Val', test[:1]),                      # an unknown key
                   ('train', test[:1]),                    # a key that is there twice
                   ('val', train[:1]),                     # a class that is listed twice
                   ('val', ['12'])]                        # a class that is not in the data
        lists = [('train', train), ('test', test), further[wrong]]
        write(file, ''.join(f'{key}: [{", ".join(listed)}]\n' for key, listed in lists))
        problem = outcome(start([*lab.arguments('plain', group), '--n_epochs', 0, '--csv', images, '--splits', file]),
                          {2 if wrong else 0})
        if not problem and not wrong:
            recorded = run_folder.read_splits(lab.place(group))['splits']
            if any({*recorded[split]['classes']} != {*listed} for split, listed in lists):
                problem = 'other classes are trained or tested'
        yield problem and f'{file.read_text()}: {problem}'


def mutated_command_lines(lab, n):
    """A command line with mutated, missing, repeated or exchanged words."""
    words = [str(word) for word in lab.arguments('plain', 'mutated')] + ['--n_epochs', '0']
    for _ in range(n):
        arguments = list(words)
        for _ in range(1 + (lab.random.random() < .3)):
            place, other = (lab.random.randrange(len(arguments)) for _ in range(2))
            how = lab.random.choice(['mutate', 'mutate', 'mutate', 'drop', 'repeat', 'exchange'])
            if how == 'mutate':
                arguments[place] = mutated(arguments[place], lab.random).replace('\0', '')      # no shell passes it on
            elif how == 'drop':
                del arguments[place]
            elif how == 'repeat':
                arguments.insert(other, arguments[place])
            else:
                arguments[place], arguments[other] = arguments[other], arguments[place]
        yield survives_input(lab, arguments)


def write(file, text):
    file.write_bytes(text.encode('utf-8', 'surrogateescape'))
