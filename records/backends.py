"""
Where records go besides the run folder's own files: TensorBoard, W&B, Comet. All use the same names.

The attribute `last` is the last epoch that a backend has, so that after --resume each epoch is logged exactly once. A
failure in their libraries never ends the run: it is printed as a note, and --resume sends what is missing.
"""
import contextlib
import importlib.util
import json
import os
import threading
import time
import urllib.error
import urllib.request
import zipfile

import numpy as np
from PIL import Image

from records import run_folder, wandb_files
from utilities.errors import UserError

LIMIT = 600                                  # seconds that a call may take; W&B may wait for its service without end


def check(opt):
    """Raises UserError where the backend of --log_online is not installed."""
    name = opt.online_backend
    if opt.log_online and name != 'none' and importlib.util.find_spec(name) is None:
        raise UserError(f'--log_online: {name} is not installed: pip install {name}, or leave the flag out')


def select(opt, folder, settings, start):
    """The backends that can be started: TensorBoard if it is installed, and with --log_online the --online_backend."""
    wanted = []
    if importlib.util.find_spec('tensorboard'):
        wanted.append(TensorBoard)
    else:
        print('TensorBoard is not installed: no tensorboard/ in the run folder (pip install tensorboard).')
    if opt.log_online and opt.online_backend != 'none':
        wanted.append({'wandb': Wandb, 'comet_ml': Comet}[opt.online_backend])
    chosen = []
    for kind in wanted:
        backend, problem = attempt(kind, opt, folder, settings, start)
        if problem:
            note(kind.__name__, 'cannot be started', problem, folder)
        else:
            chosen.append(backend)
    return chosen


def attempt(call, *arguments, share=1):
    """
    Returns (the result of call(*arguments), None), or (None, a text that says what failed). A library may raise
    anything, call sys.exit, or wait without end for a process of its own that was killed: after `share` of LIMIT
    seconds, the call is abandoned.
    """
    outcomes = []

    def work():
        try:
            outcomes.append((call(*arguments), None))
        except BaseException as error:                       # reported by the caller of attempt()
            outcomes.append((None, f'{type(error).__name__}: {error}'))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT * share)
    return outcomes[0] if outcomes else (None, f'no answer within {LIMIT * share:.0f} seconds')


def failure(call, *arguments, share=1):
    """As attempt(), for a call whose result is not needed: returns the text that says what failed, or None."""
    return attempt(call, *arguments, share=share)[1]


def note(name, what, problem, folder):
    print(f'Note: {name} {what} ({" ".join(problem.split())}). The run goes on without it. To send what is missing '
          f'there afterwards: python main.py --resume {folder}')


def origin(config):
    """The entries of config.yaml that W&B and Comet get beside the flags."""
    names = ('command', 'test_hash', 'test_images_hash', 'merged', 'other_data')
    return {name: config[name] for name in names if name in config}


class TensorBoard:
    """<run folder>/tensorboard/. Epochs from `start` on that a killed run wrote are hidden."""

    def __init__(self, opt, folder, settings, start):
        from torch.utils.tensorboard import SummaryWriter
        # files are read in the order of their names, which begin with the second of their start
        while any((folder / 'tensorboard').glob(f'*.tfevents.{int(time.time())}.*')):
            time.sleep(0.05)
        self.usual = threading.excepthook
        threading.excepthook = self.unless_told_later
        self.writer = SummaryWriter(folder / 'tensorboard', purge_step=start)
        self.last = start - 1

    def log(self, epoch, scalars, arrays):
        for name, value in scalars.items():
            if name != 'epoch':
                self.writer.add_scalar(name, value, epoch)
        for name, values in arrays.items():
            self.writer.add_histogram(name, values, epoch)
        self.writer.flush()

    def picture(self, name, file, epoch):
        with Image.open(file, formats=['PNG']) as image:
            self.writer.add_image(name, np.asarray(image.convert('RGB')), epoch, dataformats='HWC')

    def unless_told_later(self, arguments):
        """Replaces threading.excepthook: prints no errors of TensorBoard's threads; its next call raises them again."""
        if not type(arguments.thread).__module__.startswith('tensorboard'):
            self.usual(arguments)

    def close(self, failed):
        try:
            self.writer.close()
        finally:
            threading.excepthook = self.usual


class Wandb:
    """
    A W&B run of --project and --group, named as the run folder, with the same id after --resume.

    Without a key, or if the server does not answer, the run is logged to <run folder>/wandb/ for `wandb sync`. W&B
    writes these files at the end of the process; epochs that a killed process did not write are logged again after
    --resume.
    """

    def __init__(self, opt, folder, settings, start):
        import wandb
        self.logged = start - 1                              # the last epoch that log() took
        self.pictures = {}                                   # pictures of the next epoch
        if opt.wandb_key:
            os.environ['WANDB_API_KEY'] = opt.wandb_key      # only here; wandb.login would write it to a file
        config = run_folder.read(folder)
        arguments = {'project': opt.project, 'group': opt.group, 'name': folder.name, 'dir': str(folder),
                     'config': settings | origin(config), 'id': config['run_id'], 'resume': 'allow'}
        quiet = wandb.Settings(console='off', silent=True, disable_git=True, x_disable_meta=True, init_timeout=60)
        problem = why_offline(wandb)
        if not problem:
            try:
                self.run = wandb.init(**arguments, mode='online', settings=quiet)
                self.last = self.run.step - 1
                return
            except wandb.errors.Error as error:
                problem = str(error).splitlines()[0]
                wandb.teardown()
        print(f'W&B runs offline ({problem}). To upload: wandb login, then wandb sync {folder / "wandb"}/offline-run-*')
        self.last = wandb_files.last_epoch(folder)
        self.run = wandb.init(**arguments, mode='offline', settings=quiet)

    def log(self, epoch, scalars, arrays):
        import wandb
        histograms = {name: wandb.Histogram(np_histogram=histogram(values)) for name, values in arrays.items()}
        self.run.log(scalars | histograms | self.pictures | {'epoch': epoch}, step=epoch, commit=True)
        self.logged = epoch
        self.pictures = {}

    def picture(self, name, file, epoch):
        import wandb
        pictures = self.pictures if epoch > self.logged else self.run.summary      # W&B takes a step once
        pictures[name] = wandb.Image(str(file))

    def table(self, name, rows, epoch):
        import wandb
        columns = [*dict.fromkeys(column for row in rows for column in row)]
        table = wandb.Table(columns=columns, data=[[row.get(column) for column in columns] for row in rows])
        waiting = self.pictures if epoch > self.logged else self.run.summary
        waiting[name] = table

    def close(self, failed):
        import wandb
        problem = failure(self.run.finish, int(failed), share=1 / 3)
        # teardown waits for the files, and removes W&B's exit hook, which would wait for a service that does not answer
        problem = failure(wandb.teardown, share=1 / 3) or problem
        if problem:
            raise ConnectionError(problem)


def why_offline(wandb):
    """The reason why W&B cannot run online, or None."""
    if os.environ.get('WANDB_MODE') == 'offline':
        return 'WANDB_MODE is offline'
    address = wandb.setup().settings.base_url                # WANDB_BASE_URL and W&B's own files may set it
    try:
        with contextlib.suppress(urllib.error.HTTPError):    # any answer shows that the server is there
            urllib.request.urlopen(address, timeout=10).close()
    except OSError as error:
        return f'{address} does not answer: {error}'
    if not wandb.login(prompt=False, verify=False):          # last, since it tries a silent address for seconds
        return 'there is no key: set WANDB_API_KEY or run wandb login'
    return None


def histogram(values):
    return np.histogram(values[np.isfinite(values)], bins=min(64, max(1, len(values))))


class Comet:
    """
    A Comet experiment of --project, the same after --resume. Without COMET_API_KEY it is logged to <run folder>/comet/
    for `comet upload`. Comet writes these files at the end of the process; epochs that a killed process did not write
    are logged again after --resume.
    """

    def __init__(self, opt, folder, settings, start):
        import comet_ml
        config = run_folder.read(folder)
        online = bool(os.environ.get('COMET_API_KEY'))
        off = ('auto_metric_logging', 'auto_param_logging', 'auto_output_logging', 'log_code', 'log_git_metadata',
               'log_env_details')
        self.last = start - 1
        if not online:
            self.last = max(map(read_last_epoch, folder.glob('comet/*/*.zip')), default=-1)
        # equal seeds of `random` give archives equal names
        archives = folder / 'comet' / f'from_epoch_{self.last + 1}'
        archives.mkdir(parents=True, exist_ok=True)
        self.experiment = comet_ml.start(
            project_name=opt.project, online=online, mode='get_or_create', experiment_key=config['run_id'] * 4,
            experiment_config=comet_ml.ExperimentConfig(offline_directory=str(archives), **dict.fromkeys(off, False)))
        if not online:
            print(f'Comet runs offline. To upload: set COMET_API_KEY, then comet upload {archives}/*.zip')
        self.experiment.set_name(folder.name)
        self.experiment.add_tag(opt.group)
        self.experiment.log_parameters(settings | origin(config))

    def log(self, epoch, scalars, arrays):
        self.experiment.log_metrics(scalars, step=epoch, epoch=epoch)
        for name, values in arrays.items():
            self.experiment.log_histogram_3d(values, name=name, step=epoch)

    def picture(self, name, file, epoch):
        self.experiment.log_image(str(file), name=name, step=epoch)

    def table(self, name, rows, epoch):
        columns = [*dict.fromkeys(column for row in rows for column in row)]
        self.experiment.log_table(f'{name}_{epoch}.csv', [[row.get(column) for column in columns] for row in rows],
                                  headers=columns)

    def close(self, failed):
        self.experiment.end()


def read_last_epoch(archive):
    """The last epoch in a .zip of Comet's offline mode."""
    with zipfile.ZipFile(archive) as opened:
        messages = [json.loads(line) for line in opened.read('messages.json').splitlines()]
    return max((message['payload']['metric']['epoch'] for message in messages if message['type'] == 'metric_msg'
                and message['payload']['metric']['metricName'] == 'epoch'), default=-1)
