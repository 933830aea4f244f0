//! Options of `lend`.

use std::path::PathBuf;

use clap::Args;

use super::headings::{DATA, NETWORK, OUTPUT, TRAINING};
use super::numbers::decimal;
use crate::console::Console;
use crate::settings::{Flags, Lend};

/// Options of `lend`.
#[derive(Debug, Args)]
pub struct LendOptions {
    /// Memory for layers, 1MB to 1000TB, such as 6GB or 500MB [default: four fifths of what is free].
    #[arg(long, env = "MURMUR_MEMORY", value_name = "SIZE", help_heading = TRAINING, value_parser = memory)]
    pub memory: Option<u64>,
    /// auto, cpu or cuda:N.
    #[arg(long, env = "MURMUR_DEVICE", default_value = "auto", help_heading = TRAINING)]
    pub device: String,
    /// What of it is a setting.
    #[command(flatten)]
    pub settings: Flags<Lend>,
    /// Address to listen on, such as /ip4/0.0.0.0/tcp/4712; may be repeated [default: TCP and QUIC on port 4712, or the next
    /// free one].
    #[arg(long, env = "MURMUR_LISTEN", value_name = "MULTIADDR", value_delimiter = ',', help_heading = NETWORK)]
    pub listen: Vec<String>,
    /// Minutes for which layers are kept when the captain is gone.
    #[arg(long, value_name = "N", default_value = "10", help_heading = NETWORK,
        value_parser = decimal(|minutes| (0.0..=10_080.0).contains(&minutes), "minutes: 0 to 10080 (a week)"))]
    pub keep_minutes: f64,
    /// Identity and secret of this helper, so that its line stays the same [default: murmur/lending in the user's data directory].
    #[arg(long, env = "MURMUR_DATA_DIR", value_name = "FOLDER", help_heading = DATA)]
    pub data_dir: Option<PathBuf>,
    /// text: lines for people; json: one object a line.
    #[arg(long, env = "MURMUR_FORMAT", value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
    /// Stop when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Reads bytes as people write them: 6GB, 1.5 GB, 500MB.
fn memory(text: &str) -> Result<u64, String> {
    let rule = "a size from 1MB to 1000TB, such as 6GB or 500MB";
    let trimmed = text.trim();
    let digits = trimmed.find(|character: char| !(character.is_ascii_digit() || character == '.'));
    let (number, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "tb" | "t" => 1e12,
        "gb" | "g" => 1e9,
        "mb" | "m" => 1e6,
        "tib" => (1_u64 << 40) as f64,
        "gib" => f64::from(1 << 30),
        "mib" => f64::from(1 << 20),
        _ => return Err(format!("it takes {rule}")),
    };
    let bytes = number.parse::<f64>().map_err(|_| format!("it takes {rule}"))? * scale;
    if (1e6..=1e15).contains(&bytes) { Ok(bytes as u64) } else { Err(format!("it takes {rule}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("6GB", 6_000_000_000), ("1.5 GB", 1_500_000_000), ("500mb", 500_000_000), ("2GiB", 2 << 30)]
        {
            assert_eq!(memory(text), Ok(bytes), "{text}");
        }
        for text in ["", "6", "GB", "6TBx", "0.1MB", "-1GB", "1e9GB", "1..2GB"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
