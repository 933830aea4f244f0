#!/usr/bin/env python3
"""Fifty steps of each optimizer by PyTorch, in 64 bits: `python reference.py > reference.json`.

AdamW is PyTorch's own. Muon and the second moment that is matched to the batch are written out below with PyTorch's
operations; where PyTorch has Muon, its first step is compared with this one (it computes in bfloat16). The unit tests of
`optimizer.rs` take the same steps and compare parameters.
"""

import json
import sys

import torch

STEPS = 50
MEMBERS = 8
RATE, BETA1, BETA2, EPSILON, DECAY, NORM_MAX = 0.01, 0.9, 0.99, 1e-8, 0.1, 1.0
MUON_RATE, MOMENTUM, POLYNOMIALS, NORM_MIN = 0.02, 0.95, [(3.4445, -4.7750, 2.0315)] * 5, 1e-7
TENSORS = {
    "model.embed_tokens.weight": [6, 4],
    "model.layers.0.input_layernorm.weight": [4],
    "model.layers.0.mlp.down_proj.weight": [4, 7],
    "model.layers.0.mlp.up_proj.weight": [7, 4],
    "model.layers.0.self_attn.q_proj.weight": [4, 4],
}


def noise(place, step):
    """Between -0.5 and 0.5, the same in every language: a multiple of 2^-24."""
    value = (place * 7919 + step * 104729 + 12345) & 0xFFFFFFFF
    for factor in (0x9E3779B1, 0x85EBCA77):
        value = ((value ^ (value >> 15)) * factor) & 0xFFFFFFFF
    return (value >> 8) / 2**24 - 0.5


def tensors(step):
    """Noise in the order of the layout, which is that of the names."""
    place, made = 0, {}
    for name in sorted(TENSORS):
        shape = torch.Size(TENSORS[name])
        values = [noise(place + index, step) for index in range(shape.numel())]
        made[name] = torch.tensor(values, dtype=torch.float64).reshape(shape)
        place += shape.numel()
    return made


def gradients(parameters, step):
    """They depend on the parameters, so that mistakes add up; in every other step they are clipped."""
    made = {name: noise * (0.1 if step % 2 else 1) + 0.1 * parameters[name] for name, noise in tensors(step).items()}
    norm = torch.cat([gradient.flatten() for gradient in made.values()]).norm()
    return {name: gradient * min(1.0, NORM_MAX / norm.item()) for name, gradient in made.items()}


def is_hidden(name):
    return name.endswith("_proj.weight")


def orthogonalised(matrix):
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + NORM_MIN)
    for a, b, c in POLYNOMIALS:
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


class Muon:
    def __init__(self):
        self.momentum = {}

    def step(self, name, parameter, gradient):
        mean = self.momentum.setdefault(name, torch.zeros_like(gradient))
        mean.lerp_(gradient, 1 - MOMENTUM)
        update = orthogonalised(gradient.lerp(mean, MOMENTUM))
        rate = MUON_RATE * max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
        parameter.mul_(1 - MUON_RATE * DECAY).sub_(rate * update)


class Matched:
    """AdamW with the second moment of as many gradients as there are members."""

    def __init__(self):
        self.state, self.steps = {}, 0

    def step(self, name, parameter, gradient):
        first, second, average = self.state.setdefault(name, [torch.zeros_like(gradient) for _ in range(3)])
        decay = (MEMBERS - 1) / (MEMBERS + 1)
        average.lerp_(gradient, 1 - decay)
        first.lerp_(gradient, 1 - BETA1)
        seen = average / (1 - decay**self.steps)
        second.mul_(BETA2).add_((1 - BETA2) * seen * seen)
        parameter.mul_(1 - RATE * DECAY if parameter.ndim > 1 else 1)
        unbiased = first / (1 - BETA1**self.steps), second / (1 - BETA2**self.steps)
        parameter.sub_(RATE * unbiased[0] / (unbiased[1].sqrt() + EPSILON))


def adamw(parameters):
    matrices = [parameter for parameter in parameters.values() if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters.values() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)


def train(by_muon, matched):
    parameters = tensors(0)
    rest = {name: parameter for name, parameter in parameters.items() if not (by_muon and is_hidden(name))}
    muon, adam = Muon(), Matched() if matched else adamw(rest)
    for step in range(1, STEPS + 1):
        given = gradients(parameters, step)
        for name in parameters.keys() - rest.keys():
            muon.step(name, parameters[name], given[name])
        if matched:
            adam.steps = step
            for name, parameter in rest.items():
                adam.step(name, parameter, given[name])
        else:
            for name, parameter in rest.items():
                parameter.grad = given[name]
            adam.step()
    return [value.item() for name in sorted(parameters) for value in parameters[name].flatten()]


def compare_with_pytorchs_muon():
    if not hasattr(torch.optim, "Muon"):
        return
    for name in filter(is_hidden, TENSORS):
        ours, gradient = tensors(0)[name].clone(), tensors(1)[name]
        theirs = ours.float().requires_grad_()
        theirs.grad = gradient.float()
        torch.optim.Muon([theirs], lr=MUON_RATE, weight_decay=DECAY, momentum=MOMENTUM).step()
        before = ours.clone()
        Muon().step(name, ours, gradient)
        moved = (ours - before).norm()
        apart = (theirs.detach().double() - ours).norm()
        print(f"{name}: {apart / moved:.4f} of the way apart from PyTorch's own", file=sys.stderr)
        assert apart < 0.05 * moved, name


compare_with_pytorchs_muon()
cases = {"adamw": (False, False), "adamw, matched": (False, True), "muon": (True, False), "muon, matched": (True, True)}
lines = [f"{json.dumps(name)}: {[round(value, 9) for value in train(*case)]}" for name, case in cases.items()]
print("{\n" + ",\n".join(lines) + "\n}")
