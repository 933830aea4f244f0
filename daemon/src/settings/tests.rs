//! What holds for all settings, whatever they are: the tests go through the declaration.

use std::process;

use clap::{Args, Command, FromArgMatches};

use super::*;

/// Holds what a process started by a test is to do: the command, the file, and the words that are typed, a line each.
const CASE: &str = "MURMUR_TEST_SETTINGS";

/// Texts for options whose declaration has no examples. Each option finds three among them that it takes.
const TEXTS: [&str; 12] = ["1", "2", "3", "4", "0.001", "0.002", "0.003", "bf16", "f32", "first", "second", "third"];

/// The settings that come of a file, this process's environment and what is typed; `None` where one of them is refused.
fn resolved(taker: Taker, file: &str, typed: &[&str]) -> Option<toml::Table> {
    fn of<Of: Takes>(file: &str, typed: &[&str]) -> Option<toml::Table> {
        let mut settings: NodeSettings = toml::from_str(file).ok()?;
        let command = Flags::<Of>::augment_args(Command::new("murmur"));
        let matches = command.try_get_matches_from([&["murmur"], typed].concat()).ok()?;
        Flags::<Of>::from_arg_matches(&matches).ok()?.take_into(&mut settings);
        settings.validate().ok()?;
        Some(toml::Table::try_from(settings).expect("a table"))
    }
    match taker {
        Taker::Machine => of::<Machine>(file, typed),
        Taker::Daemon => of::<Daemon>(file, typed),
        Taker::Lend => of::<Lend>(file, typed),
        Taker::Bench => of::<Bench>(file, typed),
        Taker::Local => of::<Local>(file, typed),
    }
}

const TAKERS: [Taker; 5] = [Taker::Machine, Taker::Daemon, Taker::Lend, Taker::Bench, Taker::Local];

/// The same in a process of its own, with a variable in its environment.
fn resolved_with(variable: (&str, &str), taker: Taker, file: &str, typed: &[&str]) -> Option<toml::Table> {
    let place = TAKERS.iter().position(|one| *one == taker).expect("one of them");
    let case = [&[place.to_string().as_str(), &file.replace('\n', "\t")], typed].concat().join("\n");
    let mut command = process::Command::new(std::env::current_exe().expect("a file"));
    command.args(["--exact", "settings::tests::flags_win_over_the_environment_that_over_the_file_that_over_defaults"]);
    let output = command.arg("--nocapture").env(CASE, case).env(variable.0, variable.1).output().expect("run");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (_, answer) = text.split_once("answer:")?;
    toml::from_str(answer).ok()
}

/// What [`resolved_with`] asks this process for.
fn answer(case: &str) -> ! {
    let mut lines = case.lines();
    let taker = TAKERS[lines.next().and_then(|place| place.parse::<usize>().ok()).expect("a command")];
    let file = lines.next().expect("a file").replace('\t', "\n");
    if let Some(table) = resolved(taker, &file, &lines.collect::<Vec<_>>()) {
        println!("answer:\n{table}");
    }
    process::exit(0)
}

fn at(table: &toml::Table, key: &str) -> toml::Value {
    let (section, key) = key.split_once('.').expect("a section and a key");
    table[section][key].clone()
}

/// What is typed for an option, and the value that it then has.
fn typed(option: &str, text: &str, is_switch: bool) -> Vec<String> {
    if is_switch { vec![format!("--{option}")] } else { vec![format!("--{option}={text}")] }
}

#[test]
fn flags_win_over_the_environment_that_over_the_file_that_over_defaults() {
    if let Ok(case) = std::env::var(CASE) {
        answer(&case);
    }
    let defaults = toml::Table::try_from(NodeSettings::default()).expect("a table");
    let mut tried = 0;
    for (setting, taker) in declared().iter().flat_map(|setting| TAKERS.map(|taker| (setting, taker))) {
        let Some(argument) = setting.argument(taker) else { continue };
        let (key, option) = (setting.key(), setting.option().expect("it has an argument"));
        let is_switch = !argument.get_action().takes_values();
        let names: Vec<String> = argument.get_possible_values().iter().map(|name| name.get_name().to_owned()).collect();
        let texts = setting.examples().iter().copied().chain(names.iter().map(String::as_str)).chain(TEXTS);
        // Each text with the value that it leads to, no value twice; and one that leads to the default.
        let (mut values, mut usual) = (Vec::new(), None);
        for text in texts {
            let words = typed(option, text, is_switch);
            let table = resolved(taker, "", &words.iter().map(String::as_str).collect::<Vec<_>>());
            match table.map(|table| at(&table, key)) {
                Some(value) if value == at(&defaults, key) => usual = Some(text.to_owned()),
                Some(value) if values.iter().all(|(_, other)| *other != value) => values.push((text.to_owned(), value)),
                _ => {}
            }
        }
        if is_switch {
            (values[0].0, usual) = ("true".to_owned(), Some("false".to_owned()));
        }
        if values.len() < 3 {
            // One of few: what is typed, the default, and what is typed again.
            let first = values.first().cloned().unwrap_or_else(|| panic!("--{option}: no text is taken"));
            let usual = usual.unwrap_or_else(|| panic!("--{option}: no text says the default"));
            values = vec![first.clone(), (usual, at(&defaults, key)), first];
        }
        let [(_, first), (second_text, second), (third_text, third), ..] = values.as_slice() else { unreachable!() };
        assert!(first != second && second != third && *first != at(&defaults, key), "--{option}: {values:?}");

        let (section, name) = key.split_once('.').expect("a section and a key");
        let file = |value: &toml::Value| format!("[{section}]\n{name} = {value}");
        let words = typed(option, third_text, is_switch);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = |table: Option<toml::Table>, what: &str| {
            at(&table.unwrap_or_else(|| panic!("--{option} is refused {what}")), key)
        };
        assert_eq!(said(resolved(taker, "", &[]), "nowhere"), at(&defaults, key), "{key}: the default");
        assert_eq!(said(resolved(taker, &file(first), &[]), "in a file"), *first, "{key}: the file");
        assert_eq!(said(resolved(taker, &file(second), &words), "typed"), *third, "{key}: a flag over the file");
        if let Some(variable) = argument.get_env().and_then(|name| name.to_str()) {
            let environment = |typed: &[&str]| resolved_with((variable, second_text), taker, &file(first), typed);
            assert_eq!(said(environment(&[]), "in the environment"), *second, "{variable} over the file");
            assert_eq!(said(environment(&words), "typed"), *third, "--{option} over {variable}");
        }
        tried += 1;
    }
    assert!(tried > 40, "{tried} options");
}

#[test]
fn an_option_wins_over_the_variable_of_one_that_it_excludes() {
    let with = |typed: &[&str]| resolved_with(("MURMUR_LISTEN", "/ip4/127.0.0.1/tcp/1"), Taker::Machine, "", typed);
    let network = |typed: &[&str]| with(typed).map(|table| table["network"].clone());
    assert_eq!(network(&["--port=7"]).expect("taken")["listen"], toml::Value::Array(Vec::new()));
    assert!(resolved(Taker::Machine, "", &["--port=7", "--listen=/ip4/127.0.0.1/tcp/1"]).is_none(), "both typed");
}

#[test]
fn what_is_typed_for_a_daemon_is_what_it_then_has() {
    let mut settings = NodeSettings::default();
    (settings.training.threads, settings.training.steps) = (3, 7);
    settings.training.helpers = vec!["one".to_owned(), "two".to_owned()];
    (settings.data.files, settings.data.accept_remote) = (vec!["a b".into(), "--c".into()], true);
    settings.training.recompute = true; // of other commands alone
    let words = as_typed(&settings);
    let command = Flags::<Daemon>::augment_args(Flags::<Machine>::augment_args(Command::new("murmur")));
    let words = [&["murmur".into()], words.as_slice()].concat();
    let matches = command.try_get_matches_from(words).expect("understood");
    let mut read = NodeSettings::default();
    Flags::<Machine>::from_arg_matches(&matches).expect("its own").take_into(&mut read);
    Flags::<Daemon>::from_arg_matches(&matches).expect("its own").take_into(&mut read);
    settings.training.recompute = false;
    assert_eq!(read, settings);
}

#[test]
fn defaults_and_examples_are_in_range() {
    assert_eq!(NodeSettings::default().validate(), Ok(()));
    for setting in declared() {
        for example in setting.examples() {
            let (section, key) = setting.key().split_once('.').expect("a section and a key");
            let is_taken = ["", "["].iter().any(|open| {
                let close = if open.is_empty() { "" } else { "]" };
                let text = format!("[{section}]\n{key} = {open}{example:?}{close}\n");
                toml::from_str::<NodeSettings>(&text).is_ok_and(|settings| settings.validate().is_ok())
            });
            assert!(is_taken, "{}: {example}", setting.key());
        }
    }
}

#[test]
fn a_value_out_of_range_is_told_with_its_key_its_option_and_the_range() {
    let mut settings = NodeSettings::default();
    settings.training.memory_gigabytes = -1.0;
    let (value, takes) = ("-1".to_owned(), "0 (what is free) to 1000000".to_owned());
    let expected = OutOfRange { key: "training.memory_gigabytes", option: None, value, takes };
    assert_eq!(settings.validate(), Err(expected));
    settings = NodeSettings::default();
    settings.checkpoint.keep = 1;
    assert_eq!(settings.validate().expect_err("too few").takes, "a whole number from 2 to 100");
    settings = NodeSettings::default();
    // Longer than a clock can tell.
    settings.checkpoint.every_seconds = u64::MAX / 2;
    let takes = "a whole number from 1 to 31622400 (a year); 0 writes only the final one";
    assert_eq!(settings.validate().expect_err("too long").takes, takes);
    settings = NodeSettings::default();
    settings.training.devices = vec!["cpu".to_owned(); 65];
    let wrong = settings.validate().expect_err("too many");
    assert_eq!((wrong.option, wrong.value.as_str()), (Some("device"), "65 of them"));
    settings = NodeSettings::default();
    settings.stay.notice_command = vec![String::new()];
    assert_eq!(settings.validate().expect_err("no program").key, "stay.notice_command");
}

/// The answer to a wrong one names all that is taken.
#[test]
fn a_status_address_is_off_in_a_file_as_it_is_typed() {
    let with = |address: &str| {
        let mut settings = NodeSettings::default();
        settings.status.address = address.to_owned();
        settings.validate()
    };
    for taken in ["off", "", "auto", "127.0.0.1:4780", "[::1]:0"] {
        assert_eq!(with(taken), Ok(()), "{taken:?}");
    }
    assert!(StatusSettings::is_off("off") && StatusSettings::is_off("") && !StatusSettings::is_off("auto"));
    let wrong = with("nonsense").expect_err("no address");
    assert!(wrong.takes.contains("127.0.0.1:4780") && wrong.takes.contains("\"off\""), "{}", wrong.takes);
    assert_eq!(fault(&wrong.value), "is not valid");
    assert_eq!([fault("-1"), fault("NaN")], ["is out of range", "is no number"]);
}
