//! The scenarios of `configs/sim/`, compiled in so that the binary needs no files.

/// A scenario with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// What `murmur sim run` calls it.
    pub name: &'static str,
    /// The annotated file.
    pub text: &'static str,
}

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        [$(BuiltIn { name: $name, text: include_str!(concat!("../../../configs/sim/", $name, ".toml")) }),*]
    };
}

/// From the gentlest to the worst.
const BUILT_INS: [BuiltIn; 9] = scenarios![
    "calm",
    "stragglers",
    "slow-links",
    "partition",
    "churn",
    "flash-crowd",
    "liars",
    "transformer",
    "everything",
];

/// All of them, from the gentlest to the worst.
pub fn built_ins() -> &'static [BuiltIn] {
    &BUILT_INS
}

/// The one with this name.
pub fn built_in(name: &str) -> Option<BuiltIn> {
    BUILT_INS.into_iter().find(|scenario| scenario.name == name)
}
