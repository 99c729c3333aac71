"""
Where records go besides the run folder's own files: TensorBoard, W&B, Comet. All use the same names.

The attribute `last` is the last epoch that a backend has, so that after --resume each epoch is logged exactly once. A
failure in their libraries never ends the run: it is printed as a note. W&B gets what is missing after --resume.
"""
import contextlib
import importlib.util
import os
import threading
import time
import urllib.error
import urllib.request

import numpy as np
from PIL import Image

from records import run_folder, wandb_files
from utilities.errors import UserError

LIMIT = 200                                  # seconds in which W&B's service has to end


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
    if opt.log_online and opt.online_backend == 'wandb' and os.environ.get('WANDB_MODE') == 'disabled':
        print('Note: W&B gets no records, since WANDB_MODE is disabled.')
    elif opt.log_online and opt.online_backend != 'none':
        wanted.append({'wandb': Wandb, 'comet_ml': Comet}[opt.online_backend])
    chosen = []
    for kind in wanted:
        problem = failure(lambda kind=kind: chosen.append(kind(opt, folder, settings, start)))
        if problem:
            note(kind.__name__, 'cannot be started', problem, folder)
    return chosen


def failure(call, *arguments):
    """Calls call(*arguments); returns None, or a text that says what failed: a library may even call sys.exit."""
    try:
        call(*arguments)
    except (Exception, SystemExit) as error:
        return f'{type(error).__name__}: {error}'
    return None


def note(name, what, problem, folder):
    remedy = f' To send what is missing there afterwards: python main.py --resume {folder}' if name == 'Wandb' else ''
    print(f'Note: {name} {what} ({" ".join(problem.split())}). The run goes on without it.{remedy}')


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

    def close(self, failed):
        self.writer.close()


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
            os.environ['WANDB_API_KEY'] = opt.wandb_key      # wandb.login would write it to a file
        config = run_folder.read(folder)
        arguments = {'project': opt.project, 'group': opt.group, 'name': folder.name, 'dir': str(folder),
                     'config': settings | origin(config), 'id': config['run_id'], 'resume': 'allow'}
        quiet = wandb.Settings(console='off', silent=True, disable_git=True, x_disable_meta=True, init_timeout=60)
        problem = why_offline(wandb)
        if not problem:
            try:
                self.run = wandb.init(**arguments, mode='online', settings=quiet)
                self.last = self.run.step - 1
            except wandb.errors.Error as error:
                problem = str(error).splitlines()[0]
                wandb.teardown()
        if problem:
            print(f'W&B runs offline ({problem}). To upload: wandb login, then wandb sync '
                  f'{folder / "wandb"}/offline-run-*')
            self.last = wandb_files.last_epoch(folder)
            self.run = wandb.init(**arguments, mode='offline', settings=quiet)
        different = [name for name, value in settings.items() if self.run.config.get(name, value) != value]
        if different:
            at_wandb = ', '.join(f'--{name} {self.run.config[name]}' for name in different)
            here = ', '.join(f'--{name} {settings[name]}' for name in different)
            print(f'Note: W&B records {at_wandb}, but the run trains with {here}: the command of a sweep needs '
                  '${args}, by which it passes its values on.')

    def log(self, epoch, scalars, arrays):
        import wandb
        histograms = {name: wandb.Histogram(np_histogram=histogram(values)) for name, values in arrays.items()}
        self.run.log(scalars | histograms | self.pictures | {'epoch': epoch}, step=epoch, commit=True)
        self.logged = epoch
        self.pictures = {}

    def picture(self, name, file, epoch):
        import wandb
        waiting = self.pictures if epoch > self.logged else self.run.summary       # W&B takes a step once
        waiting[name] = wandb.Image(str(file))

    def close(self, failed):
        import wandb
        problem = within_limit(self.run.finish, int(failed))
        # teardown waits for the files, and removes W&B's exit hook, which would wait for a service that does not answer
        problem = within_limit(wandb.teardown) or problem
        if problem:
            raise ConnectionError(problem)


def within_limit(call, *arguments):
    """What failed in call(*arguments), or that it took LIMIT seconds: W&B waits without end for a killed service."""
    problems = []
    thread = threading.Thread(target=lambda: problems.append(failure(call, *arguments)), daemon=True)
    thread.start()
    thread.join(LIMIT)
    return problems[0] if problems else f'no answer within {LIMIT} seconds'


def why_offline(wandb):
    """The reason why W&B cannot run online, or None."""
    mode = os.environ.get('WANDB_MODE')
    if mode in ('offline', 'dryrun'):
        return f'WANDB_MODE is {mode}'
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
    for `comet upload`; Comet writes these files at the end of the process.
    """

    def __init__(self, opt, folder, settings, start):
        import comet_ml
        config = run_folder.read(folder)
        online = bool(os.environ.get('COMET_API_KEY'))
        off = ('auto_metric_logging', 'auto_param_logging', 'auto_output_logging', 'log_code', 'log_git_metadata',
               'log_env_details')
        self.last = start - 1
        archives = folder / 'comet' / f'from_epoch_{start}'   # equal seeds of `random` give archives equal names
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

    def close(self, failed):
        self.experiment.end()
