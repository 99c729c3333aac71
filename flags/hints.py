"""The hint for an unknown flag: the name here of a flag that other programs have, or a similar name."""
import re

from utilities.errors import nearest

# Names of flags in other programs: the hint for them. A hint is given only if this program has the flags in it.
HINTS = {
    # batches, length, optimizer
    'batch_size sz_batch train_batch_size per_device_train_batch_size': 'here --bs',
    'eval_batch_size test_batch_size': 'here --eval_bs',
    'images_per_class instances_per_class num_instances samples_per_label num_samples_per_class ipc':
        'here --samples_per_class',
    'epochs epoch num_epochs nb_epochs max_epochs num_train_epochs num_epochs_train': 'here --n_epochs',
    'learning_rate base_lr': 'here --lr',
    'wdecay weight_decay wd': 'here --decay',
    'optimizer opt': 'here --optim',
    'optimizers': 'here --optim, --embed_optim and --loss_optim',
    'lr_decay_step lr_steps lr_step milestones': 'here --tau',
    'lr_decay_gamma lr_decay lr_gamma': 'here --gamma',
    'lr_scheduler': 'here --scheduler',
    'warm warmup_epochs': 'here --warmup for the backbone, --lr_warmup for the learning rates',
    'early_stopping': 'here --patience, with a validation split (--use_tv_split)',
    # network and method
    'model backbone net trunk architecture': 'here --arch',
    'embedding_size embedding_dim sz_embedding emb_dim': 'here --embed_dim',
    'pretrained': 'networks are pretrained unless --not_pretrained is given',
    'bn_freeze freeze_bn freeze_batchnorm': 'here the ending _frozen of --arch',
    'l2_norm': 'here the ending _normalize of --arch',
    'image_size img_size crop_size sz_crop': 'here --input_size',
    'criterion loss_fn': 'here --loss',
    'miner': 'here --batch_mining',
    'sampler': 'here --data_sampler',
    'margin': 'here each loss has its own, such as --loss_triplet_margin; --help margin lists them',
    'temperature': 'here each loss has its own, such as --loss_softmax_temperature; --help temperature lists them',
    'mvr_reg': 'here --loss_dr_triplet_gamma, --loss_dr_proxynca_gamma or --loss_dr_multisimilarity_gamma, with --loss '
               'dr_triplet, dr_proxynca or dr_multisimilarity',
    'loss_funcs': 'here --loss pml:NAME, with arguments in --loss_pml_args',
    'mining_funcs': 'here --batch_mining pml:NAME, with arguments in --miner_pml_args',
    # machine, places, names
    'num_workers workers nb_workers n_workers dataloader_num_workers': 'here --kernels',
    'gpu_id gpu_ids gpus cuda': 'here --gpu',
    'fp16 bf16 use_amp mixed_precision': 'here --amp',
    'data data_dir data_path data_root dataset_root root': 'here --source_path',
    'output_dir out_dir model_save_dir log_dir logdir tnsrbrd_dir root_experiment_folder': 'here --save_path',
    'experiment_name exp_name run_name': 'here --group; a run is called <group>_s<seed>',
    'wandb use_wandb': 'here --log_online',
    'wandb_project project_name': 'here --project',
    'resume_training': 'here --resume RUN_FOLDER',
    'checkpoint ckpt load load_from': 'here --resume, --start_from or --evaluate',
    'test_only eval_only evaluate_only': 'here --evaluate RUN_FOLDER',
    'bayesian_optimization_n_iter': 'Hyperparameter_Search.py tunes flags',
}
HINT_OF = {name: hint for names, hint in HINTS.items() for name in names.split()}


def unknown(name, known):
    """
    The end of a sentence about a flag that is not among the `known` ones, or ''. name: without the dashes.

    >>> unknown('batch-size', ['bs']), unknown('lost', ['loss'])
    ('; here --bs', '; did you mean loss?')
    """
    if 'BAYESIAN~' in name:
        return '; ~BAYESIAN~ is of powerful-benchmarker; here, Hyperparameter_Search.py tunes flags'
    if '~' in name:
        own = name.partition('~')[0]
        hint = '; ~ is of powerful-benchmarker, and here a later value replaces an earlier one anyway'
        return hint if own in known else hint + unknown(own, known)
    if name.startswith('config_'):
        return '; here --config FILE; --reproduce_results FOLDER takes the files of powerful-benchmarker'
    plain = name.replace('-', '_').lower()
    hint = HINT_OF.get(plain, '')
    if hint and {*re.findall(r'--(\w+)', hint)} <= {*known}:
        return f'; {hint}'
    return nearest(plain, known)
