"""Finds similar images and wrong labels with a trained network. --help is the manual."""
import sys

from utilities import stopping

if __name__ == '__main__':
    stopping.require_packages('Retrieve_Images.py')

from flags import command_line
from utilities import errors


def add_photos(parser, nargs='+'):
    parser.add_argument('photos', nargs=nargs, metavar='PHOTOS',
                        help='image files; folders with all below them; .csv files with a column path; .txt files of '
                             'paths')


def add_threshold(parser, default):
    similarity = command_line.word_or('none', command_line.REAL, 'a similarity or none')
    parser.add_argument('--threshold', type=similarity, metavar='SIMILARITY|none',
                        help=f'similarity of the nearest image below which a query is unknown, or none; by default '
                             f'{default}')


def build():
    parser = command_line.Parser(prog='Retrieve_Images.py',
                                 description='Finds the images that are nearest to a photo by the embeddings of a '
                                             'trained network. COMMAND --help explains the flags of a command.')
    commands = parser.add_subparsers(dest='command', metavar='COMMAND', required=True)
    texts = (
        ('index', 'embed images and make an index of them; after a stop, the same command continues'),
        ('query', 'print the images of an index that are nearest to photos'),
        ('add', 'embed images and add them to an index; files that have changed since they were added are replaced'),
        ('remove', 'remove images from an index; their files stay'),
        ('suspects', 'list images whose labels are probably wrong, near-duplicates and outliers. Flags that are not '
                     'listed here are those of main.py --evaluate'),
        ('serve', 'serve a page to search an index by dropping a photo on it'))
    index, query, add, remove, suspects, serve = (commands.add_parser(name, help=text, description=text)
                                                  for name, text in texts)
    index.add_argument('run', metavar='RUN', help='run folder, whose last checkpoint is used, or a checkpoint')
    add_photos(index)
    index.add_argument('--out', required=True, metavar='INDEX', help='folder of the index')
    add_threshold(index, 'what Evaluate_Network.py RUN open_set calibrated')
    for command in (query, serve):
        add_threshold(command, "the index's")
        command.add_argument('--vote', metavar='K', type=command_line.COUNT, default=5,
                             help='number of nearest images that vote for the class of a photo, the name of their '
                                  'folder; 0: no class')
    index.add_argument('--codes', metavar='FAISS', default='',
                       help="search by a string of faiss's index_factory, such as IVF1000,Flat or PQ16; by default, "
                            'the search is exact')
    for command in (query, add, remove, serve):
        command.add_argument('index', metavar='INDEX', help='folder of the index')
    for command in (query, add, remove):
        add_photos(command, '*' if command is remove else '+')
    query.add_argument('--k', type=command_line.POSITIVE_INT, default=10, help='number of nearest images')
    query.add_argument('--json', metavar='FILE',
                       help='also write the nearest images and their distances to this file; -: print them instead')
    query.add_argument('--csv', metavar='FILE',
                       help='write a row for each photo with its class, share and nearest image, and print no images')
    query.add_argument('--picture', metavar='FILE',
                       help='also draw the first 12 queries and up to 10 nearest images of each; .png or .svg')
    remove.add_argument('--missing', action='store_true', help='remove the images whose files no longer exist')
    suspects.add_argument('run', metavar='RUN', help='run folder or checkpoint, whose evaluation images are examined')
    suspects.add_argument('--out', metavar='FILE', default='suspects.csv',
                          help='CSV file of all suspects; the first of each kind are drawn in a .png file of the same '
                               'name')
    serve.add_argument('--k', type=command_line.POSITIVE_INT, default=24, help='number of nearest images')
    serve.add_argument('--host', default='127.0.0.1',
                       help='address to listen on; by default only this machine; 0.0.0.0 shows the images to the whole '
                            'network')
    serve.add_argument('--port', type=command_line.number(int, 0, 65535), default=8000,
                       help='port to listen on; 0 means any free one')
    for command in (query, add, serve):
        command.add_argument('--run', metavar='RUN', help='the run folder or checkpoint that made the index; needed '
                                                          'only if it has been moved')
    for command in (index, query, add, serve):
        command.add_argument('--device', choices=[*command_line.DEVICES], default='auto',
                             help='device to compute on, as in main.py')
    for command in (index, query, add):
        command.add_argument('--bs', type=command_line.POSITIVE_INT, default=112,
                             help='number of images that are embedded at once')
        command.add_argument('--kernels', type=command_line.COUNT, default=6,
                             help='number of data loading processes, at most one per processor core; 0 loads in the '
                                  'main process')
    return parser


def carry_out(arguments):
    parser = build()
    opt, opt.flags = parser.parse_known_args(arguments)
    if opt.flags and opt.command != 'suspects':
        parser.error(f'unrecognized arguments: {" ".join(opt.flags)}')
    from retrieval import commands  # imports torch, which --help does not need
    getattr(commands, opt.command)(opt)


def main(arguments):
    """Returns the exit code: 0, 1 for a failure, 2 after a UserError, 130 after Ctrl-C."""
    return errors.exit_code('Retrieve_Images.py', lambda: carry_out(arguments))


if __name__ == '__main__':
    stopping.install()
    sys.exit(main(sys.argv[1:]))
