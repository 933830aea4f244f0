//! One place for each setting of a node: its key, type and default, what it takes, and its option of the command line with the
//! environment variable of that name.
//!
//! A section of the node file is written with [`section!`], a line for each key. All else follows from it: the struct that serde
//! reads, the check of a file and of what is typed, `--help`, and what takes precedence over what.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::flag::{Flag, Taker};
use super::range::{Number, Range, Short};
use super::typed::{self, Typed};

/// Declares a section of the node file: a struct, its defaults, and what is declared of each key.
///
/// ```text
/// section! {
///     /// What the section is about.
///     pub struct LimitsSettings {
///         /// The first paragraph is what `--help` says.
///         upload_mbit: f64 = 0.0 => range(CAP), flag(Flag::new("upload-mbit", "MBIT", LIMITS).of(&[Machine, Lend]));
///     }
/// }
/// ```
macro_rules! section {
    ($(#[doc = $about:literal])* pub struct $name:ident {
        $($(#[doc = $text:literal])*
        $key:ident: $type:ty = $default:expr $(=> $($method:ident($($argument:tt)*)),+)?;)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $text])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($key: $default,)* }
            }
        }

        impl $name {
            /// What is declared of each key, in the order of the file.
            pub(super) fn declared() -> Vec<$crate::settings::declaration::Declared<$name>> {
                vec![$(
                    $crate::settings::declaration::Setting::<$name, $type>::new(
                        stringify!($key),
                        concat!($($text, "\n"),*),
                        $default,
                        (|section| &section.$key, |section| &mut section.$key),
                    )
                    $($(.$method($($argument)*))+)?
                    .declared(),
                )*]
            }
        }
    };
}
pub(super) use section;

/// A number as it is typed, with what to do instead where 0 is not taken: what it takes, in words, and what reads it.
type Reading = Box<dyn Fn(Option<&'static str>) -> (String, ValueParser)>;
/// What is wrong with a section's value: the value, and what it has to be.
type Check<Section> = Box<dyn Fn(&Section) -> Option<(String, String)> + Send + Sync>;
type Take<Section> = Box<dyn Fn(&ArgMatches, &mut Section) + Send + Sync>;
type Words<Section> = Box<dyn Fn(&Section) -> Vec<OsString> + Send + Sync>;
/// Where a part of a whole lies: to read and to write.
pub(super) type Places<Section, Value> = (fn(&Section) -> &Value, fn(&mut Section) -> &mut Value);

/// How a setting is typed and taken.
struct Typing<Section> {
    flag: Flag,
    argument: Arg,
    /// The environment variable that says the same.
    variable: &'static str,
    /// Takes what was typed.
    take: Take<Section>,
    /// The words that say the section's value; none where it is the default.
    words: Words<Section>,
}

/// A setting while it is declared.
pub(super) struct Setting<Section, Value> {
    text: &'static str,
    default: Value,
    places: Places<Section, Value>,
    reading: Option<Reading>,
    /// Of numbers: the default, where it is not 0.
    default_number: Option<String>,
    declared: Declared<Section>,
}

impl<Section: 'static, Value: Send + Sync + 'static> Setting<Section, Value> {
    /// A key, what is said of it, its default, and where it lies.
    pub(super) fn new(
        key: &str,
        text: &'static str,
        default: Value,
        places: Places<Section, Value>,
    ) -> Setting<Section, Value> {
        let declared = Declared {
            key: key.to_owned(),
            range: None,
            examples: &[],
            set_by: None,
            is_secret: false,
            checks: Vec::new(),
            typing: None,
        };
        Setting { text, default, places, reading: None, default_number: None, declared }
    }

    /// What a value has to be, and what tells which part of one is wrong.
    pub(super) fn checked(
        mut self,
        text: impl Into<String>,
        broken_by: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let (text, (value, _)) = (text.into(), self.places);
        let check = move |section: &Section| broken_by(value(section)).map(|wrong| (wrong, text.clone()));
        self.declared.checks.push(Box::new(check));
        self
    }

    /// Values of a form that nobody could guess, at least three.
    pub(super) fn such_as(mut self, examples: &'static [&'static str]) -> Self {
        self.declared.examples = examples;
        self
    }

    /// Another key's option sets it as well: the one that messages name.
    pub(super) fn set_by(mut self, option: &'static str) -> Self {
        self.declared.set_by = Some(option);
        self
    }

    /// Whoever knows it may do what only the owner should: it is shown to nobody.
    pub(super) fn secret(mut self) -> Self {
        self.declared.is_secret = true;
        self
    }

    /// An option of another type than the setting, or one that sets more than the value.
    pub(super) fn flag_as<Given: Typed>(
        mut self,
        flag: Flag,
        set: impl Fn(&mut Section, Given) + Send + Sync + 'static,
    ) -> Self {
        let name = flag.name;
        // clap wants names that live as long as the process, and so does a declaration.
        let variable = format!("MURMUR_{}", name.to_uppercase().replace('-', "_")).leak();
        let take = move |matches: &ArgMatches, section: &mut Section| {
            if let Some(given) = Given::typed(matches, name) {
                set(section, given);
            }
        };
        let (take, words) = (Box::new(take), Box::new(|_: &Section| Vec::new()));
        let argument = Given::shape(Arg::new(name).long(name));
        self.declared.typing = Some(Typing { argument, flag, variable, take, words });
        self
    }

    /// All that follows: the option has all that is known of the setting.
    pub(super) fn declared(self) -> Declared<Section> {
        let Setting { text, reading, default_number, mut declared, .. } = self;
        let Some(Typing { flag, argument, .. }) = &mut declared.typing else { return declared };
        let mut typed = argument.clone();
        let mut help = flag.text.map_or_else(|| first_paragraph(text), str::to_owned);
        if typed.get_action().takes_values() {
            typed = typed.value_name(flag.value_name);
        }
        if let Some(reading) = reading {
            let (takes, parser) = reading(flag.zero_is_left_out);
            help += &format!(" [takes: {takes}]");
            typed = typed.value_parser(parser);
        }
        if let Some(default) = default_number {
            help += &format!(" [default: {default}]");
        }
        *argument = (flag.shape)(typed.help(help).help_heading(flag.heading));
        declared
    }
}

impl<Section: 'static, Value: Typed + PartialEq> Setting<Section, Value> {
    /// An option that sets the value.
    pub(super) fn flag(self, flag: Flag) -> Self {
        let ((value, place), default, name) = (self.places, self.default.clone(), flag.name);
        let mut setting = self.flag_as::<Value>(flag, move |section, typed| *place(section) = typed);
        let words = move |section: &Section| match value(section) {
            value if *value == default => Vec::new(),
            value => value.words(name),
        };
        if let Some(typing) = &mut setting.declared.typing {
            typing.words = Box::new(words);
        }
        setting
    }
}

impl<Section: 'static, Value: Number> Setting<Section, Value> {
    /// A number in a range.
    pub(super) fn range(mut self, range: Range<Value>) -> Self {
        self.declared.range = Some(range.to_string());
        self.default_number = (self.default != Value::default()).then(|| Short(self.default).to_string());
        self.reading = Some(Box::new(move |zero_is_left_out| match zero_is_left_out {
            None => (range.to_string(), range.parser("")),
            Some(instead) => (range.without_zero().to_string(), range.without_zero().parser(instead)),
        }));
        self.checked(range.to_string(), move |number| (!range.holds(*number)).then(|| number.to_string()))
    }

    /// One of two numbers.
    pub(super) fn either(mut self, one: Value, other: Value) -> Self {
        let text = format!("{one} or {other}");
        self.declared.range = Some(text.clone());
        self.checked(text, move |number| (*number != one && *number != other).then(|| number.to_string()))
    }
}

impl<Section: 'static> Setting<Section, String> {
    /// A text of some form.
    pub(super) fn form(self, text: &'static str, is: fn(&str) -> bool) -> Self {
        self.checked(text, move |value| (!is(value)).then(|| format!("{value:?}")))
    }
}

impl<Section: 'static> Setting<Section, Vec<String>> {
    /// Texts of some form.
    pub(super) fn each(self, text: &'static str, is: fn(&str) -> bool) -> Self {
        self.checked(text, move |values| values.iter().find(|value| !is(value)).map(|wrong| format!("{wrong:?}")))
    }

    /// Not more of them than this.
    pub(super) fn at_most(self, most: usize) -> Self {
        let broken = move |values: &Vec<String>| (values.len() > most).then(|| format!("{} of them", values.len()));
        self.checked(format!("at most {most}"), broken)
    }
}

/// The first paragraph of a text without its last period, as `--help` shows it.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// What is declared of one setting.
pub struct Declared<Section> {
    /// Where the file has it: `limits.upload_mbit`.
    key: String,
    range: Option<String>,
    examples: &'static [&'static str],
    set_by: Option<&'static str>,
    is_secret: bool,
    checks: Vec<Check<Section>>,
    typing: Option<Typing<Section>>,
}

impl<Section: 'static> Declared<Section> {
    /// Where the file has it: `limits.upload_mbit`.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The numbers that it takes, as messages say them; `None` where it takes no numbers, or all of its type.
    pub fn range(&self) -> Option<&str> {
        self.range.as_deref()
    }

    /// Values of a form that nobody could guess.
    pub fn examples(&self) -> &'static [&'static str] {
        self.examples
    }

    /// The name of the option that sets it, without the dashes.
    pub fn option(&self) -> Option<&'static str> {
        self.typing.as_ref().map(|typing| typing.flag.name).or(self.set_by)
    }

    /// Whether its value is shown to nobody.
    pub fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// What is wrong with its value: the value, and what it has to be.
    pub(super) fn broken(&self, settings: &Section) -> Option<(String, String)> {
        self.checks.iter().find_map(|check| check(settings))
    }

    /// The same as a part of a larger whole.
    pub(super) fn within<Whole: 'static>(
        self,
        section: &str,
        (part, place): Places<Whole, Section>,
    ) -> Declared<Whole> {
        let Declared { key, range, examples, set_by, is_secret, checks, typing } = self;
        let typing = typing.map(|Typing { flag, argument, variable, take, words }| Typing {
            flag,
            argument,
            variable,
            take: Box::new(move |matches, whole: &mut Whole| take(matches, place(whole))),
            words: Box::new(move |whole: &Whole| words(part(whole))),
        });
        let of_whole = |check: Check<Section>| -> Check<Whole> { Box::new(move |whole| check(part(whole))) };
        let checks = checks.into_iter().map(of_whole).collect();
        Declared { key: format!("{section}.{key}"), range, examples, set_by, is_secret, checks, typing }
    }

    /// Whether a command takes its option.
    pub(super) fn is_of(&self, taker: Taker) -> bool {
        self.typing.as_ref().is_some_and(|typing| typing.flag.takers.contains(&taker))
    }

    /// Its option, for a command that takes it.
    pub(super) fn argument(&self, taker: Taker) -> Option<Arg> {
        let Typing { flag, argument, variable, .. } = self.typing.as_ref().filter(|_| self.is_of(taker))?;
        let argument = match flag.text_of {
            Some((one, text)) if one == taker => argument.clone().help(text),
            _ => argument.clone(),
        };
        Some(argument.env(*variable))
    }

    /// Takes what was typed, or what the environment says, in place of what was set.
    pub(super) fn take(&self, matches: &ArgMatches, source: ValueSource, settings: &mut Section) {
        if let Some(Typing { flag, take, .. }) = &self.typing
            && source_of(matches, flag.name) == Some(source)
        {
            take(matches, settings);
        }
    }

    /// The option that cannot be given beside this one, where both come from the same place.
    pub(super) fn conflict(&self, matches: &ArgMatches) -> Option<(&'static str, &'static str)> {
        let flag = &self.typing.as_ref()?.flag;
        let other = flag.instead_of?;
        let source = source_of(matches, flag.name)?;
        (source_of(matches, other) == Some(source)).then_some((flag.name, other))
    }

    /// The words with which it was typed; none where it was not, but was set elsewhere.
    pub(super) fn typed_words(&self, matches: &ArgMatches) -> Vec<OsString> {
        let Some(Typing { flag, argument, .. }) = &self.typing else { return Vec::new() };
        if source_of(matches, flag.name) != Some(ValueSource::CommandLine) {
            return Vec::new();
        }
        if !argument.get_action().takes_values() {
            return vec![format!("--{}", flag.name).into()];
        }
        let values = matches.get_raw(flag.name).into_iter().flatten();
        values.map(|value| typed::option(flag.name, value)).collect()
    }

    /// The words that say its value on a command line; none where it is the default.
    pub(super) fn words(&self, settings: &Section) -> Vec<OsString> {
        self.typing.as_ref().map_or_else(Vec::new, |typing| (typing.words)(settings))
    }
}

/// Where an option comes from; `None` where it is not given, or nothing was typed at all.
fn source_of(matches: &ArgMatches, name: &str) -> Option<ValueSource> {
    matches.try_contains_id(name).is_ok().then(|| matches.value_source(name))?
}
