"""Four members with unlike shares of a table's rows against scikit-learn's own MLP on all rows, and against each member alone.

The tables are those that scikit-learn ships: breast cancer, diabetes, digits. For each seed a quarter of the rows is held out;
the others are dealt to four members: of each class by a Dirichlet draw (alpha 1), of numbers sorted with noise and cut into a
tenth, a fifth, three tenths and two fifths. Members tell each other statistics (`murmur statistics`), the first one founds the
run. One member that has all rows, with four times the batch, tells what being apart costs. Printed are the scores on the
held-out rows, in points (hundredths): accuracy, or R squared. With `--inner` the held-out rows are never looked at: a quarter of
the others takes their place, which is how settings are chosen.

    cargo build --release
    python scripts/bench_tables.py target/release/murmur --seeds 3
"""

import argparse
import concurrent.futures
import csv
import json
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time
import warnings

import numpy
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

MEMBERS = 4
# Rows in a member's batch.
BATCH = 32
# Task, rows, steps, learning rate.
TABLES = {
    "breast_cancer": ("classification", datasets.load_breast_cancer, 400, 0.002),
    "diabetes": ("regression", datasets.load_diabetes, 100, 0.001),
    "digits": ("classification", datasets.load_digits, 800, 0.004),
}
# A few seconds are usual; a machine that has much else to do takes long.
TRAINING_SECONDS_MAX = 600
# With gossip a run has so many times the steps at so much less a rate: a member trains on from its start, and a hundred steps of
# so small a model would be over before another one is there.
GOSSIP_STEPS = 400

RUN = """
[run]
name = "{name}"
seed = {seed}

[model]
kind = "mlp"
hidden = [100]

[optimizer]
learning_rate = {rate}
weight_decay = 0.1
batch_sequences = {batch}

[schedule]
total_steps = {steps}
warmup_steps = {warmup}
final_fraction = 0.02

[data]
source = "table"
validation_fraction = 0.05
{classes}

[table]
target = "target"
task = "{task}"
"""

# So small a model trains in a second: nobody begins before all are there.
SYNCHRONOUS = """
[synchronous]
topology = "ring"
members_min = {members}
"""


def deal(labels, task, generator):
    """The numbers of the rows of each member."""
    while True:
        if task == "regression":
            order = numpy.argsort(labels + generator.normal(0, labels.std(), len(labels)))
            shares = numpy.split(order, (numpy.cumsum([0.1, 0.2, 0.3]) * len(order)).astype(int))
        else:
            shares = [[] for _ in range(MEMBERS)]
            for label in numpy.unique(labels):
                rows = generator.permutation(numpy.flatnonzero(labels == label))
                parts = generator.dirichlet([1.0] * MEMBERS).cumsum()[:-1]
                for share, part in zip(shares, numpy.split(rows, (parts * len(rows)).astype(int))):
                    share.extend(part)
        # Of numbers all shares have a set size; of classes one may have drawn too few rows.
        if task == "regression" or min(len(share) for share in shares) >= 30:
            return [numpy.array(share, dtype=int) for share in shares]


def write(path, inputs, labels):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"x{column}" for column in range(inputs.shape[1])] + ["target"])
        for row, label in zip(inputs, labels):
            writer.writerow([*map(repr, map(float, row)), label])


def run_file(folder, name, members, table, seed, classes, batch=BATCH, gossips=False):
    task, _, steps, rate = TABLES[table]
    times = GOSSIP_STEPS if gossips else 1
    steps, rate, warmup = steps * times, rate / times, 20 * times
    named = f"class_names = {json.dumps([str(label) for label in classes])}" if task == "classification" else ""
    text = RUN.format(name=name, seed=seed, rate=rate, steps=steps, warmup=warmup, batch=batch, classes=named, task=task)
    text += "" if gossips else SYNCHRONOUS.format(members=members)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def said(folder, kind):
    """All that a member has said of a kind, in order."""
    lines = pathlib.Path(f"{folder}.json").read_text().splitlines(keepends=True)
    said = [json.loads(line) for line in lines if line.endswith("\n") and f'"{kind}"' in line]
    return [line[kind] for line in said if kind in line]


def daemon(murmur, folder, arguments):
    """A member, and what it says once it is ready."""
    arguments = [murmur, *map(str, arguments), "--data-dir", folder, "--listen", "/ip4/127.0.0.1/tcp/0", "--threads", "1"]
    arguments += ["--status-address", "off", "--format", "json", "--until-stdin-closes"]
    # A file and no pipe: nobody would read the pipe, and a daemon waits for its reader.
    with open(f"{folder}.json", "w") as output, open(f"{folder}.log", "w") as log:
        child = subprocess.Popen(list(map(str, arguments)), stdin=subprocess.PIPE, stdout=output, stderr=log)
    deadline = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < deadline:
        ready = said(folder, "ready")
        if ready:
            return child, ready[0]
        time.sleep(0.05)
    child.kill()
    raise SystemExit(f"no daemon: {pathlib.Path(f'{folder}.log').read_text()}")


def train(murmur, folder, run, files, others=()):
    """Trains one member for each file; returns their folders."""
    folders = [folder / f"{run.stem}-{number}" for number in range(len(files))]
    founding = ["start", run, "--data", files[0]] + (["--statistics", *others] if others else [])
    first, ready = daemon(murmur, folders[0], founding)
    children = [first]
    for place, file in zip(folders[1:], files[1:]):
        joining = ["join", "--bootstrap", ready["addresses"][0], "--data", file]
        children.append(daemon(murmur, place, joining)[0])
    deadline = time.monotonic() + TRAINING_SECONDS_MAX
    try:
        # Nobody leaves before all are done: the others would wait for it (members_min).
        while not all(said(place, "status")[-1:] and said(place, "status")[-1]["phase"] == "completed" for place in folders):
            if time.monotonic() > deadline or any(child.poll() is not None for child in children):
                phases = [[status["phase"] for status in said(place, "status")[-1:]] for place in folders]
                raise SystemExit(f"a member failed, or is not ready after {TRAINING_SECONDS_MAX} s: {phases}")
            time.sleep(0.3)
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            assert child.wait(timeout=60) == 0, "a member failed"
    finally:
        for child in children:
            child.kill()
    return folders


def score(murmur, folder, file, task):
    command = [murmur, "predict", folder, "--data", file, "--format", "json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    scores = json.loads(printed)["scores"]
    return 100 * scores["accuracy" if task == "classification" else "r_squared"]


def library(task, inputs, labels, new_inputs, new_labels, seed):
    if task == "classification":
        model = make_pipeline(StandardScaler(), MLPClassifier(random_state=seed, max_iter=500))
    else:
        # As good as it gets: without a standardised target or without early stopping it predicts worse than the mean.
        mlp = MLPRegressor(random_state=seed, max_iter=500, early_stopping=True)
        model = TransformedTargetRegressor(make_pipeline(StandardScaler(), mlp), transformer=StandardScaler())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return 100 * model.fit(inputs, labels).score(new_inputs, new_labels)


def split(task, inputs, labels, seed):
    stratify = labels if task == "classification" else None
    return train_test_split(inputs, labels, test_size=0.25, random_state=seed, stratify=stratify)


def measure(murmur, table, seed, folder, options):
    task, load, _, _ = TABLES[table]
    inputs, new_inputs, labels, new_labels = split(task, *load(return_X_y=True), seed)
    if options.inner:
        inputs, new_inputs, labels, new_labels = split(task, inputs, labels, 1000 + seed)
    shares = deal(labels, task, numpy.random.default_rng(seed))
    files = [folder / f"member-{number}.csv" for number in range(MEMBERS)]
    for file, share in zip(files, shares):
        write(file, inputs[share], labels[share])
    new = folder / "new.csv"
    write(new, new_inputs, new_labels)
    classes = numpy.unique(labels)
    run = run_file(folder, "swarm", MEMBERS, table, seed, classes, gossips=options.gossip)
    others = []
    for file in files[1:]:
        told = subprocess.run([murmur, "statistics", run, "--data", file], check=True, capture_output=True, text=True)
        others.append(file.with_suffix(".json"))
        others[-1].write_text(told.stdout)
    swarm = [score(murmur, place, new, task) for place in train(murmur, folder, run, files, others)]
    everything = folder / "all.csv"
    write(everything, inputs, labels)
    run = run_file(folder, "one", 1, table, seed, classes, batch=MEMBERS * BATCH)
    one = score(murmur, train(murmur, folder, run, [everything])[0], new, task)

    def by_itself(number):
        run = run_file(folder, f"alone-{number}", 1, table, seed, classes)
        return score(murmur, train(murmur, folder, run, [files[number]])[0], new, task)

    with concurrent.futures.ThreadPoolExecutor() as at_once:
        alone = list(at_once.map(by_itself, range(len(files))))
    theirs = library(task, inputs, labels, new_inputs, new_labels, seed)
    print(f"{table} seed {seed}: rows {[len(share) for share in shares]}, swarm {statistics.mean(swarm):.2f} "
          f"({min(swarm):.2f} to {max(swarm):.2f}), one with all rows {one:.2f}, scikit-learn {theirs:.2f}, alone "
          f"{' '.join(f'{value:.2f}' for value in alone)}", flush=True)
    return statistics.mean(swarm), one, theirs, max(alone), statistics.mean(alone)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("murmur", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--inner", action="store_true", help="score on a quarter of the rows that are not held out")
    parser.add_argument("--gossip", action="store_true", help="the swarm averages by gossip")
    parser.add_argument("--steps", type=int, help="of each run, instead of the table's own number")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    murmur = options.murmur.resolve()
    for name, (task, load, steps, rate) in TABLES.items():
        TABLES[name] = (task, load, options.steps or steps, rate)
    lines = []
    for table in options.tables:
        rows = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(murmur, table, seed, pathlib.Path(folder), options))
        cells = [f"{statistics.mean(column):.2f} ± {statistics.pstdev(column):.2f}" for column in zip(*rows)]
        apart = [ours - theirs for ours, _, theirs, _, _ in rows]
        lines.append(f"| {table} | {' | '.join(cells)} | {statistics.mean(apart):+.2f} |")
    print("| table | swarm of four | one member with all rows | scikit-learn, all rows | best member alone | members alone, mean | swarm less scikit-learn |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
