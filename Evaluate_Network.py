"""Everything that comes after the training of a network: metrics, codes, pictures, export ... --help is the manual."""
import sys

from utilities import stopping

if __name__ == '__main__':
    stopping.begin('Evaluate_Network.py')                     # before the imports, which take seconds

from retrieval import actions
from utilities import errors, processes


def main(arguments):
    """Returns the exit code: 0; 2 after a UserError; 1 for a failure; 130 after Ctrl-C."""
    with errors.reported('Evaluate_Network.py') as end, processes.together():
        end.code = actions.carry_out(arguments) or 0
    return end.code


if __name__ == '__main__':
    stopping.install()
    processes.leave(main(sys.argv[1:]))
