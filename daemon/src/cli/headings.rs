//! The sections in which `--help` lists options, and what it shows below them.

/// What is trained, on what, and for how long.
pub(crate) const TRAINING: &str = "Training";
/// Files that are read and written.
pub(crate) const DATA: &str = "Data";
/// Whom it talks to.
pub(crate) const NETWORK: &str = "Network";
/// What it takes of the network, and when.
pub(crate) const LIMITS: &str = "Limits";
/// When it leaves by itself.
pub(crate) const STAY: &str = "Stay";
/// Who may take part.
pub(crate) const PRIVACY: &str = "Privacy";
/// Programs that draw how it goes.
pub(crate) const TRACKING: &str = "Tracking";
/// What is printed.
pub(crate) const OUTPUT: &str = "Output";

/// The sections that have settings of a node, in the order in which they are shown.
pub(crate) const OF_SETTINGS: [&str; 7] = [TRAINING, DATA, NETWORK, LIMITS, PRIVACY, STAY, TRACKING];

/// Below `murmur --help`.
pub(super) const MURMUR: &str = "\
Begin with:
  murmur local            four daemons on this machine learn to write stories
  murmur start            found a swarm; it prints how others join
  murmur COMMAND --help   the options of a command, with examples";

pub(super) const INIT: &str = "\
Example:
  murmur init my-run && murmur start my-run/run.toml --node my-run/node.toml";

pub(super) const START: &str = "\
Examples:
  murmur start
  murmur start -d
  murmur start --data books/
  murmur start --data book.txt --upload-mbit 10 --quiet-hours 22:00-07:00
  murmur start lora.toml --base hf://HuggingFaceTB/SmolLM2-135M --data book.txt
  murmur start --tensorboard logs --mlflow http://127.0.0.1:5000";

pub(super) const JOIN: &str = "\
Examples:
  murmur join murmur1H6vG…
  murmur join --bootstrap /ip4/192.0.2.7/tcp/4711 --upload-mbit 10
  murmur join murmur1H6vG… --until 06:00 --max-gigabytes 20";

pub(super) const LOCAL: &str = "\
Examples:
  murmur local
  murmur local -n 2 --steps 300 --data book.txt
  murmur local -n 3 --steps 600 --against alone";

pub(super) const LEND: &str = "\
Examples:
  murmur lend
  murmur lend --memory 6GB --device cuda:0

On the machine that trains: murmur start run.toml --helper murmurL1…

A helper sees activations, from which text can be recovered, and can return anything: only for machines of one owner, or of \
friends. A team gives memory, seldom speed.";

pub(super) const COMPARE: &str = "\
Examples:
  murmur compare
  murmur compare --methods gossip,ring,diloco --links world --data book.txt
  murmur compare --real --nodes 4 --steps 96 --step-seconds 0.25
  murmur compare --list";

pub(super) const DOCTOR: &str = "\
Examples:
  murmur doctor
  murmur doctor murmur1H6vG… --upload-mbit 10

The exit code is 0 where nothing stands in the way. Else it is that with which a daemon would end: 3 for settings, 4 for the \
network, 5 for files; 1 for any other problem, or where problems differ.";

pub(super) const BENCH: &str = "\
Examples:
  murmur bench
  murmur bench run.toml --device cuda:0 --precision bf16";

pub(super) const STATUS: &str = "\
Examples:
  murmur status
  murmur status stories
  murmur status --address 127.0.0.1:4781 --format json";

pub(super) const WATCH: &str = "\
Examples:
  murmur watch
  murmur watch 127.0.0.1:4780 127.0.0.1:4781
  murmur watch ~/murmur/journal/00000001.jsonl --speed 20";

pub(super) const REPORT: &str = "\
Examples:
  murmur report
  murmur report ~/murmur other-machine/journal --output run.html
  murmur report --redact

Journals of several nodes of one run make one page; copy the folder `journal` of other machines here first.";

pub(super) const REPLAY: &str = "\
Examples:
  murmur start --record-core core
  murmur replay --check core";

pub(super) const FINISH: &str = "\
Examples:
  murmur finish
  murmur finish --in 20m";

pub(super) const BLOCK: &str = "\
Examples:
  murmur block
  murmur block 12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X
  murmur block Nft9HyQ6 --run stories";

pub(super) const UNBLOCK: &str = "\
Examples:
  murmur unblock Nft9HyQ6";

pub(super) const ID: &str = "\
Examples:
  murmur id
  murmur id ~/murmur";

pub(super) const TICKET: &str = "\
Examples:
  murmur ticket
  murmur ticket --address 127.0.0.1:4781";

pub(super) const STOP: &str = "\
Examples:
  murmur stop
  murmur stop ~/murmur";

pub(super) const LOGS: &str = "\
Examples:
  murmur logs
  murmur logs -f stories";

pub(super) const LIST: &str = "\
Examples:
  murmur list
  murmur list --format json";

pub(super) const REMOVE: &str = "\
Examples:
  murmur remove stories
  murmur remove ~/murmur --yes";

pub(super) const SERVICE: &str = "\
Examples:
  mkdir -p ~/.config/systemd/user
  murmur service --data-dir ~/murmur --run run.toml > ~/.config/systemd/user/murmur.service
  systemctl --user daemon-reload && systemctl --user enable --now murmur
  loginctl enable-linger    # so that it runs while nobody is logged in";

pub(super) const COMPLETIONS: &str = "\
Examples:
  murmur completions bash | sudo tee /etc/bash_completion.d/murmur > /dev/null
  mkdir -p ~/.config/fish/completions
  murmur completions fish > ~/.config/fish/completions/murmur.fish
  mkdir -p ~/.zfunc
  murmur completions zsh > ~/.zfunc/_murmur

For zsh, put fpath=(~/.zfunc $fpath) into ~/.zshrc, before compinit.";

pub(super) const MAN: &str = "\
Example:
  murmur man ~/.local/share/man/man1";

pub(super) const SAMPLE: &str = "\
Examples:
  murmur sample
  murmur sample ~/murmur --prompt \"Once\" --tokens 300 --top-p 0.9";

pub(super) const EVAL: &str = "\
Examples:
  murmur eval
  murmur eval ~/murmur --data book.txt --format json";

pub(super) const PREDICT: &str = "\
Examples:
  murmur predict --data new.csv > predictions.csv
  murmur predict hospitals --data new.csv --format json";

pub(super) const STATISTICS: &str = "\
Examples:
  murmur statistics run.toml --data patients.csv > statistics.json
  murmur statistics run.toml --data patients.csv --epsilon 0.5 > statistics.json";

pub(super) const EXPORT: &str = "\
Example:
  murmur export ~/murmur --to model --dtype bf16";

pub(super) const SIM: &str = "\
Begin with:
  murmur sim list
  murmur sim run churn --seeds 0..20 --output plots
  murmur sim run churn --set gossip.gamma=0.3,0.5 --output sweep
  murmur sim replay churn --seed 17";

pub(super) const SIM_RUN: &str = "\
Examples:
  murmur sim run churn --seeds 0..20 --output plots
  murmur sim run mine.toml --seed 17 --trace";

pub(super) const SIM_REPLAY: &str = "\
Example:
  murmur sim replay churn --seed 17";

pub(super) const SIM_COMPARE: &str = "\
Examples:
  murmur sim compare calm churn --seeds 0..5
  murmur sim compare plots-before plots-after";

pub(super) const SIM_CHECK_DETERMINISM: &str = "\
Example:
  murmur sim check-determinism everything --seed 17";

pub(super) const SIM_LIST: &str = "\
Example:
  murmur sim list";

pub(super) const SIM_SHOW: &str = "\
Example:
  murmur sim show everything > mine.toml";
