"""A script of runs: reads the commands `python main.py ...` of one, and writes one."""
import os
import shlex
import subprocess
from pathlib import Path

from utilities.errors import UserError
from utilities.files import write_text

SHELL = set(';&|<>()')                                            # characters that a shell would interpret


def commands(file):
    """
    The arguments of main.py in each run of a script: a list of lists of strings.

    A script that knows --list is executed with it, and prints its commands. In any other, every line must be a command
    `python main.py ...`; variables of the environment ($datapath) are replaced by their values. Raises UserError for
    a line that is neither.
    """
    text = read(file)
    if '--list' in text:
        text = listed_by(file)
    found = []
    for number, line in logical_lines(text):
        arguments = arguments_of(line, f'{file}, line {number}')
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
    """What the script prints when it is executed with --list."""
    listed = subprocess.run(['bash', str(file), '--list'], capture_output=True, text=True)
    if listed.returncode:
        reason = (listed.stderr.strip().splitlines() or [f'exit code {listed.returncode}'])[-1]
        raise UserError(f'{file} --list failed: {reason}')
    return listed.stdout


def logical_lines(text):
    """Yields (number, line); a line that ends with a backslash is joined to the next one."""
    number, parts = 1, []
    for count, line in enumerate(text.splitlines(), start=1):
        parts.append(line.removesuffix('\\'))
        if not line.endswith('\\'):
            yield number, ' '.join(parts)
            number, parts = count + 1, []
    if parts:
        yield number, ' '.join(parts)


def arguments_of(line, where):
    """The arguments of main.py in a line; None for an empty line or a comment. where: names the line in errors."""
    words = split(os.path.expandvars(line), where)
    if not words:
        return None
    if not words[0].split('/')[-1].startswith('python') or words[1:2] not in (['main.py'], ['./main.py']):
        raise UserError(f'{where}: expected python main.py ..., not {" ".join(words)[:60]}; a script with loops '
                        'must print its commands when it is given --list, as those that source run_lines.sh do')
    shell = [word for word in words if set(word) <= SHELL or '$' in word or '`' in word]
    if shell:
        raise UserError(f'{where}: {shell[0]} is for a shell to read; write plain commands, or set the variable')
    return words[2:]


def split(line, where):
    """The words of a line, as a shell would split it, without its comment."""
    words = shlex.shlex(line, posix=True, punctuation_chars=''.join(SHELL))
    words.whitespace_split, words.commenters = True, '#'
    try:
        return list(words)
    except ValueError as error:
        raise UserError(f'{where}: {str(error).lower()}') from None


def write(file, runs):
    """Writes a script, for bash or for Launch_Runs.py. runs: the arguments of main.py in each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, ''.join(f'{shlex.join(["python", "main.py", *arguments])}\n' for arguments in runs))
