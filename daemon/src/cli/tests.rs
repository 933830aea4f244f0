//! What can be typed, tried without starting anything.

use super::*;

fn parsed(arguments: &[&str]) -> Result<Cli, clap::Error> {
    let words: Vec<&str> = std::iter::once("murmur").chain(arguments.iter().copied()).collect();
    understood(&words)
}

fn refusal(arguments: &[&str]) -> String {
    let error = parsed(arguments).expect_err("a mistake");
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

/// The commands that can be given, with the words that lead to each.
fn commands() -> Vec<(Vec<String>, clap::Command)> {
    fn below(words: &[String], command: &clap::Command, all: &mut Vec<(Vec<String>, clap::Command)>) {
        for command in command.get_subcommands() {
            let words: Vec<String> = words.iter().cloned().chain([command.get_name().to_owned()]).collect();
            match command.has_subcommands() {
                true => below(&words, command, all),
                false => all.push((words, command.clone())),
            }
        }
    }
    let mut all = Vec::new();
    let mut command = command();
    command.build();
    below(&[], &command, &mut all);
    all.retain(|(words, _)| !words.contains(&"help".to_owned()));
    all
}

#[test]
fn of_a_value_without_end_only_the_beginning_is_told() {
    let error = parsed(&["sample", "--tokens", &"9".repeat(3000)]).expect_err("too many");
    let told = environment::shortened_in(error).to_string();
    assert!(told.contains(&format!("'{}…'", "9".repeat(80))) && told.len() < 1000, "{told}");
}

#[test]
fn a_pasted_line_behind_the_command_is_the_command_once() {
    let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
    assert_eq!(without_repetition(words("murmur join murmur join T --port 1")), words("murmur join T --port 1"));
    for line in ["murmur join T", "murmur join", "murmur", "murmur start murmur join"] {
        assert_eq!(without_repetition(words(line)), words(line));
    }
}

#[test]
fn the_command_line_is_consistent() {
    command().debug_assert();
}

/// Whatever an option takes, a negative number after it is never an option of its own, and the answer is never a tip on
/// how to pass one.
#[test]
fn a_negative_number_belongs_to_its_option() {
    let mut tried = 0;
    for (words, command) in commands() {
        for option in command.get_opts().filter_map(clap::Arg::get_long) {
            let option = format!("--{option}");
            let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
            arguments.extend([option.as_str(), "-1"]);
            if let Err(error) = parsed(&arguments) {
                let text = error.to_string();
                assert!(!text.contains("unexpected argument"), "{arguments:?}: {text}");
                let is_about_it = text.contains(&format!("for '{option}")) || text.contains("required arguments");
                assert!(is_about_it, "{arguments:?}: {text}");
            }
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried} options");
}

#[test]
fn a_number_out_of_range_is_answered_with_option_and_range() {
    let cases: [(&[&str], &str, &str); 12] = [
        (&["start", "--threads", "-1"], "--threads <N>", "from 0 to 1024; 0 takes all cores"),
        (&["start", "--steps", "-5"], "--steps <N>", "a whole number from 1; leave it out to set no limit"),
        (&["join", "--upload-mbit", "-2.5"], "--upload-mbit <MBIT>", "0 (no cap), or 0.2 to 1000000"),
        (&["join", "--download-mbit", "nan"], "--download-mbit <MBIT>", "0 (no cap), or 0.2 to 1000000"),
        (&["start", "--daily-gigabytes", "-1e3"], "--daily-gigabytes <GB>", "0 (no budget) to 1000000"),
        (&["local", "-n", "-4"], "--nodes <N>", "from 1 to 64"),
        (&["local", "-n", "65"], "--nodes <N>", "from 1 to 64"),
        (&["sample", "--temperature", "-1"], "--temperature <T>", "a number from 0 to 10"),
        (&["sample", "--top-p", "0"], "--top-p <P>", "a number above 0, at most 1"),
        (&["sample", "--tokens", "-3"], "--tokens <N>", "from 1 to 1000000"),
        (&["bench", "--micro-batch", "0"], "--micro-batch <N>", "a whole number from 1"),
        (&["sim", "run", "churn", "--jobs", "-1"], "--jobs <N>", "from 1 to 1024"),
    ];
    for (arguments, option, rule) in cases {
        let text = refusal(arguments);
        assert!(text.contains(option) && text.contains(rule), "{arguments:?}: {text}");
    }
}

#[test]
fn no_steps_at_all_are_refused_by_every_command_that_takes_steps() {
    let mut tried = 0;
    for (words, command) in commands() {
        if command.get_opts().any(|option| option.get_long() == Some("steps")) {
            let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
            arguments.extend(["--steps", "0"]);
            let text = refusal(&arguments);
            assert!(text.contains("'0' for '--steps <N>': it takes a whole number from 1"), "{text}");
            tried += 1;
        }
    }
    assert!(tried >= 4, "start, join, local and bench, not {tried}");
}

#[test]
fn a_log_filter_that_is_none_is_an_error() {
    for good in ["warn", "off", "info,libp2p_kad=error", "murmur_network=debug", "WARN"] {
        assert_eq!(parsed(&["--log", good, "status"]).expect("a filter").log, good);
    }
    for wrong in ["bogus", "murmur=bogus", "warn,loud", "=", "a b c"] {
        let text = refusal(&["status", "--log", wrong]);
        assert!(text.contains("--log <FILTER>") && text.contains("it takes error, warn, info"), "{wrong}: {text}");
    }
}

/// Every option stands in a section that says what it is about, or is one of the few of the command itself.
#[test]
fn help_is_in_sections_with_an_example_and_fits_a_terminal() {
    for (words, command) in commands() {
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        arguments.push("--help");
        let narrow = super::command().term_width(80);
        let typed = std::iter::once(&"murmur").chain(&arguments);
        let text = narrow.try_get_matches_from(typed).expect_err("help").to_string();
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest <= 80, "{words:?}: {widest} columns");
        assert!(with_ascii(text.as_str().into()).is_ascii(), "{words:?}: {text}");
        let example = format!("  murmur {}", words.join(" "));
        assert!(text.contains("\nExample") && text.contains(&example), "{words:?} has no example: {text}");
        let without = |option: &&clap::Arg| option.get_help_heading().is_none();
        let loose = command.get_opts().filter(without).count();
        assert!(loose <= 6, "{words:?} has {loose} options outside of sections");
        assert!(!text.contains("[env:"), "{words:?}");
        let has_variable =
            command.get_opts().any(|option| option.get_env().is_some() && option.get_long() != Some("log"));
        assert_eq!(text.to_lowercase().contains("environment variables"), has_variable, "{words:?}: {text}");
    }
    for words in ["start", "join"] {
        let text = parsed(&[words, "--help"]).expect_err("help").to_string();
        let place = |section: &str| text.find(&format!("\n{section}:\n")).unwrap_or_else(|| panic!("no {section}"));
        let places = ["Training", "Data", "Network", "Limits", "Privacy", "Output"].map(place);
        assert!(places.is_sorted(), "{text}");
    }
}

/// What one command hears from the environment, no other one that has the option may pass over.
#[test]
fn every_command_with_such_an_option_hears_its_variable() {
    let mut heard = 0;
    for (words, command) in commands() {
        for name in ["format", "data", "base", "tokenizer", "device", "address", "training-percent"] {
            let Some(option) = command.get_opts().find(|option| option.get_long() == Some(name)) else { continue };
            let variable = match name {
                "address" => "MURMUR_STATUS_ADDRESS".to_owned(),
                _ => format!("MURMUR_{}", name.to_uppercase().replace('-', "_")),
            };
            assert_eq!(option.get_env().and_then(|env| env.to_str()), Some(variable.as_str()), "{words:?} --{name}");
            heard += 1;
        }
    }
    assert!(heard > 40, "{heard}");
    for (words, expected) in [("list", "MURMUR_FORMAT."), ("start", "but --hours, "), ("eval", "MURMUR_DATA, ")] {
        let text = parsed(&[words, "--help"]).expect_err("help").to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_command_lists_only_what_it_takes() {
    let help = |command: &str| parsed(&[command, "--help"]).expect_err("help").to_string();
    let doctor = help("doctor");
    for foreign in ["--exit", "--steps", "--status-address", "--closed", "--allow", "--quiet-hours"] {
        assert!(!doctor.contains(foreign), "doctor takes no {foreign}");
        assert!(help("start").contains(foreign), "start takes {foreign}");
    }
}

#[test]
fn what_was_typed_is_typed_again_but_for_what_is_named_anyway_or_over() {
    let typed = "start run.toml --data-dir d --data a.txt b.txt --steps 5 --device cpu --epsilon 3 --name ada \
                 --helper L1,L2 --bootstrap /ip4/192.0.2.7/tcp/4711 --node n.toml --exit --port 4800";
    let Command::Start(options) = parsed(&typed.split_whitespace().collect::<Vec<_>>()).expect("sound").command else {
        panic!("start")
    };
    let again = options.node.again();
    let words: Vec<&str> = again.split_whitespace().collect();
    let mut expected =
        "--node=n.toml --device=cpu --helper LINE --helper LINE --epsilon=3 --name=ada --port=4800 --exit"
            .split_whitespace()
            .collect::<Vec<_>>();
    let mut sorted = words.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    let mut started = vec!["start", "--data-dir", "d"];
    started.extend(words);
    assert!(parsed(&started).is_ok(), "it can be typed: {started:?}");
}

/// One of the two would be ignored without a word.
#[test]
fn a_daemon_is_named_by_its_run_or_by_its_address_but_not_by_both() {
    for command in ["status", "ticket", "finish", "id"] {
        let said = refusal(&[command, "d1", "--address", "127.0.0.1:4780"]);
        assert!(said.starts_with("error: the argument '--address <ADDRESS>' cannot be used with '[RUN]'"), "{said}");
        assert!(said.contains(&format!("Usage: murmur {command} [OPTIONS] [RUN]")), "{said}");
        assert!(parsed(&[command, "d1"]).is_ok() && parsed(&[command, "--address", "a:1"]).is_ok());
    }
    for command in ["block", "unblock"] {
        let said = refusal(&[command, "--run", "d1", "--address", "127.0.0.1:4780"]);
        assert!(
            said.starts_with("error: the argument '--address <ADDRESS>' cannot be used with '--run <RUN>'"),
            "{said}"
        );
    }
    let said = refusal(&["id", "--data-dir", "d1", "--address", "127.0.0.1:4780"]);
    assert!(said.contains("cannot be used with '--data-dir <FOLDER>'"), "{said}");
}

/// The run of the swarm that is asked would be looked at, and the file would not be read.
#[test]
fn a_doctor_looks_at_a_run_file_or_at_a_swarm_but_not_at_both() {
    for swarm in [&["murmur1H6vG"][..], &["--bootstrap", "/ip4/192.0.2.7/tcp/4711"]] {
        let said = refusal(&[&["doctor", "--run", "run.toml"][..], swarm].concat());
        assert!(said.contains("cannot be used with"), "{said}");
        assert!(parsed(&[&["doctor"][..], swarm].concat()).is_ok());
    }
    assert!(parsed(&["doctor", "--run", "run.toml"]).is_ok());
}

/// In a container the address is set for all commands.
#[test]
fn an_address_of_the_environment_does_not_keep_a_run_from_being_named() {
    let mut set = command().mut_subcommand("status", |status| status.mut_arg("address", |it| it.default_value("a:1")));
    let matches = set.try_get_matches_from_mut(["murmur", "status", "d1"]).expect("understood");
    assert!(asking::refuse_two_places(&mut set, &matches).is_ok());
}
