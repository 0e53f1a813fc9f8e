"""Writes the small data sets that scripts read from files; each function gets the folder in which a script runs."""

import gzip
import os
import random

from PIL import Image


def folders(folder, *names):
    """Make empty folders."""
    for name in names:
        os.makedirs(os.path.join(folder, name), exist_ok=True)


def text(folder, path="data/train.txt", words=40, lines=400):
    """Write lines of words that follow each other in a pattern."""
    rng = random.Random(0)
    os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
    with open(os.path.join(folder, path), "w") as file:
        for _ in range(lines):
            start = rng.randrange(words)
            file.write(" ".join(f"w{(start + 3 * index) % words}" for index in range(12)) + "\n")


def token_ids(folder, vocabulary=64, count=4000):
    """Write the ids of tokens that follow each other in a pattern, as nanoGPT reads them."""
    import pickle
    import struct

    os.makedirs(os.path.join(folder, "data", "tokens"), exist_ok=True)
    for name in ("train.bin", "val.bin"):
        with open(os.path.join(folder, "data", "tokens", name), "wb") as file:
            file.write(struct.pack(f"<{count}H", *[index * 7 % vocabulary for index in range(count)]))
    with open(os.path.join(folder, "data", "tokens", "meta.pkl"), "wb") as file:
        pickle.dump({"vocab_size": vocabulary}, file)


def enwik8(folder):
    """Write 91 million bytes that compress well, as scripts split the file at 90 million."""
    os.makedirs(os.path.join(folder, "data"), exist_ok=True)
    shared = os.path.join(os.path.dirname(folder.rstrip(os.sep)), "enwik8.gz")
    if not os.path.exists(shared):
        rng = random.Random(0)
        line = bytes(rng.choice(b"abcdefgh ijklm nop") for _ in range(65521))
        with gzip.open(shared, "wb", compresslevel=1) as file:
            file.write((line * (91_000_000 // len(line) + 1))[:91_000_000])
    if not os.path.exists(os.path.join(folder, "data", "enwik8.gz")):
        os.symlink(shared, os.path.join(folder, "data", "enwik8.gz"))


def cora(folder, nodes=1700, features=60):
    """Write a citation network of seven classes in the files of the Cora data set."""
    rng = random.Random(0)
    os.makedirs(os.path.join(folder, "cora"), exist_ok=True)
    with open(os.path.join(folder, "cora", "cora.content"), "w") as file:
        for node in range(nodes):
            label = node % 7
            bits = [int(rng.random() < (0.4 if index % 7 == label else 0.1)) for index in range(features)]
            file.write("\t".join(map(str, [node, *bits, f"class{label}"])) + "\n")
    with open(os.path.join(folder, "cora", "cora.cites"), "w") as file:
        for node in range(nodes):
            for step in (7, 14, rng.randrange(1, nodes)):
                file.write(f"{node}\t{(node + step) % nodes}\n")


def images(folder, path="images/0", count=64, size=72):
    """Write JPEG files."""
    rng = random.Random(0)
    os.makedirs(os.path.join(folder, path), exist_ok=True)
    for index in range(count):
        base = Image.new("RGB", (4, 4))
        base.putdata([tuple(rng.randrange(256) for _ in range(3)) for _ in range(16)])
        base.resize((size, size)).save(os.path.join(folder, path, f"{index}.jpg"))


def names(folder):
    """Write text files of names by language."""
    rng = random.Random(0)
    os.makedirs(os.path.join(folder, "data/names"), exist_ok=True)
    for language, letters in (("Alpha", "abcdefg"), ("Beta", "hijklmn"), ("Gamma", "opqrstu")):
        with open(os.path.join(folder, "data/names", language + ".txt"), "w") as file:
            file.writelines("".join(rng.choice(letters) for _ in range(6)).title() + "\n" for _ in range(200))


def sine_waves(folder):
    """Write the tensor file of ``time_sequence_prediction``."""
    import numpy
    import torch

    wave = numpy.sin((numpy.arange(60) + numpy.arange(8).reshape(8, 1) * 4) / 5.0).astype("float64")
    torch.save(wave, os.path.join(folder, "traindata.pt"))


def module(folder, path, source):
    """Write a Python file, such as the stand-in of a data set."""
    with open(os.path.join(folder, path), "w") as file:
        file.write(source)


def sentence_pairs(folder):
    """Write ``corpus.txt`` and its ``vocab`` for ``bert_pytorch``."""
    import sys

    rng = random.Random(0)
    with open(os.path.join(folder, "corpus.txt"), "w") as file:
        for _ in range(300):
            start = rng.randrange(30)
            halves = [" ".join(f"w{(start + index) % 30}" for index in part) for part in (range(5), range(5, 10))]
            file.write("\t".join(halves) + "\n")
    sys.path.insert(0, folder)
    from bert_pytorch.dataset.vocab import WordVocab

    with open(os.path.join(folder, "corpus.txt")) as file:
        WordVocab(file, max_size=None, min_freq=1).save_vocab(os.path.join(folder, "vocab"))
    sys.path.remove(folder)


def clip_data(folder):
    """Write the captions of the images of ``images``, and the configuration of a small model of ``open_clip``."""
    import json

    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8}
    words = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    with open(os.path.join(folder, "open_clip", "model_configs", "tiny.json"), "w") as file:
        json.dump({"embed_dim": 32, "vision_cfg": vision, "text_cfg": words}, file)
    with open(os.path.join(folder, "train.csv"), "w") as file:
        file.write("filepath,title\n")
        file.writelines(f"images/0/{index}.jpg,picture {index} of some\n" for index in range(24))


def audio(folder, count=64, seconds=0.6, rate=16000):
    """Write WAV files of tones, one per letter of their text, and a list of them, one JSON object a line."""
    import json
    import math
    import struct
    import wave

    rng = random.Random(0)
    with open(os.path.join(folder, "audio.json"), "w") as listed:
        for index in range(count):
            text = "".join(rng.choice("abcdefg") for _ in range(4))
            path = os.path.join(folder, f"{index}.wav")
            samples = int(seconds * rate)
            tones = [200 + 150 * "abcdefg".index(text[4 * each // samples]) for each in range(samples)]
            values = [int(9000 * math.sin(6.2832 * tone * each / rate)) for each, tone in enumerate(tones)]
            with wave.open(path, "wb") as file:
                file.setparams((1, 2, rate, samples, "NONE", ""))
                file.writeframes(struct.pack(f"<{samples}h", *values))
            listed.write(json.dumps({"audio_filepath": path, "duration": seconds, "text": text}) + "\n")


def proteins(folder):
    """Write LMDB files of amino acid sequences and the classes of their folds, as ``tape`` reads them."""
    import pickle

    import lmdb

    rng = random.Random(0)
    for part, names in (("pfam", ("train", "valid")), ("remote_homology", ("train", "valid"))):
        os.makedirs(os.path.join(folder, "data", part), exist_ok=True)
        for name in names:
            env = lmdb.open(os.path.join(folder, "data", part, f"{part}_{name}.lmdb"), map_size=1 << 24)
            with env.begin(write=True) as transaction:
                for index in range(64):
                    letters = "".join(rng.choice("ACDEFGHIKLMNPQRSTVWY") for _ in range(24))
                    item = {"primary": letters * 2, "protein_length": 48, "clan": 1, "family": 1}
                    item["fold_label"] = "ACDEFGHIKLMNPQRSTVWY".index(letters[0])
                    transaction.put(str(index).encode(), pickle.dumps(item))
                transaction.put(b"num_examples", pickle.dumps(64))
            env.close()


def made(folder, source):
    """Run Python source that writes files into the folder."""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", source], cwd=folder, check=True)


def squiggles(folder, count=160, samples=300):
    """Write signals with one level per base, and their bases, in the arrays that ``bonito`` reads."""
    import numpy

    rng = numpy.random.RandomState(0)
    bases = rng.randint(1, 5, (count, 20))
    levels = numpy.repeat(bases - 2.5, samples // 20, axis=1)
    arrays = {
        "chunks": (levels + 0.2 * rng.randn(count, samples)).astype("float32"),
        "chunk_lengths": numpy.full(count, samples),
        "references": bases,
        "reference_lengths": numpy.full(count, 20),
    }
    for name, values in arrays.items():
        numpy.save(os.path.join(folder, name + ".npy"), values)
