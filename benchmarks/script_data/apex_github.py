"""Whole public scripts with Apex ``amp``, and the small data and settings that each gets."""

from forced_list import Script

RATINGS = """
import torch
torch.manual_seed(0)
users, items = torch.arange(64).repeat_interleave(12), torch.randint(0, 25, (768,)) * 2
torch.save(torch.stack([users, (items + users % 2)], 1), "train_ratings.pt")
torch.save(torch.stack([torch.arange(64), torch.randint(0, 50, (64,))], 1), "test_ratings.pt")
torch.save(torch.randint(0, 50, (64, 20)), "test_negatives.pt")
"""
BONITO_TRAIN = "from bonito import main\nmain()\n"
BONITO_BLOCK = "[[block]]\nfilters = {}\nrepeat = {}\nkernel = [{}]\nstride = [{}]\ndilation = [1]\n"
BONITO_BLOCK += "dropout = 0.05\nresidual = {}\nseparable = {}\n"
BONITO = 'model = "tiny"\n[labels]\nlabels = ["N", "A", "C", "G", "T"]\n[input]\nfeatures = 1\n'
BONITO += '[encoder]\nactivation = "swish"\n'
BONITO += BONITO_BLOCK.format(16, 1, 9, 3, "false", "false") + BONITO_BLOCK.format(16, 2, 11, 1, "true", "true")
BONITO += BONITO_BLOCK.format(32, 1, 1, 1, "false", "false")

SCRIPTS = [
    Script(
        "nvidia_ncf",
        "nvidia_ncf",
        "ncf.py",
        "recommender, neural collaborative filtering",
        "--data . --checkpoint_dir checkpoints --batch_size 128 --valid_batch_size 512 --factors 8 "
        "--layers 32 32 16 --learning_rate 0.01",
        written_for_cuda=True,
        setup=("made(RATINGS)",),
        launcher="-m torch.distributed.run --nproc_per_node 1 --master_port 29631",
        level="O2",
        silent="dllogger",
    ),
    Script(
        "bonito",
        "ont-bonito-0.2.3",
        "train.py",
        "basecaller of nanopore signals, CTC",
        "train model --amp --config tiny.toml --directory . --batch 8 --epochs 1",
        written_for_cuda=True,
        setup=("module('train.py', BONITO_TRAIN)", "module('tiny.toml', BONITO)", "squiggles()"),
        level="O1",
        silent="mappy parasail ont_fast5_api fast_ctc_decode bonito_cuda_runtime optuna",
    ),
    Script(
        "person_reid",
        "layumi_person_reid",
        "train.py",
        "person re-identification",
        "--fp16 --batchsize 8 --data_dir data --lr 0.002 --stride 1 --erasing_p 0.5",
        written_for_cuda=True,
        setup=("folders('model')",),
        small="torchvision.models:resnet50(pretrained=False,width_per_group=8)",
        steps=30,
        images=256,
        level="O1",
    ),
]
