"""The public scripts of ``forced_scripts.py``: where each is, and the small data that it gets."""

import functools
from typing import NamedTuple, Tuple


class Script(NamedTuple):
    """A public training script.

    ``folder`` is below the folder of the downloaded scripts, ``path`` within it; a path that starts with ``-m`` is a
    module. ``setup`` are calls of functions of ``data``, as text. Scripts that are ``written_for_cuda`` run with
    ``--device cpu``, unchanged ones too. ``launcher`` is put in front, as ``-m torch.distributed.run ...``. ``level``
    is the own one of a script that uses Apex.
    """

    name: str
    folder: str
    path: str
    family: str
    arguments: str = ""
    written_for_cuda: bool = False
    setup: Tuple[str, ...] = ()
    small: str = ""
    steps: int = 16
    images: int = 96
    launcher: str = ""
    level: str = ""
    lacks: str = ""  # names of ``fakes.SILENT`` that are not to be found
    silent: str = ""  # names that are to be found besides, as those of other parts of a package


#: A script that uses Apex.
Apex = functools.partial(Script, written_for_cuda=True, level="O1")

PIX2PIX_DATA = """
import torch
class MapDataset(torch.utils.data.Dataset):
    def __init__(self, root_dir):
        self.images = torch.rand(2, 3, 256, 256, generator=torch.Generator().manual_seed(0)) * 2 - 1
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return self.images[index], self.images[index].flip(0)
"""
CARVANA_DATA = """
import torch
class CarvanaDataset(torch.utils.data.Dataset):
    def __init__(self, image_dir, mask_dir, transform=None):
        self.images = torch.rand(8, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return self.images[index], (self.images[index].mean(0) > 0.5).float()
"""
POINTS = """
import torch
def get_dataset(name):
    angles = torch.linspace(0, 6.28, 2048)
    return torch.utils.data.TensorDataset(torch.stack([angles.cos(), (2 * angles).sin()], 1))
"""
REQUESTS = "class get:\n    raw = None\n    def __init__(self, *args, **kwargs): pass\n"
REQUESTS += "    def __enter__(self): return self\n    def __exit__(self, *error): pass\n"
REQUESTS += (
    "import tarfile\ntarfile.open = lambda *args, **kwargs: type('Tar', (get,), {'extractall': lambda self: None})()\n"
)

DIFFUSION = """
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet
model = Unet(dim=8, dim_mults=(1, 2)).cuda()
diffusion = GaussianDiffusion(model, image_size=16, timesteps=20, loss_type="l1").cuda()
trainer = Trainer(diffusion, "images/0", image_size=16, train_batch_size=4, train_lr=2e-5, train_num_steps=12,
                  gradient_accumulate_every=2, ema_decay=0.995, step_start_ema=4, update_ema_every=2, amp=True)
trainer.train()
"""
APEX_DIFFUSION = DIFFUSION.replace("step_start_ema=4, update_ema_every=2, amp=True", "fp16=True")
PROTEINS = APEX_DIFFUSION.replace("denoising_diffusion_pytorch", "ddpm_proteins")
RECBOLE = """
enable_amp: True
enable_scaler: True
epochs: 2
train_batch_size: 512
eval_step: 0
show_progress: False
state: WARNING
embedding_size: 8
worker: 0
"""
RECBOLE_ARGUMENTS = "--dataset ml-100k --config_files config.yaml --model "

IGNITE = "pytorch_ignite-0.5.5/examples/"
SPIKING = "spikingjelly-2.0.0/spikingjelly/activation_based/examples"
CLEAN_RL = "cleanrl-0.4.8/cleanrl"
OPACUS = "opacus-1.6.0/examples"
EXAMPLES = "pytorch_examples/"
OPEN_CLIP = (
    "--dataset-type csv --train-data train.csv --csv-separator , --batch-size 4 --model tiny --precision amp "
    "--workers 0 --epochs 1 --warmup 2 --lr 0.001 --device cuda --save-frequency 0 "
)
NANO_GPT = (
    "--dataset=tokens --batch_size=4 --block_size=32 --n_layer=2 --n_head=2 --n_embd=32 --warmup_iters=2 "
    "--gradient_accumulation_steps=2 --eval_interval=1000 --eval_iters=1 --learning_rate=0.003 --lr_decay_iters=20 "
)
ALADDIN = "aladdinpersson/"
CPU_DEVICE = "-device cuda:0 -data-dir data -T 4 -j 0 "

# fmt: off
SCRIPTS = [
    Script("vae", EXAMPLES + "vae", "main.py", "VAE", "--epochs 20 --batch-size 16", setup=("folders('results')",)),
    Script("forward_forward", EXAMPLES + "mnist_forward_forward", "main.py", "layers with own optimizers",
           "--epochs 30 --train_size 128 --test_size 100"),
    Script("gcn", EXAMPLES + "gcn", "main.py", "graph network", setup=("cora()", "module('requests.py', REQUESTS)")),
    Script("time_sequence_prediction", EXAMPLES + "time_sequence_prediction", "train.py", "float64, LBFGS",
           "--device cpu --steps 2", setup=("sine_waves()",)),
    Script("ddp_torchrun", EXAMPLES + "ddp-tutorial-series", "multigpu_torchrun.py", "DistributedDataParallel, 2 ranks",
           "3 1", written_for_cuda=True, launcher="-m torch.distributed.run --nproc_per_node 2 --master_port 29611"),
    Script("rnn_language_model", "yunjey_pytorch-tutorial/language_model", "main.py", "LSTM", setup=("text()",),
           steps=10),
    Script("simple_gan", "yunjey_pytorch-tutorial/generative_adversarial_network", "main.py", "GAN", images=200),
    Script("tiny_diffusion", "tanelp_tiny-diffusion", "ddpm.py", "diffusion", "--num_epochs 2 --eval_batch_size 20",
           setup=("module('datasets.py', POINTS)",)),
    Script("ppo_lunar", "nikhilbarhate99_PPO-PyTorch", "PPO.py", "reinforcement learning", steps=16),
    Script("pix2pix", ALADDIN + "Pix2Pix", "train.py", "GAN, image to image", written_for_cuda=True,
           setup=("module('dataset.py', PIX2PIX_DATA)", "folders('evaluation')"),
           small="generator_model:Generator(features=8);discriminator_model:Discriminator(features=[8, 16, 32, 64])",
           steps=6),
    Script("unet", ALADDIN + "unet", "train.py", "segmentation", written_for_cuda=True,
           setup=("module('dataset.py', CARVANA_DATA)", "folders('saved_images')"),
           small="model:UNET(features=[8, 16, 32, 64])"),
    Script("wgan_gp", ALADDIN + "wgan_gp", "train.py", "GAN, gradient penalty", steps=24, images=128),
    Script("min_gru", "mingru_pytorch-0.2.1", "train.py", "language model, accumulation", written_for_cuda=True,
           setup=("enwik8()",), small="minGRU_pytorch.minLM:minLM(dim=64,depth=2)", steps=24),
    Script("bert_pytorch", "bert_pytorch-0.0.1a4", "train.py", "BERT",
           "-c corpus.txt -v vocab -o bert.model -hs 64 -l 2 -a 4 -s 16 -b 16 -e 2 -w 0 --with_cuda ''",
           setup=("sentence_pairs()", "module('train.py', 'from bert_pytorch.__main__ import train; train()')")),
    Script("ignite_mnist", IGNITE + "mnist", "mnist.py", "vision, ignite", "--epochs 2 --val_batch_size 100"),
    Script("ignite_dcgan", IGNITE + "gan", "dcgan.py", "GAN, ignite",
           "--dataset cifar10 --dataroot data --workers 0 --batch-size 16 --z-dim 8 --g-filters 8 --d-filters 8 "
           "--epochs 8 --output-dir out --seed 1 --no-cuda", setup=("folders('out')",), steps=10, images=64),
    Script("ignite_siamese", IGNITE + "siamese_network", "siamese_network.py", "metric learning, ignite",
           "--epochs 3 --no-cuda --batch-size 16", steps=8, images=128),
    Script("ignite_fast_neural_style", IGNITE + "fast_neural_style", "neural_style.py", "style transfer, ignite",
           "train --dataset folder --dataroot data --style_image images/0/0.jpg --test_image images/0/1.jpg "
           "--image_size 32 --batch_size 2 --cuda 0 --checkpoint_model_dir . --epochs 2",
           setup=("images()", "folders('data')"), small="torchvision.models:vgg16(weights=None)", steps=6, images=16),
    Script("ignite_actor_critic", IGNITE + "reinforcement_learning", "actor_critic.py",
           "reinforcement learning, ignite"),
    Script("ignite_reinforce", IGNITE + "reinforcement_learning", "reinforce.py", "reinforcement learning, ignite"),
    Script("ignite_cifar10", IGNITE + "cifar10", "main.py", "vision, ignite, warm-up",
           "run --with_amp --model shufflenet_v2_x0_5 --batch_size 16 --num_workers 0 --num_epochs 2 "
           "--num_warmup_epochs 1 --learning_rate 0.01 --data_path data --output_path out", written_for_cuda=True,
           images=96, steps=14),
    Script("ignite_cifar100_amp", IGNITE + "cifar100_amp_benchmark", "benchmark_torch_cuda_amp.py", "vision, ignite",
           "data --batch_size 16 --max_epochs 1", written_for_cuda=True,
           small="torchvision.models:wide_resnet50_2(instead='shufflenet_v2_x0_5')", images=96, steps=14),
    Script("ignite_cifar100_fp32", IGNITE + "cifar100_amp_benchmark", "benchmark_fp32.py", "vision, ignite",
           "data --batch_size 16 --max_epochs 1", written_for_cuda=True,
           small="torchvision.models:wide_resnet50_2(instead='shufflenet_v2_x0_5')", images=96, steps=6),
    Script("spiking_mnist", SPIKING, "lif_fc_mnist.py", "spiking network",
           CPU_DEVICE + "-epochs 3 -b 16 -out-dir out -amp -opt adam", written_for_cuda=True),
    Script("spiking_fashion", SPIKING, "conv_fashion_mnist.py", "spiking network, convolutions",
           CPU_DEVICE + "-epochs 2 -b 16 -out-dir out -amp -opt sgd -channels 8", written_for_cuda=True, steps=12),
    Script("spiking_recurrent", SPIKING, "rsnn_sequential_fmnist.py", "spiking network, recurrent",
           "-model fb -device cuda:0 -data-dir data -j 0 -epochs 2 -b 32 -out-dir out -amp -opt adam -lr 0.001",
           written_for_cuda=True, steps=12),
    Script("spiking_dqn", SPIKING, "dqn_state.py", "reinforcement learning, target network", steps=60),
    Script("clean_ppo", CLEAN_RL, "ppo.py", "reinforcement learning", "--num-steps 64"),
    Script("clean_dqn", CLEAN_RL, "dqn.py", "reinforcement learning", "--learning-starts 200 --batch-size 32"),
    Script("clean_c51", CLEAN_RL, "c51.py", "reinforcement learning", "--learning-starts 200 --batch-size 32"),
    Script("clean_td3", CLEAN_RL, "td3_continuous_action.py", "RL, two optimizers",
           "--learning-starts 200 --batch-size 32"),
    Script("clean_sac", CLEAN_RL, "sac_continuous_action.py", "RL, three optimizers",
           "--learning-starts 200 --batch-size 32"),
    Script("clean_ppo_continuous", CLEAN_RL, "ppo_continuous_action.py", "reinforcement learning", "--num-steps 64"),
    Script("opacus_mnist", OPACUS, "mnist.py", "vision",
           "--disable-dp --device cpu -n 3 --data-root data -b 32 --test-batch-size 64"),
    Script("opacus_mnist_private", OPACUS, "mnist.py", "per-sample gradients",
           "--device cpu -n 2 --data-root data -b 32 --test-batch-size 64"),
    Script("opacus_char_lstm", OPACUS, "char-lstm-classification.py", "LSTM, per-sample gradients",
           "--data-root data/names --device cpu --epochs 2 --batch-size 64", setup=("names()",), steps=12),
    Script("poutyne_pure_pytorch", "poutyne-1.19.0/examples/medium_post", "pure_pytorch.py", "vision", images=60000,
           steps=40),
    Script("diffusion_scaler", "denoising_diffusion_pytorch-0.20.0", "train.py", "diffusion, accumulation, EMA",
           written_for_cuda=True, setup=("module('train.py', DIFFUSION)", "images(size=20)", "folders('results')")),
    Script("recbole_bpr", "recbole-1.2.1", "run_recbole.py", "recommender", RECBOLE_ARGUMENTS + "BPR",
           written_for_cuda=True, setup=("module('config.yaml', RECBOLE)",)),
    Script("open_clip", "open_clip_torch-3.3.0", "-m open_clip_train.main", "image and text, two towers", OPEN_CLIP,
           written_for_cuda=True, setup=("images(count=24, size=36)", "clip_data()"), steps=6),
    Script("open_clip_compiled", "open_clip_torch-3.3.0", "-m open_clip_train.main", "image and text, torch.compile",
           OPEN_CLIP + "--torchcompile", written_for_cuda=True, setup=("images(count=24, size=36)", "clip_data()"),
           steps=6),
    Script("nanogpt", "karpathy_nanoGPT", "train.py", "GPT, accumulation, clipping",
           NANO_GPT + "--dtype=float16 --compile=False", written_for_cuda=True, setup=("token_ids()",)),
    Script("nanogpt_compiled", "karpathy_nanoGPT", "train.py", "GPT, torch.compile",
           NANO_GPT + "--dtype=float16 --compile=True", written_for_cuda=True, setup=("token_ids()",)),
]
# fmt: on
