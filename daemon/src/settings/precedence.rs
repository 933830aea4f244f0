//! What the command line and the environment say of settings: defaults < file < environment < flags.

use std::ffi::OsString;
use std::fmt;
use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::flag::Taker;
use super::node::{NodeSettings, declared};
use crate::cli::headings;

/// The commands whose options [`Flags`] are.
pub trait Takes: 'static {
    /// Which.
    const TAKER: Taker;
}

macro_rules! takers {
    ($($(#[doc = $about:literal])* $name:ident)*) => { $(
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Takes for $name {
            const TAKER: Taker = Taker::$name;
        }
    )* };
}

takers! {
    /// `start`, `join` and `doctor`.
    Machine
    /// `start` and `join`.
    Daemon
    /// `lend`.
    Lend
    /// `bench`.
    Bench
    /// `local`.
    Local
}

/// Options of a command that are settings of a node, as they were typed or stand in the environment.
#[derive(Clone, Default)]
pub struct Flags<Of>(ArgMatches, PhantomData<Of>);

impl<Of> fmt::Debug for Flags<Of> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Flags").finish_non_exhaustive()
    }
}

impl<Of: Takes> Flags<Of> {
    /// What is given takes the place of what was set: the environment's, then what was typed.
    pub fn take_into(&self, settings: &mut NodeSettings) {
        for source in [ValueSource::EnvVariable, ValueSource::CommandLine] {
            for setting in declared().iter().filter(|setting| setting.is_of(Of::TAKER)) {
                setting.take(&self.0, source, settings);
            }
        }
    }

    /// What was typed, option by option, but for some of them.
    pub fn typed_words(&self, but_for: &[&str]) -> Vec<OsString> {
        let ours = declared().iter().filter(|setting| setting.is_of(Of::TAKER));
        let ours = ours.filter(|setting| setting.option().is_none_or(|option| !but_for.contains(&option)));
        ours.flat_map(|setting| setting.typed_words(&self.0)).collect()
    }

    /// The settings where there is no file.
    pub fn settings(&self) -> NodeSettings {
        let mut settings = NodeSettings::default();
        self.take_into(&mut settings);
        settings
    }
}

impl<Of: Takes> Args for Flags<Of> {
    fn augment_args(mut command: Command) -> Command {
        for heading in headings::OF_SETTINGS {
            let arguments = declared().iter().filter_map(|setting| setting.argument(Of::TAKER));
            command = command.args(arguments.filter(|argument| argument.get_help_heading() == Some(heading)));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<Of: Takes> FromArgMatches for Flags<Of> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let ours = declared().iter().filter(|setting| setting.is_of(Of::TAKER));
        match ours.filter_map(|setting| setting.conflict(matches)).next() {
            None => Ok(Flags(matches.clone(), PhantomData)),
            Some((option, other)) => {
                let text = format!("the argument '--{option}' cannot be used with '--{other}'\n");
                Err(clap::Error::raw(ErrorKind::ArgumentConflict, text))
            }
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
