//! How a setting is typed: its option, the commands that take it, and what `--help` says.

use clap::Arg;

/// Commands that take options of a node's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// `start`, `join` and `doctor`: the machine as a daemon would use it.
    Machine,
    /// `start` and `join`: the running daemon.
    Daemon,
    /// `lend`.
    Lend,
    /// `bench`.
    Bench,
    /// `local`, for all of its daemons.
    Local,
}

/// How a setting is typed.
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) value_name: &'static str,
    pub(super) heading: &'static str,
    pub(super) takers: &'static [Taker],
    /// Instead of the setting's own text.
    pub(super) text: Option<&'static str>,
    /// The same for one command.
    pub(super) text_of: Option<(Taker, &'static str)>,
    /// Where 0 cannot be typed: what to do instead.
    pub(super) zero_is_left_out: Option<&'static str>,
    /// An option that means something else, so that not both can be typed.
    pub(super) instead_of: Option<&'static str>,
    pub(super) shape: fn(Arg) -> Arg,
}

impl Flag {
    /// An option `--name VALUE_NAME` of `start` and `join`, below a heading of `--help`.
    pub(super) const fn new(name: &'static str, value_name: &'static str, heading: &'static str) -> Flag {
        Flag {
            name,
            value_name,
            heading,
            takers: &[Taker::Daemon],
            text: None,
            text_of: None,
            zero_is_left_out: None,
            instead_of: None,
            shape: |arg| arg,
        }
    }

    /// An option `--name` without a value, for what is true or false.
    pub(super) const fn switch(name: &'static str, heading: &'static str) -> Flag {
        Flag::new(name, "", heading)
    }

    /// Of these commands.
    pub(super) const fn of(self, takers: &'static [Taker]) -> Flag {
        Flag { takers, ..self }
    }

    /// With this text in `--help`.
    pub(super) const fn says(self, text: &'static str) -> Flag {
        Flag { text: Some(text), ..self }
    }

    /// With this text in the `--help` of one command.
    pub(super) const fn says_of(self, taker: Taker, text: &'static str) -> Flag {
        Flag { text_of: Some((taker, text)), ..self }
    }

    /// Not 0, whatever the file takes; `instead` is told who types it.
    pub(super) const fn without_zero(self, instead: &'static str) -> Flag {
        Flag { zero_is_left_out: Some(instead), ..self }
    }

    /// Not beside another option.
    pub(super) const fn instead_of(self, other: &'static str) -> Flag {
        Flag { instead_of: Some(other), ..self }
    }

    /// With what else clap is to know.
    pub(super) const fn shaped(self, shape: fn(Arg) -> Arg) -> Flag {
        Flag { shape, ..self }
    }
}
