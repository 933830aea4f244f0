//! A probabilistic grammar of short stories with an entropy rate that is known exactly.
//!
//! Why: with built-in text of a known entropy rate, a loss is not just a number but a distance from the best that any
//! model can do. A story makes independent choices with known probabilities, and later sentences repeat the hero, the
//! animal and the thing, which costs nothing but memory: a model has to use its context. Because a text has exactly one
//! derivation, its probability is the product of its choices'; and because stories are independent, the entropy rate is
//! `E[−ln p(story)] / E[bytes of a story]` (the renewal–reward theorem).

use std::collections::BTreeMap;

use murmur_protocol::random::{Generator, RngExt};

use super::stories::{START, TEMPLATES, WORDS};

/// A window of stories begins this many bytes or fewer into its first stories, drawn uniformly: it is longer than any
/// story, so a window begins anywhere in one.
const SKIP_BYTES_MAX: u64 = 512;

/// A grammar, compiled from tables.
pub struct Grammar {
    rules: Vec<Rule>,
    start: usize,
    /// How many remembered choices there are, and which rule each draws from.
    slots: Vec<usize>,
}

/// A choice between alternatives.
struct Rule {
    alternatives: Vec<Alternative>,
    weights: u32,
}

struct Alternative {
    weight: u32,
    pieces: Vec<Piece>,
    /// For words: the forms that copies can take; the first is what a draw writes.
    forms: Vec<&'static str>,
}

#[derive(Clone, Copy)]
enum Piece {
    Text(&'static str),
    /// A fresh choice.
    Draw(usize),
    /// A fresh choice of words, remembered in a slot.
    Remember {
        slot: usize,
        rule: usize,
    },
    /// The words in a slot again, in one of their forms.
    Repeat {
        slot: usize,
        form: usize,
    },
}

/// What a rule contributes to a story, on average.
#[derive(Clone, Copy, Default)]
struct Expectation {
    nats: f64,
    bytes: f64,
}

impl Grammar {
    /// The built-in stories.
    pub fn stories() -> Grammar {
        let names = WORDS.iter().map(|words| words.name).chain(TEMPLATES.iter().map(|templates| templates.name));
        let names: BTreeMap<&str, usize> = names.enumerate().map(|(index, name)| (name, index)).collect();
        let mut slots = Slots::default();
        let mut rules = Vec::new();
        for words in WORDS {
            let entries = words.entries.iter();
            rules.push(Rule::new(entries.map(|entry| {
                let forms: Vec<&str> = entry.split('|').collect();
                Alternative { weight: 1, pieces: vec![Piece::Text(forms[0])], forms }
            })));
        }
        for templates in TEMPLATES {
            rules.push(Rule::new(templates.alternatives.iter().map(|&(weight, template)| Alternative {
                weight,
                pieces: compile(template, &names, &mut slots),
                forms: Vec::new(),
            })));
        }
        Grammar { rules, start: names[START], slots: slots.rules }
    }

    /// Appends one story, which ends with an empty line, and returns its −ln probability in nats.
    pub fn write_story(&self, generator: &mut Generator, text: &mut Vec<u8>) -> f64 {
        let mut remembered = vec![0; self.slots.len()];
        self.write(self.start, generator, &mut remembered, text)
    }

    fn write(&self, rule: usize, generator: &mut Generator, remembered: &mut [usize], text: &mut Vec<u8>) -> f64 {
        let (choice, mut nats) = self.rules[rule].choose(generator);
        for piece in &self.rules[rule].alternatives[choice].pieces {
            match *piece {
                Piece::Text(literal) => text.extend_from_slice(literal.as_bytes()),
                Piece::Draw(rule) => nats += self.write(rule, generator, remembered, text),
                Piece::Remember { slot, rule } => {
                    let (choice, choice_nats) = self.rules[rule].choose(generator);
                    remembered[slot] = choice;
                    nats += choice_nats;
                    text.extend_from_slice(self.form(slot, choice, 0).as_bytes());
                }
                Piece::Repeat { slot, form } => {
                    text.extend_from_slice(self.form(slot, remembered[slot], form).as_bytes());
                }
            }
        }
        nats
    }

    fn form(&self, slot: usize, choice: usize, form: usize) -> &'static str {
        self.rules[self.slots[slot]].alternatives[choice].forms[form]
    }

    /// `length` bytes of consecutive stories that begin anywhere in a story.
    pub fn window(&self, generator: &mut Generator, length: usize) -> Vec<u8> {
        let skipped = generator.random_range(0..SKIP_BYTES_MAX) as usize;
        let mut text = Vec::with_capacity(2 * SKIP_BYTES_MAX as usize + length);
        while text.len() < skipped + length {
            self.write_story(generator, &mut text);
        }
        text[skipped..skipped + length].to_vec()
    }

    /// The entropy rate of endless stories in nats per byte: no model's expected loss is lower.
    pub fn entropy_rate(&self) -> f64 {
        let story = self.expectation(self.start);
        story.nats / story.bytes
    }

    /// Choices are independent of each other, so expectations add up; a repeated word has its table's mean length.
    fn expectation(&self, rule: usize) -> Expectation {
        let Rule { alternatives, weights } = &self.rules[rule];
        let mut sum = Expectation::default();
        for alternative in alternatives {
            let probability = f64::from(alternative.weight) / f64::from(*weights);
            let mut inside = Expectation { nats: -probability.ln(), bytes: 0.0 };
            for piece in &alternative.pieces {
                let part = match *piece {
                    Piece::Text(literal) => Expectation { nats: 0.0, bytes: literal.len() as f64 },
                    Piece::Draw(rule) | Piece::Remember { rule, .. } => self.expectation(rule),
                    Piece::Repeat { slot, form } => Expectation { nats: 0.0, bytes: self.mean_form_bytes(slot, form) },
                };
                inside.nats += part.nats;
                inside.bytes += part.bytes;
            }
            sum.nats += probability * inside.nats;
            sum.bytes += probability * inside.bytes;
        }
        sum
    }

    fn mean_form_bytes(&self, slot: usize, form: usize) -> f64 {
        let Rule { alternatives, weights } = &self.rules[self.slots[slot]];
        let weighted = alternatives.iter().map(|words| f64::from(words.weight) * words.forms[form].len() as f64);
        weighted.sum::<f64>() / f64::from(*weights)
    }
}

impl Rule {
    fn new(alternatives: impl Iterator<Item = Alternative>) -> Rule {
        let alternatives: Vec<Alternative> = alternatives.collect();
        let weights = alternatives.iter().map(|alternative| alternative.weight).sum();
        Rule { alternatives, weights }
    }

    /// (the alternative drawn, its −ln probability).
    fn choose(&self, generator: &mut Generator) -> (usize, f64) {
        let mut drawn = generator.random_range(0..self.weights);
        let choice = self.alternatives.iter().position(|alternative| {
            let hit = drawn < alternative.weight;
            drawn = drawn.saturating_sub(alternative.weight);
            hit
        });
        let choice = choice.expect("the draw lies below the sum of the weights");
        (choice, self.nats(choice))
    }

    fn nats(&self, choice: usize) -> f64 {
        (f64::from(self.weights) / f64::from(self.alternatives[choice].weight)).ln()
    }
}

/// The slots met so far, by name.
#[derive(Default)]
struct Slots {
    names: Vec<&'static str>,
    rules: Vec<usize>,
}

impl Slots {
    fn remembering(&mut self, name: &'static str, rule: usize) -> usize {
        let slot = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.rules.push(rule);
            self.rules.len() - 1
        });
        assert_eq!(self.rules[slot], rule, "a slot draws from one table");
        slot
    }

    fn repeating(&self, name: &str) -> usize {
        self.names.iter().position(|known| *known == name).expect("a slot is filled before it is repeated")
    }
}

/// Reads a template of the built-in tables; a mistake in them panics, and a test compiles them all.
fn compile(template: &'static str, rules: &BTreeMap<&str, usize>, slots: &mut Slots) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        let (field, after) = after.split_once('}').expect("a brace is closed");
        pieces.push(Piece::Text(literal));
        pieces.push(if let Some(repeated) = field.strip_prefix('@') {
            let (name, form) = repeated.split_once('.').unwrap_or((repeated, "0"));
            Piece::Repeat { slot: slots.repeating(name), form: form.parse().expect("a form is a number") }
        } else if let Some((slot, words)) = field.split_once('=') {
            let rule = rules[words];
            Piece::Remember { slot: slots.remembering(slot, rule), rule }
        } else {
            Piece::Draw(rules[field])
        });
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    pieces
}

#[cfg(test)]
mod tests {
    use murmur_protocol::random::stream;

    use super::*;

    impl Grammar {
        /// −ln probability, in nats, of each way to derive `story` (complete with its empty line). Empty: not a story of
        /// this grammar. Never more than one for the built-in stories.
        fn derivations(&self, story: &[u8]) -> Vec<f64> {
            let mut found = Vec::new();
            let remembered = vec![0; self.slots.len()];
            self.explore(story, vec![Piece::Draw(self.start)], remembered, 0.0, &mut found);
            found
        }

        /// Follows every derivation of `text` by `todo`, whose last piece comes first.
        fn explore(&self, text: &[u8], todo: Vec<Piece>, remembered: Vec<usize>, nats: f64, found: &mut Vec<f64>) {
            let (mut text, mut todo) = (text, todo);
            while let Some(piece) = todo.pop() {
                let literal = match piece {
                    Piece::Text(literal) => literal,
                    Piece::Repeat { slot, form } => self.form(slot, remembered[slot], form),
                    Piece::Draw(rule) | Piece::Remember { rule, .. } => {
                        for (choice, alternative) in self.rules[rule].alternatives.iter().enumerate() {
                            let mut todo = todo.clone();
                            todo.extend(alternative.pieces.iter().rev());
                            let mut remembered = remembered.clone();
                            if let Piece::Remember { slot, .. } = piece {
                                remembered[slot] = choice;
                            }
                            self.explore(text, todo, remembered, nats + self.rules[rule].nats(choice), found);
                        }
                        return;
                    }
                };
                match text.strip_prefix(literal.as_bytes()) {
                    Some(rest) => text = rest,
                    None => return,
                }
            }
            if text.is_empty() {
                found.push(nats);
            }
        }
    }

    #[test]
    fn sampled_stories_converge_to_the_entropy_rate() {
        let (grammar, mut generator) = (Grammar::stories(), stream(1, "grammar test", &[]));
        let (mut text, stories) = (Vec::new(), 20_000);
        let nats: f64 = (0..stories).map(|_| grammar.write_story(&mut generator, &mut text)).sum();
        let (measured, rate) = (nats / text.len() as f64, grammar.entropy_rate());
        // About 4 standard errors: a story's nats and bytes vary by some 10 %.
        assert!((measured / rate - 1.0).abs() < 0.003, "{measured} measured, {rate} computed");
        let (bytes, mean) = (text.len() as f64 / f64::from(stories), grammar.expectation(grammar.start).bytes);
        assert!((bytes / mean - 1.0).abs() < 0.003, "{bytes}, {mean}");
        assert!((0.24..0.5).contains(&rate), "{rate}");
    }

    #[test]
    fn a_story_has_exactly_one_derivation_of_the_sampled_probability() {
        let (grammar, mut generator) = (Grammar::stories(), stream(2, "grammar test", &[]));
        for _ in 0..2000 {
            let mut story = Vec::new();
            let nats = grammar.write_story(&mut generator, &mut story);
            let derivations = grammar.derivations(&story);
            let text = String::from_utf8_lossy(&story);
            assert_eq!(derivations.len(), 1, "{text}");
            assert!((derivations[0] - nats).abs() < 1e-9, "{text}");
            assert!((120..=320).contains(&story.len()), "{} bytes: {text}", story.len());
            assert_eq!(text.matches('\n').count(), 2, "only the end of a story is an empty line: {text}");
        }
    }

    #[test]
    fn alternatives_of_a_word_table_are_told_apart() {
        for words in WORDS {
            let mut first_forms: Vec<&str> = words.entries.iter().filter_map(|entry| entry.split('|').next()).collect();
            first_forms.sort_unstable();
            let prefix = first_forms.windows(2).find(|pair| pair[1].starts_with(pair[0]));
            assert_eq!(prefix, None, "in {}", words.name);
        }
    }

    #[test]
    fn a_hero_who_changes_names_is_no_story() {
        let (grammar, mut generator) = (Grammar::stories(), stream(3, "grammar test", &[]));
        let mut story = Vec::new();
        grammar.write_story(&mut generator, &mut story);
        assert_eq!(grammar.derivations(&story).len(), 1);
        assert_eq!(grammar.derivations(&story[1..]).len(), 0);
        assert_eq!(grammar.derivations(&story[..story.len() - 1]).len(), 0);
        let text = "Mila the shy fox lived by the lake. One day she lost her red kite past the sea. The fox met Tom, a shy \
                    cat. So they swam, sang and hid. \"Oh my, Tom!\" said the fox, and the pink kite shone.\n\n";
        assert_eq!(grammar.derivations(text.as_bytes()).len(), 1);
        assert_eq!(grammar.derivations(text.replacen("said the fox", "said the hare", 1).as_bytes()).len(), 0);
    }
}
