"""A script of runs: reads the commands `python main.py ...` of one, and writes one."""
import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from utilities import stopping
from utilities.errors import UserError
from utilities.files import write_text

MARKER = '# Launch_Runs.py executes this script with --list'       # the second line of a script that may be executed
NAME = r'[A-Za-z_][A-Za-z_0-9]*'
ASSIGNMENT = re.compile(rf'({NAME})=')
VARIABLE = rf'\$(?:({NAME})|\{{({NAME})\}})'
ARGUMENT = re.compile(r'\$(\d|\{\d+\})')                          # an argument of the script
PIECE = re.compile(rf"""
    (?P<heading>^[ \t]*{'"' * 3}[^\n]*{'"' * 3}[ \t]*$)             # in the scripts of the public code
  | (?P<joined>\\\n)
  | (?P<comment>\#[^\n]*)
  | (?P<blank>[ \t]+)
  | (?P<end>\n)
  | (?P<single>'[^']*')
  | (?P<double>"(?:[^"\\]|\\.|\\\n)*")
  | (?P<escaped>\\.)
  | (?P<variable>{VARIABLE})
  | (?P<plain>[^\s'"\\$]+|.)
""", re.VERBOSE | re.MULTILINE)
IN_DOUBLE_QUOTES = re.compile(rf'\\(?P<escaped>[$`"\\\n])|{VARIABLE}|(?P<shell>[$`])')
SHELL = re.compile(r'[;&|<>()$`\\]|[=:]~|^~(?!/|$)')                # text that only a shell can interpret
FILES = re.compile(r'[*?[]|\{.*(,|\.\.).*\}')                     # text that a shell replaces by words


def commands(file):
    """
    The arguments of main.py in each run of a script: a list of lists of strings.

    A file whose first line begins with #! and whose second line is MARKER is executed by bash with --list, and prints
    its commands. No other file is executed: its lines are commands `python main.py ...`, assignments NAME=VALUE,
    comments, and headings within three double quotes. Words, quotes and variables are read as bash reads them. $NAME is
    replaced by the value that the file has assigned to it, otherwise by the variable of the environment. Raises
    UserError for any other line, and for what a shell would replace by the names of files or by several words.
    """
    text = read(file)
    first, _, rest = text.partition('\n')
    if first.startswith('#!') and rest.partition('\n')[0].rstrip() == MARKER:
        text = listed_by(file)
    found = []
    assigned = {}
    for number, words in lines_of_words(text):
        arguments = main_arguments(words, assigned, f'{file}, line {number}')
        if arguments is not None:
            found.append(arguments)
    if not found:
        raise UserError(f'{file}: there is no line python main.py ... in it')
    return found


def read(file):
    try:
        return Path(file).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{file}: not a script of runs ({getattr(error, "strerror", None) or error})') from None


def listed_by(file):
    """The output of the script when it is executed with --list. Raises KeyboardInterrupt where a stop was requested."""
    command = ['bash', str(file), '--list']
    print(f'Executing {shlex.join(command)}', file=sys.stderr, flush=True)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as listing:
        try:
            while listing.returncode is None:
                stopping.check()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    listed, errors = listing.communicate(timeout=stopping.POLL)
        except KeyboardInterrupt:
            listing.kill()
            raise
    stopping.check()                                  # Ctrl-C on a terminal also ends the script itself
    if listing.returncode:
        reason = (errors.strip().splitlines() or [f'exit code {listing.returncode}'])[-1]
        raise UserError(f'{file} --list failed: {reason}')
    return listed


def lines_of_words(text):
    """
    Yields (number, words) for each line, joined to the next one where it ends with a backslash or within quotes. A
    word is a list of pieces: (kind, a name of a group in PIECE; text).
    """
    position = 0
    number = lines = 1                # the line that words begin in, and the lines so far
    words = []
    word = []
    while position < len(text):
        piece = PIECE.match(text, position)
        kind = piece.lastgroup
        part = piece[0]
        if kind == 'comment' and word:                            # within a word
            kind = 'plain'
            part = '#'
        position += len(part)
        lines += part.count('\n')
        if kind in ('blank', 'end') and word:
            words.append(word)
            word = []
        if kind == 'end':
            yield number, words
            number = lines
            words = []
        elif kind in ('single', 'double', 'escaped', 'variable', 'plain'):
            word.append((kind, part))
    yield number, [*words, word] if word else words


def main_arguments(words, assigned, where):
    """
    The arguments of main.py in a line, given as its words; None for a line that is no command.

    assigned: {name: value} of the lines before, to which an assignment is added. where: names the line in errors.
    """
    if not words:
        return None
    written = [''.join(text for _, text in word) for word in words]
    kind, start = words[-1][0]
    assignment = kind == 'plain' and written[:-1] in ([], ['export']) and ASSIGNMENT.match(start)
    if assignment:
        name = assignment[1]
        value = [(kind, start[assignment.end():]), *words[-1][1:]]
        # an argument of the script is taken from the environment, under the name that it is assigned to
        if ARGUMENT.fullmatch(written[-1][assignment.end():].strip('"')):
            value = [('variable', f'${name}')]
        quoted = [('double', f'"{text}"') if kind == 'variable' else (kind, text) for kind, text in value]
        assigned[name] = ''.join(expanded(quoted, assigned, where))           # the value of a variable is not divided
        return None
    if not written[0].split('/')[-1].startswith('python') or written[1:2] not in (['main.py'], ['./main.py']):
        raise UserError(f'{where}: expected python main.py ..., not {" ".join(written[:3])}; a script with loops must '
                        f'print its commands when it is given --list, and have the second line "{MARKER}" '
                        '(docs/run_scripts.md)')
    return [part for word in words[2:] for part in expanded(word, assigned, where)]


def expanded(word, assigned, where):
    """
    The words that bash makes of a word: several or none where the value of a variable outside quotes has blanks or is
    empty. Raises UserError for a word that only a shell can read.
    """
    written = ''.join(text for _, text in word)
    bare = ''.join(text if kind == 'plain' else '\0' for kind, text in word)          # the text outside quotes
    if '"' in bare or "'" in bare:
        raise UserError(f'{where}: no closing quotation')
    refuse_shell(SHELL.search(bare), written, where)
    if FILES.search(bare):
        raise UserError(f'{where}: a shell would replace {written} by names of files or by several words; write it in '
                        'quotes')
    if bare.startswith('~'):
        word = [('double', '"$HOME"'), ('plain', word[0][1][1:]), *word[1:]]
    found = []
    current = None
    for kind, text in word:
        if kind != 'variable':
            current = (current or '') + unquoted(kind, text, assigned, where)
            continue
        value = unquoted('double', f'"{text}"', assigned, where)
        if re.search('[*?[]', value):
            raise UserError(f'{where}: a shell may replace the value of {text}, {value}, by names of files; write '
                            f'"{text}"')
        for part in filter(None, re.split(r'([ \t\n]+)', value)):
            if part[0] not in ' \t\n':
                current = (current or '') + part
            elif current is not None:
                found.append(current)
                current = None
    return found if current is None else [*found, current]


def unquoted(kind, text, assigned, where):
    """The text of a piece without its quotes, with the values of the variables within double quotes."""
    def value(match):
        if match['escaped']:
            return match['escaped'].strip('\n')
        refuse_shell(match['shell'], text, where)
        name = match[2] or match[3]
        found = assigned.get(name, os.environ.get(name))
        if found is None:
            raise UserError(f'{where}: ${name} has no value; set it in the file, or in the environment, as in: '
                            f'{name}=VALUE python Launch_Runs.py ...')
        return found

    if kind == 'double':
        return IN_DOUBLE_QUOTES.sub(value, text[1:-1])
    return {'single': text[1:-1], 'escaped': text[1:], 'plain': text}[kind]


def refuse_shell(found, written, where):
    """Raises UserError if something is found in a word that only a shell can interpret."""
    argument = ARGUMENT.search(written)
    if found and argument:
        raise UserError(f'{where}: {argument[0]} is an argument of a script, and this file is not executed; write a '
                        'variable such as $gpu, and set it in the environment, as in: gpu=0 python Launch_Runs.py ...')
    if found:
        raise UserError(f'{where}: only a shell can interpret {written}; write plain commands, or set the variable')


def write(file, runs):
    """Writes a script, for bash or for Launch_Runs.py. runs: the arguments of main.py in each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, ''.join(f'{shlex.join(["python", "main.py", *arguments])}\n' for arguments in runs))
