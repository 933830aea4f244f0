//! `--set KEY=VALUE[,VALUE…]`: values in the place of the scenario's, one after the other.

use std::path::Path;

use murmur_sim::file::ScenarioFile;

use crate::cli::SetOption;
use crate::failure::{ExitCode, Failure};
use crate::settings::parse;

/// Shows an annotated scenario.
pub(super) const EXAMPLE: &str = "murmur sim show everything";

/// Runs of one command, each with other values.
const COMBINATIONS_MAX: usize = 64;

/// One value in the place of a scenario's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    /// `section.key`.
    pub(super) key: String,
    /// As it was typed.
    pub(super) value: String,
    toml: toml::Value,
}

/// Every combination of the values, the last key's changing fastest; without any option one, of nothing.
pub(super) fn combinations(options: &[SetOption]) -> Result<Vec<Vec<Setting>>, Failure> {
    let wrong = |message: String| Failure::new(ExitCode::CommandLine, message);
    let mut combinations = vec![Vec::new()];
    for (index, option) in options.iter().enumerate() {
        if options[..index].iter().any(|earlier| earlier.key == option.key) {
            let message = format!("--set {} is given twice", option.key);
            return Err(wrong(message).hint(format!("several values stand in one: --set {}=A,B", option.key)));
        }
        let values: Vec<Setting> =
            option.values.iter().map(|value| Setting::read(&option.key, value)).collect::<Result<_, _>>()?;
        if let Some(again) = (1..values.len()).find(|place| values[..*place].contains(&values[*place])) {
            return Err(wrong(format!("--set {} names the value {} twice", option.key, values[again].value)));
        }
        let with_each = |settings: Vec<Setting>| {
            let with = |value: &Setting| settings.iter().chain([value]).cloned().collect::<Vec<Setting>>();
            values.iter().map(with).collect::<Vec<_>>()
        };
        combinations = combinations.into_iter().flat_map(with_each).collect();
        if combinations.len() > COMBINATIONS_MAX {
            return Err(wrong(format!(
                "--set asks for {} combinations or more; at most {COMBINATIONS_MAX}",
                combinations.len()
            )));
        }
    }
    Ok(combinations)
}

/// The values of a command that runs once.
pub(super) fn the_one(options: &[SetOption]) -> Result<Vec<Setting>, Failure> {
    let mut combinations = combinations(options)?;
    match (combinations.pop(), combinations.is_empty()) {
        (Some(settings), true) => Ok(settings),
        _ => Err(Failure::new(ExitCode::CommandLine, "--set takes one value of a key here")
            .hint("`murmur sim run` runs several")),
    }
}

impl Setting {
    /// A value that is no TOML is a word; where the scenario wants a list, one value is a list of one.
    fn read(key: &str, value: &str) -> Result<Setting, Failure> {
        if !key.contains('.') {
            let message = format!("--set {key}={value}: `{key}` names no value of a scenario");
            return Err(Failure::new(ExitCode::CommandLine, message)
                .hint("it is written as section.key, such as swarm.nodes=8"));
        }
        let word = || toml::Value::String(value.to_owned());
        let toml = toml::from_str::<toml::Table>(&format!("value = {value}"));
        let toml =
            toml.ok().filter(|table| table.len() == 1).and_then(|mut table| table.remove("value")).unwrap_or_else(word);
        let setting = |toml: toml::Value| Setting { key: key.to_owned(), value: value.to_owned(), toml };
        let check = |setting: &Setting| {
            let line = format!("{key} = {}", setting.toml);
            parse::<ScenarioFile>(Path::new("--set"), &line, EXAMPLE).map(|_| ())
        };
        let as_it_is = setting(toml.clone());
        let Err(failure) = check(&as_it_is) else { return Ok(as_it_is) };
        let list = setting(toml::Value::Array(vec![toml]));
        match check(&list) {
            Ok(()) => Ok(list),
            // The key takes lists: what is wrong is in this one.
            Err(of_list) if failure.to_string().contains("a list in brackets") => Err(of_list),
            Err(_) => Err(failure),
        }
    }

    /// Puts the value into its section.
    pub(super) fn put_into(&self, scenario: &mut toml::Table) {
        let (sections, key) = self.key.rsplit_once('.').unwrap_or(("", &self.key));
        let mut table = scenario;
        for section in sections.split('.').filter(|section| !section.is_empty()) {
            let below = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            let toml::Value::Table(below) = below else { return };
            table = below;
        }
        table.insert(key.to_owned(), self.toml.clone());
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(options: &[&str]) -> Result<Vec<String>, String> {
        let options: Vec<SetOption> = options.iter().map(|option| option.parse().expect("an option")).collect();
        let combinations = combinations(&options).map_err(|failure| format!("{failure:?}"))?;
        let line = |settings: &Vec<Setting>| settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ");
        Ok(combinations.iter().map(line).collect())
    }

    #[test]
    fn every_value_of_a_key_meets_every_value_of_the_others() {
        assert_eq!(told(&[]), Ok(vec![String::new()]));
        let two = ["gossip.gamma=0.1,[0.2, 0.4]", "gossip.kind=pairs,links"];
        let expected = [
            "gossip.gamma=0.1 gossip.kind=pairs",
            "gossip.gamma=0.1 gossip.kind=links",
            "gossip.gamma=[0.2, 0.4] gossip.kind=pairs",
            "gossip.gamma=[0.2, 0.4] gossip.kind=links",
        ];
        assert_eq!(told(&two), Ok(expected.map(str::to_owned).into()));
    }

    #[test]
    fn what_no_scenario_has_is_refused_with_what_was_meant() {
        let refused = |option: &str| told(&[option]).expect_err("a mistake");
        assert!(refused("gossip.gama=0.5").contains("did you mean `gamma`?"));
        assert!(refused("swarm.nodes=many").contains("swarm.nodes"));
        assert!(refused("gossip.bits=8,wide").contains("gossip.bits"));
        let many = format!("swarm.nodes={}", (2..70).map(|nodes| nodes.to_string()).collect::<Vec<_>>().join(","));
        assert!(refused(&many).contains("68 combinations"));
        assert!(refused("swarm=3").contains("written as section.key"));
        assert!(refused("swarm.nodes=3,4,3").contains("the value 3 twice"));
        assert!(told(&["swarm.nodes=2", "swarm.nodes=3"]).expect_err("twice").contains("given twice"));
    }

    #[test]
    fn a_value_stands_in_the_place_of_the_file_s() {
        let mut table: toml::Table = toml::from_str("[gossip]\nbits = [4, 8]\ngamma = 0.3").expect("TOML");
        for (key, value) in [("gossip.bits", "1"), ("crashes.share", "0.5")] {
            Setting::read(key, value).expect("sound").put_into(&mut table);
        }
        let expected = "[gossip]\nbits = [1]\ngamma = 0.3\n[crashes]\nshare = 0.5";
        assert_eq!(table, toml::from_str::<toml::Table>(expected).expect("TOML"));
    }
}
