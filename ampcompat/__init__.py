"""ampcompat: Apex's mixed-precision API on any PyTorch and any device.

Owns: the names that users import: ``amp`` is the door that scripts written for Apex know; ``session``, ``current``,
``reset``, ``memory_report`` and ``estimate`` are what Apex never had.
Must not touch: anything. Importing changes nothing: no patch, no alias, no print.
The surprise: torch is not imported until one of these names is used, so that the command line starts at once.

The rooms. A layer imports only from itself and from those above it in this list:

    errors              one small tree; user errors are also RuntimeError

    tables/             data, no behaviour
      redirections      what of CUDA is redirected under ``run --device``, name by name
      opt_levels        Policy and O0 … O5 as rows; the only place where options merge
      op_rows, op_rules the op table as written; its expansion, the user's edits and registrations
      torch_facts       the only reader of torch's version and features; cpu_speed, how fast half is there

    parts/              mechanisms, each usable alone
      casting           floating tensors in nested arguments and outputs
      patching          PatchStack: set, undo in reverse
      notices           everything a user reads while training
      scaler            the loss scale and its automaton; the answer may stay on the device
      agreement         ranks of a process group come to one verdict
      tensors           arithmetic over lists of tensors
      models, forwards, state_dicts   a model's weights; what goes in and out; float32 checkpoints
      optimizers, links, chunks, masters, skips, steps, stash_names, old_layouts, bystanders
                        the adapter of an optimizer: its masters, memory for their gradients, what its step heeds, its replaced methods,
                        Apex's names for all that, its older checkpoints, passes that it was not given to
      sharding, replicas   models that fully_shard has sharded; cast ones that DistributedDataParallel wraps
      magnitudes, listening, reasons   how large values are, unread; what modules put out; why a step was skipped, in words
      exponents         gradients by powers of two, and what float16 would make of them
      diagnosis         why a run overflows for ever
      half_math         half arithmetic at float32 speed on a CPU without half units
      memory            MemoryMeter: bytes of a step by kind; by way of storages, saved (by autograd), allocations
      footprint         the formula beforehand; state_sizes tries the optimizer; memory_kinds, memory_words: records, text

    backends/           who makes a function run in the right dtype
      base              CastBackend, the contract; NoCasts, the null object
      native, patched   torch's autocast made to agree with the table; wrappers alone
      wrapping, rules, casts, placing   what both share: a wrapper per row, and where it goes
      half_mode         products of half tensors on a slow CPU, in models whose weights are half
      cache             casts of weights, never stale
      switch, autocast_flags, autograd, rnn, norms, compiling, scripting
                        pauses; autocast's flags; backward without casts; what torch's other parts need

    runtime/            what is open now
      session           initialize, scale_loss, close; requests and backward are its two halves
      casts             the backend in force; registration and op_lists are the user's say in it
      accumulation      several iterations per optimizer step
      observers         who listens; forensics is one, and evidence what it keeps of a pass
      memory_watch      measures the memory of some steps
      hopeless, handle, disabled
      state             the only mutable module-level values

    apex/               the annex: what ``apex`` means, nowhere else: install, state_view, properties, and site/, the alias;
                        beside, another package of that name
      parallel          larc, sync_batchnorm, multiproc, balanced; distributed sends gradients in buckets, flat sends tensors
      optimizers        fused, the base; adam, sgd, lamb, mixed_lamb, novograd, adagrad; scaling, what a step is told
      multi_tensor      updates: the formulas, over lists; fused_adam; batches, functions (amp_C), apply, flat (apex_C)
      normalization     norm_functions, norm_modules
      fp16_utils        fp16util: conversions and masters as lists; loss_scaler, fp16_optimizer
      mlp               perceptron, fused_dense
      recurrent         cells, stacks: apex.RNN; reparameterization, pyprof
      contrib           clip_grad, xentropy, layer_norm; optimizers and fp16_optimizer of before 2019
    devices/            run what was written for CUDA on another device: redirection, target, startup, watching
      arguments, movement, facades, tensor_types, streams, answers, precision, one_device, refusals   what takes CUDA's place
    amp, sessions       the doors
    mmcv/               the door of those who know MMCV
      decorators, conversion   auto_fp16, force_fp32; the flag and norms; opening, the session behind them
      hooks             the optimizer hooks; foundation, graphs; turns, what is accumulated; reduction, averages over ranks
      scaling           MMCV's loss scales and their checkpoints
      installation, in_configs   ours in the places of mmcv's
    memory              the door of memory_report and estimate
    abtest/             the door of A/B runs
      comparison        compare(train, levels); seeding: the same random numbers for each level
      recorder, companions   what is heard of a run
      journal           the events of a run, in memory and in a file
      records           Report, Run, Memory, Finding; their JSON schema
      divergence, advisor   how far losses are apart; the noise of seeds; which level to take
      table, words      a report as text; numbers as people read them
      page, markup      a report as one HTML file; escaped text, tables, style
      figures, curves, bars, looks, series   its charts: canvases; what is drawn; how levels look; smoothing and thinning
    cli/                the desk: run, install, info, ab, report, parsing; __main__ opens it
      fresh, child, progress   a level in a process of its own, what runs there, what is seen of it meanwhile
"""

import importlib

__version__ = "0.1.0"

__all__ = ["amp", "current", "estimate", "gradient_histogram", "memory_report", "reset", "session"]

_HOMES = {
    "amp": None,
    "session": "sessions",
    "current": "sessions",
    "reset": "sessions",
    "gradient_histogram": "sessions",
    "memory_report": "memory",
    "estimate": "memory",
}


def __getattr__(name):
    """Import the door behind a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    module = importlib.import_module("." + (_HOMES[name] or name), __name__)
    found = module if _HOMES[name] is None else getattr(module, name)
    globals()[name] = found
    return found


def __dir__():
    return sorted(set(globals()) | set(__all__))
