//! Types that a setting can have on the command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use murmur_training::Precision;

/// A value that an option takes.
pub(super) trait Typed: Clone + Send + Sync + 'static {
    /// The option as clap is to read it.
    fn shape(argument: Arg) -> Arg;

    /// What was typed.
    fn typed(matches: &ArgMatches, name: &str) -> Option<Self> {
        matches.get_one::<Self>(name).cloned()
    }

    /// The words with which it is typed.
    fn words(&self, name: &str) -> Vec<OsString>;
}

/// An option and its value, in one word, so that whatever the value begins with is no option.
pub(super) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

macro_rules! plain {
    ($($type:ty)*) => { $(impl Typed for $type {
        fn shape(argument: Arg) -> Arg {
            argument.value_parser(value_parser!($type))
        }

        fn words(&self, name: &str) -> Vec<OsString> {
            vec![option(name, self.to_string())]
        }
    })* };
}

plain!(f64 u16 u64 String);

impl Typed for usize {
    fn shape(argument: Arg) -> Arg {
        argument.value_parser(|text: &str| text.parse::<usize>())
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        vec![option(name, self.to_string())]
    }
}

impl Typed for bool {
    fn shape(argument: Arg) -> Arg {
        argument.action(ArgAction::SetTrue)
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        if *self { vec![format!("--{name}").into()] } else { Vec::new() }
    }
}

impl Typed for PathBuf {
    fn shape(argument: Arg) -> Arg {
        argument.value_parser(value_parser!(PathBuf))
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        vec![option(name, self)]
    }
}

/// A list is typed with commas, or an option for each.
impl Typed for Vec<String> {
    fn shape(argument: Arg) -> Arg {
        argument.action(ArgAction::Append).value_delimiter(',')
    }

    fn typed(matches: &ArgMatches, name: &str) -> Option<Self> {
        Some(matches.get_many(name)?.cloned().collect())
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        self.iter().map(|value| option(name, value)).collect()
    }
}

/// Several files stand behind one option: a shell writes them out of `*.txt`.
impl Typed for Vec<PathBuf> {
    fn shape(argument: Arg) -> Arg {
        argument.action(ArgAction::Append).num_args(1..).value_parser(value_parser!(PathBuf))
    }

    fn typed(matches: &ArgMatches, name: &str) -> Option<Self> {
        Some(matches.get_many(name)?.cloned().collect())
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        self.iter().map(|value| option(name, value)).collect()
    }
}

impl Typed for Precision {
    fn shape(argument: Arg) -> Arg {
        argument.value_parser(str::parse::<Precision>)
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        let value = match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        };
        vec![option(name, value)]
    }
}
