//! The built-in stories: word tables and templates, for [`Grammar`](super::Grammar) to choose from.
//!
//! A template holds `{rule}` (a fresh choice), `{slot=words}` (a choice of words that is remembered) and `{@slot}` or
//! `{@slot.1}` (the remembered words again, or another form of them). Alternatives of one rule must be told apart by
//! their text, so that a story has exactly one derivation: tests parse them back. Of a word's forms, `|` stands between.

/// Words of equal probability, each with its forms.
pub(super) struct Words {
    pub(super) name: &'static str,
    pub(super) entries: &'static [&'static str],
}

/// Sentences and their relative weights.
pub(super) struct Templates {
    pub(super) name: &'static str,
    pub(super) alternatives: &'static [(u32, &'static str)],
}

/// Every story is one draw of this rule.
pub(super) const START: &str = "story";

#[rustfmt::skip]
pub(super) const WORDS: &[Words] = &[
    // Forms: name, pronoun, possessive.
    Words { name: "name", entries: &[
        "Mila|she|her", "Otto|he|his", "Nora|she|her", "Felix|he|his", "Ida|she|her", "Bruno|he|his",
        "Wanda|she|her", "Hugo|he|his", "Luna|she|her", "Milo|he|his", "Greta|she|her", "Pip|he|his",
        "Rosa|she|her", "Jonas|he|his", "Tilda|she|her", "Kasper|he|his",
    ] },
    Words { name: "friend", entries: &[
        "Anton", "Bella", "Cleo", "Dora", "Emil", "Flora", "Gus", "Hanna", "Karl", "Lotte", "Max", "Olga", "Paul",
        "Stella", "Tom", "Vera",
    ] },
    Words { name: "animal", entries: &[
        "fox", "bear", "mouse", "hare", "duck", "frog", "goat", "cat", "crow", "badger", "snail", "beaver", "goose",
        "lamb", "toad", "robin",
    ] },
    Words { name: "mood", entries: &[
        "little", "brave", "sleepy", "clever", "gentle", "hungry", "merry", "shy", "tiny", "proud", "lazy", "kind",
        "funny", "quiet", "noisy", "young",
    ] },
    Words { name: "near", entries: &["by", "near", "under", "behind", "above", "inside", "below", "past"] },
    Words { name: "place", entries: &[
        "river", "oak", "bridge", "hill", "lake", "mill", "tower", "wood", "sea", "barn", "well", "bakery", "moon",
        "garden", "cave", "island",
    ] },
    Words { name: "time", entries: &[
        "One day", "At dawn", "Last May", "One night", "In winter", "At noon", "On Sunday", "In the fog",
        "After lunch", "At dusk", "In the snow", "Once more",
    ] },
    Words { name: "color", entries: &[
        "red", "blue", "golden", "silver", "green", "wooden", "pink", "shiny", "paper", "broken", "white", "magic",
    ] },
    Words { name: "thing", entries: &[
        "kite", "bell", "lamp", "drum", "crown", "key", "map", "cake", "button", "ball", "hat", "flute", "star",
        "spoon", "feather", "clock",
    ] },
    Words { name: "advice", entries: &["Try", "Ask", "Watch", "Dig", "Look", "Sing", "Wait", "Search"] },
    Words { name: "act", entries: &[
        "danced", "climbed", "swam", "rowed", "baked", "joked", "ran", "sang", "hid", "laughed", "drew", "jumped",
        "slept", "dug", "waited", "flew",
    ] },
    Words { name: "cry", entries: &[
        "Hooray", "Thanks", "What luck", "Well done", "Good night", "Oh my", "At last", "Bravo",
    ] },
    Words { name: "gift", entries: &[
        "pie", "kiss", "pear", "shell", "scarf", "poem", "candle", "hug", "plum", "nut", "flower", "smile",
    ] },
];

#[rustfmt::skip]
pub(super) const TEMPLATES: &[Templates] = &[
    Templates { name: START, alternatives: &[(1, "{opening} {trouble} {meeting} {deed} {ending}\n\n")] },
    Templates { name: "opening", alternatives: &[
        (3, "{hero=name} the {mood} {kind=animal} lived {near} the {place}."),
        (2, "Once a {mood} {kind=animal} named {hero=name} lived {near} the {place}."),
        (1, "There was a {mood} {kind=animal} {near} the {place}, and the {@kind} was called {hero=name}."),
    ] },
    Templates { name: "trouble", alternatives: &[
        (3, "{time} {@hero.1} lost {@hero.2} {color} {thing=thing} {near} the {place}."),
        (3, "{time} {@hero.1} found a {color} {thing=thing} {near} the {place}."),
        (2, "{time} {@hero} made a {color} {thing=thing}."),
    ] },
    Templates { name: "meeting", alternatives: &[
        (3, "\"{advice} {near} the {place}!\" said {friend=friend}, a {mood} {animal}."),
        (2, "{friend=friend} the {animal} said: \"{advice} {near} the {place}, {@hero}!\""),
        (1, "The {@kind} met {friend=friend}, a {mood} {animal}."),
    ] },
    Templates { name: "deed", alternatives: &[
        (3, "{@hero} {act} and {act}, {@friend} {act}."),
        (2, "So they {act}, {act} and {act}."),
        (1, "{@friend} {act} with the {@thing}, and {@hero} {act}."),
    ] },
    Templates { name: "ending", alternatives: &[
        (3, "\"{cry}!\" said {@hero} and gave {@friend} a {gift} and a {mood} {gift}."),
        (2, "\"{cry}, {@friend}!\" said the {@kind}, and the {color} {@thing} shone."),
        (1, "Now the {@thing} is {near} the {place}, and {@hero} is a {mood} {@kind}."),
    ] },
];
