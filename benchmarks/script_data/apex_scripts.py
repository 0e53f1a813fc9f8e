"""Whole scripts with Apex ``amp`` of GitHub or of packages, and the small data and settings that each gets."""

from forced_list import Apex

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
RE_RANKER = """
from types import SimpleNamespace as Settings
import torch
from models.td3 import TD3
class Replay:
    def sample(self, batch_size, device):
        states, actions = torch.randn(batch_size, 12), torch.rand(batch_size, 4)
        rewards = (states[:, :4] * actions).sum(1, keepdim=True)
        return [each.to(device) for each in (states, actions, rewards, torch.randn(batch_size, 12), rewards * 0 + 1)]
layers = Settings(fc1=32, fc2=32, fc3=16, layer_norm=1e-12)
policy = TD3(Settings(max_action=1, discount=0.99, tau=0.005, policy_noise=0.2, noise_clip=0.5, policy_freq=2,
                      device=torch.device("cuda"), state_dim=12, action_dim=4, actor=layers, critic=layers,
                      actor_lr=1e-3, critic_lr=1e-3, fp16=True, fp16_opt_level="O1"))
for _ in range(100):
    policy.train(Settings(batch_size=32, fp16=True, max_grad_norm=1.0), Replay())
"""
UTTERANCES = """
import json
import numpy
rng = numpy.random.RandomState(0)
sounds, utterances, features = rng.randn(6, 16), {}, {}
for index in range(64):
    letters = rng.randint(0, 6, 5)
    name = "utterance%d" % index
    features[name] = (numpy.repeat(sounds[letters], 8, axis=0) + 0.3 * rng.randn(40, 16)).astype("float32")
    utterances[name] = {
        "input": [{"name": "input1", "feat": "features.npz:" + name, "shape": [40, 16], "filetype": "npz"}],
        "output": [{"name": "target1", "shape": [5, 8], "tokenid": " ".join(str(each + 1) for each in letters),
                    "token": " ".join("abcdef"[each] for each in letters), "text": ""}]}
numpy.savez("features.npz", **features)
json.dump({"utts": utterances}, open("data.json", "w"))
open("dict.txt", "w").writelines("%s %d\\n" % (letter, index + 1) for index, letter in enumerate("abcdef"))
"""

# fmt: off
SCRIPTS = [
    Apex("nvidia_ncf", "nvidia_ncf", "ncf.py", "recommender, neural collaborative filtering",
         "--data . --checkpoint_dir checkpoints --batch_size 128 --valid_batch_size 512 --factors 8 "
         "--layers 32 32 16 --learning_rate 0.01", setup=("made(RATINGS)",),
         launcher="-m torch.distributed.run --nproc_per_node 1 --master_port 29631", level="O2", silent="dllogger"),
    Apex("bonito", "ont-bonito-0.2.3", "train.py", "basecaller of nanopore signals, CTC",
         "train model --amp --config tiny.toml --directory . --batch 8 --epochs 1",
         setup=("module('train.py', BONITO_TRAIN)", "module('tiny.toml', BONITO)", "squiggles()"),
         silent="mappy parasail ont_fast5_api fast_ctc_decode bonito_cuda_runtime optuna"),
    Apex("person_reid", "layumi_person_reid", "train.py", "person re-identification",
         "--fp16 --batchsize 8 --data_dir data --lr 0.002 --stride 1 --erasing_p 0.5", setup=("folders('model')",),
         small="torchvision.models:resnet50(pretrained=False,width_per_group=8)", steps=30, images=256),
    Apex("re_ranker", "kotzyi_re_ranker", "train.py", "reinforcement learning, re-ranker of search results",
         setup=("module('train.py', RE_RANKER)",), steps=60),
    Apex("espnet_asr", "espnet-0.9.4", "-m espnet.bin.asr_train", "speech recognition, CTC and attention",
         "--ngpu 1 --train-dtype O1 --backend pytorch --outdir exp --dict dict.txt --train-json data.json "
         "--valid-json data.json --mtlalpha 0.5 --etype blstmp --elayers 1 --eunits 16 --eprojs 16 --dlayers 1 "
         "--dunits 16 --atype location --adim 16 --aconv-chans 4 --aconv-filts 5 --batch-size 8 --epochs 4 --opt "
         "adam --n-iter-processes 0 --subsample 1 --num-save-attention 0 --num-save-ctc 0 --accum-grad 2",
         setup=("made(UTTERANCES)",), steps=32),
]
# fmt: on
