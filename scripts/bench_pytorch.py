#!/usr/bin/env python3
"""The transformer of a murmur run in PyTorch, to measure it beside `murmur bench` and to compare losses step by step.

Same tensors under the same names, same shapes, same optimizer: fused AdamW (matrices decay), clipping of the
gradient's norm, scaled_dot_product_attention, and torch.compile with --compile. `murmur bench --python` drives it: for
each line "N" on stdin it takes N steps and answers one line of JSON. Alone, with --steps, it prints one such line.

On processors of AMD the MKL within PyTorch leaves AVX-512 unused unless --force-mkl (Linux, with a C compiler).

Needs torch; with --weights also safetensors and numpy.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

# MKL asks this function whether the processor is Intel's, and takes its slower products where it is not.
ANSWER_TO_MKL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"

# The folder of the library, for the second beginning.
FOLDER = "MURMUR_BENCH_MKL_FOLDER"


def begin_again_with_fast_mkl():
    """Begins this script again in this process, with a library in front of MKL's that answers yes.

    The torch of PyPI has MKL built in, and MKL has no setting for this (MKL_DEBUG_CPU_TYPE is gone since 2020).
    """
    folder = tempfile.mkdtemp(prefix="murmur-bench-mkl-")
    source, library = os.path.join(folder, "answer.c"), os.path.join(folder, "answer.so")
    with open(source, "w") as file:
        file.write(ANSWER_TO_MKL)
    try:
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(folder)
        sys.exit(f"--force-mkl needs a C compiler: {error}")
    arguments = [argument for argument in sys.argv if argument != "--force-mkl"]
    os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, "LD_PRELOAD": library, FOLDER: folder})


if __name__ == "__main__":
    if "--force-mkl" in sys.argv:
        begin_again_with_fast_mkl()
    if FOLDER in os.environ:
        # It is loaded by now, and the compilers that torch starts have no use for it.
        shutil.rmtree(os.environ.pop(FOLDER))
        del os.environ["LD_PRELOAD"]

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        width, inner = spec["width"], spec["feed_forward"]
        self.heads, self.key_heads = spec["heads"], spec["key_value_heads"] or spec["heads"]
        self.head_width = width // self.heads
        linear = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)
        self.input_layernorm = torch.nn.RMSNorm(width, eps=spec["norm_epsilon"])
        self.self_attn = torch.nn.ModuleDict(
            {
                "q_proj": linear(width, width),
                "k_proj": linear(width, self.key_heads * self.head_width),
                "v_proj": linear(width, self.key_heads * self.head_width),
                "o_proj": linear(width, width),
            }
        )
        self.post_attention_layernorm = torch.nn.RMSNorm(width, eps=spec["norm_epsilon"])
        self.mlp = torch.nn.ModuleDict(
            {"gate_proj": linear(width, inner), "up_proj": linear(width, inner), "down_proj": linear(inner, width)}
        )

    def forward(self, stream, cosines, sines):
        batch, length, width = stream.shape
        split = lambda values: values.view(batch, length, -1, self.head_width).transpose(1, 2)
        normalised, part = self.input_layernorm(stream), self.self_attn
        query = rotate(split(part["q_proj"](normalised)), cosines, sines)
        key = rotate(split(part["k_proj"](normalised)), cosines, sines)
        value = split(part["v_proj"](normalised))
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.key_heads != self.heads
        )
        stream = stream + part["o_proj"](attended.transpose(1, 2).reshape(batch, length, width))
        normalised = self.post_attention_layernorm(stream)
        gated = F.silu(self.mlp["gate_proj"](normalised)) * self.mlp["up_proj"](normalised)
        return stream + self.mlp["down_proj"](gated)


def rotate(heads, cosines, sines):
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


# What is not computed here, at the values that take nothing.
PLAIN = {
    "head_width": 0,
    "rope_scaling": "none",
    "layers_without_rope": [],
    "attention_bias": "none",
    "head_norm": False,
}


class Model(torch.nn.Module):
    """Returns the mean cross-entropy in nats."""

    def __init__(self, spec):
        super().__init__()
        width = spec["width"]
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(spec["vocabulary"], width)
        self.model.layers = torch.nn.ModuleList(Block(spec) for _ in range(spec["layers"]))
        self.model.norm = torch.nn.RMSNorm(width, eps=spec["norm_epsilon"])
        self.lm_head = torch.nn.Linear(width, spec["vocabulary"], bias=False)
        if spec["tied_head"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        half = width // spec["heads"] // 2
        frequencies = spec["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(spec["context"], dtype=torch.float64), frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def forward(self, inputs, targets):
        stream = self.model.embed_tokens(inputs)
        length = inputs.shape[1]
        for block in self.model.layers:
            stream = block(stream, self.cosines[:length], self.sines[:length])
        logits = self.lm_head(self.model.norm(stream))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the run's [model] section as JSON")
    parser.add_argument("--optimizer", required=True, help="the run's [optimizer] section as JSON")
    parser.add_argument("--threads", type=int, default=0, help="0 takes all cores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="with --compile: replay CUDA graphs")
    parser.add_argument("--force-mkl", action="store_true", help="have MKL treat the processor as one of Intel's")
    parser.add_argument("--weights", help="safetensors to begin with")
    parser.add_argument("--tokens", help="u32 windows of context + 1 tokens, one batch after the other")
    parser.add_argument("--rates", help="learning rates of the steps as a JSON list; the last one stays")
    parser.add_argument("--steps", type=int, help="take so many steps, print, end")
    options = parser.parse_args()
    if options.graphs and not options.compile:
        parser.error("--graphs needs --compile")
    spec, settings = json.loads(options.model), json.loads(options.optimizer)
    for key, plain in PLAIN.items():
        if spec.get(key, plain) != plain:
            sys.exit(f"model.{key} = {spec[key]} is not computed by this script")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model(spec)
    if options.weights:
        from safetensors.torch import load_file

        missing = model.load_state_dict(load_file(options.weights), strict=False).missing_keys
        assert set(missing) <= {"lm_head.weight"} and (not missing or spec["tied_head"]), missing
    model.to(options.device)
    on_gpu = options.device != "cpu"
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings["weight_decay"]},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings["learning_rate"],
        betas=(settings["beta1"], settings["beta2"]),
        eps=settings["epsilon"],
        fused=True,
    )
    rates = json.loads(options.rates) if options.rates else [settings["learning_rate"]]
    batches = endless_batches(options.tokens, settings["batch_sequences"], spec["context"], spec["vocabulary"])
    mode = "reduce-overhead" if options.graphs else "default"
    loss_of = torch.compile(model, mode=mode) if options.compile else model
    taken = 0

    def step():
        nonlocal taken
        for group in optimizer.param_groups:
            group["lr"] = rates[min(taken, len(rates) - 1)]
        taken += 1
        windows = next(batches).to(options.device)
        with torch.autocast(torch.device(options.device).type, torch.bfloat16, enabled=options.bf16):
            loss = loss_of(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["gradient_norm_max"])
        optimizer.step()
        return loss.item()

    def answer(count):
        begin, processor = time.perf_counter(), time.process_time()
        losses = [step() for _ in range(count)]
        result = {
            "seconds": time.perf_counter() - begin,
            "processor_seconds": time.process_time() - processor,
            "losses": losses,
            "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else host_peak_bytes(),
        }
        print(json.dumps(result), flush=True)

    if options.steps:
        answer(options.steps)
    else:
        for line in sys.stdin:
            answer(int(line))


def host_peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def endless_batches(path, sequences, context, vocabulary):
    """Batches `[sequences, context + 1]`: those of the file from its beginning, or random ones."""
    if path is None:
        while True:
            yield torch.randint(0, vocabulary, (sequences, context + 1))
    import numpy

    windows = torch.from_numpy(numpy.fromfile(path, dtype="<u4").astype("int64")).view(-1, sequences, context + 1)
    while True:
        yield from windows


if __name__ == "__main__":
    main()
