//! One place for each setting of a node: its key, type and default, what it takes, and its option of the command line with the
//! environment variable of that name.
//!
//! A section of the node file is written with [`section!`], a line for each key. All else follows from it: the struct that serde
//! reads, the check of a file and of what is typed, `--help`, and what takes precedence over what.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::range::{Number, Range, Short};
use super::typed::Typed;

/// Declares a section of the node file: a struct, its defaults, and what is declared of each key.
///
/// ```text
/// section! {
///     /// What the section is about.
///     pub struct LimitsSettings {
///         /// The first paragraph is what `--help` says.
///         upload_mbit: f64 = 0.0 => range(CAP), flag(Flag::new("upload-mbit", "MBIT", LIMITS).of(&NODE));
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
    name: &'static str,
    value_name: &'static str,
    heading: &'static str,
    takers: &'static [Taker],
    /// Takers that do not read the environment: what is meant for the user's own daemon must not reach them.
    without_variable: &'static [Taker],
    /// Instead of the setting's own text.
    text: Option<&'static str>,
    /// The same for one command.
    text_of: Option<(Taker, &'static str)>,
    /// Where 0 cannot be typed: what to do instead.
    zero_is_left_out: Option<&'static str>,
    /// An option that means something else, so that not both can be typed.
    instead_of: Option<&'static str>,
    shape: fn(Arg) -> Arg,
}

impl Flag {
    /// An option `--name VALUE_NAME` of `start` and `join`, below a heading of `--help`.
    pub(super) const fn new(name: &'static str, value_name: &'static str, heading: &'static str) -> Flag {
        Flag {
            name,
            value_name,
            heading,
            takers: &[Taker::Daemon],
            without_variable: &[],
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

    /// Without an environment variable in these commands.
    pub(super) const fn without_variable_in(self, takers: &'static [Taker]) -> Flag {
        Flag { without_variable: takers, ..self }
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

/// The part of a value that is wrong, as it is shown.
type BrokenBy<Value> = Box<dyn Fn(&Value) -> Option<String> + Send + Sync>;

/// What a value has to be, in words, and what tells which part of one is wrong.
struct Rule<Value> {
    text: String,
    broken_by: BrokenBy<Value>,
}

/// What is typed for a number, in words, and what reads it, with what to do instead where 0 is not taken.
type Reading = Box<dyn Fn(Option<&'static str>) -> (String, ValueParser)>;
/// What is wrong with a section's value: the value, and what it has to be.
type Check<Section> = Box<dyn Fn(&Section) -> Option<(String, String)> + Send + Sync>;
type Take<Section> = Box<dyn Fn(&ArgMatches, &mut Section) + Send + Sync>;
type Words<Section> = Box<dyn Fn(&Section) -> Vec<OsString> + Send + Sync>;
type Places<Section, Value> = (fn(&Section) -> &Value, fn(&mut Section) -> &mut Value);

/// How a setting is typed and taken.
struct Typing<Section> {
    flag: Flag,
    argument: Arg,
    /// Takes what was typed.
    take: Take<Section>,
    /// The words that say the section's value; none where it is the default.
    words: Words<Section>,
}

/// A setting while it is declared.
pub(super) struct Setting<Section, Value> {
    key: &'static str,
    text: &'static str,
    default: Value,
    places: Places<Section, Value>,
    rules: Vec<Rule<Value>>,
    /// Of numbers: what it takes, in words.
    range: Option<String>,
    reading: Option<Reading>,
    examples: &'static [&'static str],
    set_by: Option<&'static str>,
    typing: Option<Typing<Section>>,
}

impl<Section: 'static, Value: Send + Sync + 'static> Setting<Section, Value> {
    /// A key, what is said of it, its default, and where it lies.
    pub(super) fn new(
        key: &'static str,
        text: &'static str,
        default: Value,
        places: Places<Section, Value>,
    ) -> Setting<Section, Value> {
        let (rules, range, reading, examples) = (Vec::new(), None, None, &[] as &[_]);
        Setting { key, text, default, places, rules, range, reading, examples, set_by: None, typing: None }
    }

    /// What a value has to be, and what tells which part of one is wrong.
    pub(super) fn checked(
        mut self,
        text: impl Into<String>,
        broken_by: impl Fn(&Value) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.rules.push(Rule { text: text.into(), broken_by: Box::new(broken_by) });
        self
    }

    /// Values of a form that nobody could guess, at least three.
    pub(super) fn such_as(mut self, examples: &'static [&'static str]) -> Self {
        self.examples = examples;
        self
    }

    /// Another key's option sets it as well: the one that messages name.
    pub(super) fn set_by(mut self, option: &'static str) -> Self {
        self.set_by = Some(option);
        self
    }

    /// An option of another type than the setting, or one that sets more than the value.
    pub(super) fn flag_as<Given: Typed>(
        mut self,
        flag: Flag,
        set: impl Fn(&mut Section, Given) + Send + Sync + 'static,
    ) -> Self {
        let name = flag.name;
        let mut help = flag.text.map_or_else(|| first_paragraph(self.text), str::to_owned);
        let mut argument = Given::shape(Arg::new(name).long(name));
        if argument.get_action().takes_values() {
            argument = argument.value_name(flag.value_name);
        }
        if let Some(reading) = &self.reading {
            let (takes, parser) = reading(flag.zero_is_left_out);
            help += &format!(" [takes: {takes}]");
            argument = argument.value_parser(parser);
        }
        let argument = (flag.shape)(argument.help(help).help_heading(flag.heading));
        let take = move |matches: &ArgMatches, section: &mut Section| {
            if let Some(given) = Given::typed(matches, name) {
                set(section, given);
            }
        };
        self.typing = Some(Typing { flag, argument, take: Box::new(take), words: Box::new(|_| Vec::new()) });
        self
    }

    pub(super) fn declared(self) -> Declared<Section> {
        let Setting { key, places: (value, _), rules, range, examples, set_by, typing, .. } = self;
        let check = move |section: &Section| {
            let broken = rules.iter().find_map(|rule| Some((rule, (rule.broken_by)(value(section))?)));
            broken.map(|(rule, value)| (value, rule.text.clone()))
        };
        Declared { key: key.to_owned(), range, examples, set_by, check: Box::new(check), typing }
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
        setting.typing = setting.typing.map(|typing| Typing { words: Box::new(words), ..typing });
        setting
    }
}

impl<Section: 'static, Value: Number> Setting<Section, Value> {
    /// A number in a range.
    pub(super) fn range(mut self, range: Range<Value>) -> Self {
        self.range = Some(range.to_string());
        let default = match self.default == Value::default() {
            true => String::new(),
            false => format!("] [default: {}", Short(self.default)),
        };
        self.reading = Some(Box::new(move |zero_is_left_out| match zero_is_left_out {
            None => (format!("{range}{default}"), range.parser("")),
            Some(instead) => (range.without_zero().to_string(), range.without_zero().parser(instead)),
        }));
        self.checked(range.to_string(), move |number| (!range.holds(*number)).then(|| number.to_string()))
    }

    /// One of two numbers.
    pub(super) fn either(mut self, one: Value, other: Value) -> Self {
        let text = format!("{one} or {other}");
        self.range = Some(text.clone());
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
    check: Check<Section>,
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

    /// What is wrong with its value: the value, and what it has to be.
    pub(super) fn broken(&self, settings: &Section) -> Option<(String, String)> {
        (self.check)(settings)
    }

    /// The same as a part of a larger whole.
    pub(super) fn within<Whole: 'static>(
        self,
        section: &str,
        (part, place): Places<Whole, Section>,
    ) -> Declared<Whole> {
        let Declared { key, range, examples, set_by, check, typing } = self;
        let typing = typing.map(|Typing { flag, argument, take, words }| Typing {
            flag,
            argument,
            take: Box::new(move |matches, whole: &mut Whole| take(matches, place(whole))),
            words: Box::new(move |whole: &Whole| words(part(whole))),
        });
        let check = Box::new(move |whole: &Whole| check(part(whole)));
        Declared { key: format!("{section}.{key}"), range, examples, set_by, check, typing }
    }

    /// Whether a command takes its option.
    pub(super) fn is_of(&self, taker: Taker) -> bool {
        self.typing.as_ref().is_some_and(|typing| typing.flag.takers.contains(&taker))
    }

    /// Its option, for a command that takes it.
    pub(super) fn argument(&self, taker: Taker) -> Option<Arg> {
        let Typing { flag, argument, .. } = self.typing.as_ref().filter(|_| self.is_of(taker))?;
        let argument = match flag.text_of {
            Some((one, text)) if one == taker => argument.clone().help(text),
            _ => argument.clone(),
        };
        if flag.without_variable.contains(&taker) {
            return Some(argument);
        }
        // clap wants names that live as long as the process. They are made once for each command.
        let variable: &'static str = format!("MURMUR_{}", flag.name.to_uppercase().replace('-', "_")).leak();
        Some(argument.env(variable))
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

    /// The words that say its value on a command line; none where it is the default.
    pub(super) fn words(&self, settings: &Section) -> Vec<OsString> {
        self.typing.as_ref().map_or_else(Vec::new, |typing| (typing.words)(settings))
    }
}

/// Where an option comes from; `None` where it is not given, or nothing was typed at all.
fn source_of(matches: &ArgMatches, name: &str) -> Option<ValueSource> {
    matches.try_contains_id(name).is_ok().then(|| matches.value_source(name))?
}
