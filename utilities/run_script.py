"""The commands of a script of runs, without running them."""
import os
import shlex
import subprocess
from pathlib import Path

from utilities.errors import UserError

SHELL = set(';&|<>()')


def commands(script):
    """
    A script -> the arguments of main.py in each of its runs, a list of lists of strings.

    A script that knows --list is asked for it. Of any other, every line must be a command `python main.py ...`; what
    the environment defines is filled in ($datapath). Raises UserError for a line that is neither.
    """
    try:
        text = Path(script).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f'{script}: not a script of runs ({getattr(error, "strerror", None) or error})') from None
    if '--list' in text:
        listed = subprocess.run(['bash', str(script), '--list'], capture_output=True, text=True)
        if listed.returncode:
            reason = (listed.stderr.strip().splitlines() or [f'exit code {listed.returncode}'])[-1]
            raise UserError(f'{script} --list failed: {reason}')
        text = listed.stdout
    found = []
    for number, line in logical_lines(text):
        where = f'{script}, line {number}'
        words = split(os.path.expandvars(line), where)
        if not words:
            continue
        if not words[0].split('/')[-1].startswith('python') or words[1:2] not in (['main.py'], ['./main.py']):
            raise UserError(f'{where}: expected python main.py ..., not {" ".join(words)[:60]}; a script with loops '
                            'must print its commands when it is given --list, as those that source run_lines.sh do')
        shell = [word for word in words if set(word) <= SHELL or '$' in word or '`' in word]
        if shell:
            raise UserError(f'{where}: {shell[0]} is for a shell to read; write plain commands, or set the variable')
        found.append(words[2:])
    if not found:
        raise UserError(f'{script}: there is no line python main.py ... in it')
    return found


def logical_lines(text):
    """(number, line), with the lines that end with a backslash joined to those after them."""
    number, parts = 1, []
    for count, line in enumerate(text.splitlines(), start=1):
        parts.append(line.removesuffix('\\'))
        if not line.endswith('\\'):
            yield number, ' '.join(parts)
            number, parts = count + 1, []
    if parts:
        yield number, ' '.join(parts)


def split(line, where):
    words = shlex.shlex(line, posix=True, punctuation_chars=''.join(SHELL))
    words.whitespace_split, words.commenters = True, '#'
    try:
        return list(words)
    except ValueError as error:
        raise UserError(f'{where}: {str(error).lower()}') from None
