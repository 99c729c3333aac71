"""The hint for an unknown flag: the name here of a flag that other programs have, or a similar name."""
import re

from utilities.errors import nearest

# {what to give here: names of flags of other programs}; given only where the program has the flags
HERE = {
    '--bs': 'batch_size sz_batch train_batch_size per_device_train_batch_size',
    '--eval_bs': 'eval_batch_size test_batch_size',
    '--samples_per_class': 'images_per_class instances_per_class num_instances samples_per_label '
                           'num_samples_per_class ipc',
    '--n_epochs': 'epochs epoch num_epochs nb_epochs max_epochs num_train_epochs num_epochs_train',
    '--lr': 'learning_rate base_lr',
    '--decay': 'wdecay weight_decay wd',
    '--optim': 'optimizer opt',
    '--optim, --embed_optim and --loss_optim': 'optimizers',
    '--tau': 'lr_decay_step lr_steps lr_step milestones',
    '--gamma': 'lr_decay_gamma lr_decay lr_gamma',
    '--scheduler': 'lr_scheduler',
    '--warmup for the backbone, --lr_warmup for the learning rates': 'warm warmup_epochs',
    '--patience, with a validation split (--use_tv_split)': 'early_stopping',
    '--arch': 'model backbone net trunk architecture',
    '--embed_dim': 'embedding_size embedding_dim sz_embedding emb_dim',
    '--not_pretrained for a network that is not': 'pretrained',
    'the ending _frozen of --arch': 'bn_freeze freeze_bn freeze_batchnorm',
    'the ending _normalize of --arch': 'l2_norm',
    '--input_size': 'image_size img_size crop_size sz_crop',
    '--loss': 'criterion loss_fn',
    '--batch_mining': 'miner',
    '--data_sampler': 'sampler',
    'a flag of each loss, such as --loss_triplet_margin': 'margin',
    'a flag of each loss, such as --loss_softmax_temperature': 'temperature',
    '--loss_dr_triplet_gamma, --loss_dr_proxynca_gamma or --loss_dr_multisimilarity_gamma': 'mvr_reg',
    '--loss pml:NAME, with arguments in --loss_pml_args': 'loss_funcs',
    '--batch_mining pml:NAME, with arguments in --miner_pml_args': 'mining_funcs',
    '--kernels': 'num_workers workers nb_workers n_workers dataloader_num_workers',
    '--gpu': 'gpu_id gpu_ids gpus cuda',
    '--amp': 'fp16 bf16 use_amp mixed_precision',
    '--source_path': 'data data_dir data_path data_root dataset_root root',
    '--save_path': 'output_dir out_dir model_save_dir log_dir logdir tnsrbrd_dir root_experiment_folder',
    '--group; a run is called <group>_s<seed>': 'experiment_name exp_name run_name',
    '--log_online': 'wandb use_wandb',
    '--project': 'wandb_project project_name',
    '--resume RUN_FOLDER': 'resume_training',
    '--resume, --start_from or --evaluate': 'checkpoint ckpt load load_from',
    '--evaluate RUN_FOLDER': 'test_only eval_only evaluate_only',
    '--config FILE; python -m tuning.powerful_benchmarker FOLDER takes the files of powerful-benchmarker':
        'config_general config_models config_optimizers config_loss_and_miners config_transforms config_dataset',
    'python -m tuning.powerful_benchmarker FOLDER': 'reproduce_results reproduce_results_partly',
    'Hyperparameter_Search.py': 'bayesian_optimization_n_iter bayes_opt_iters',
    '--split_scheme and --n_folds': 'split_manager',
    '--loss_multisimilarity_thresh or --loss_dr_multisimilarity_thresh': 'ms_thresh',
    'the test classes are always evaluated (--untrained: also before training)': 'splits_to_eval',
}
HERE_OF = {name: here for here, names in HERE.items() for name in names.split()}


def unknown(name, known):
    """
    The end of a sentence about a flag that is not among the `known` ones, or ''. name: without the dashes.

    >>> unknown('batch-size', ['bs']), unknown('lost', ['loss'])
    ('; here --bs', '; did you mean loss?')
    """
    name, *suffix = name.split('~')                                   # powerful-benchmarker: lr~BAYESIAN~
    if suffix and name in known:
        return f'; here --{name}, without ~; Hyperparameter_Search.py tunes flags'
    plain = name.replace('-', '_').lower()
    here = HERE_OF.get(plain)
    if here and {*re.findall(r'--(\w+)', here)} <= {*known}:
        return f'; here {here}'
    return nearest(plain, known)
