//! Options of every command that opens connections of its own for long: what it takes of the machine's lines.

use clap::Args;

use super::headings::LIMITS;
use super::numbers::decimal;
use crate::settings::LimitsSettings;

/// Caps of both directions.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CapOptions {
    /// Megabits a second that it sends at most, over all peers; 0 sets no cap.
    #[arg(long, env = "MURMUR_UPLOAD_MBIT", value_name = "MBIT", help_heading = LIMITS,
        value_parser = decimal(LimitsSettings::is_cap, LimitsSettings::CAP_RULE))]
    pub upload_mbit: Option<f64>,
    /// Megabits a second that it receives at most; 0 sets no cap.
    #[arg(long, env = "MURMUR_DOWNLOAD_MBIT", value_name = "MBIT", help_heading = LIMITS,
        value_parser = decimal(LimitsSettings::is_cap, LimitsSettings::CAP_RULE))]
    pub download_mbit: Option<f64>,
}

impl CapOptions {
    /// What is given takes the place of what was set.
    pub(crate) fn take_into(&self, limits: &mut LimitsSettings) {
        limits.upload_mbit = self.upload_mbit.unwrap_or(limits.upload_mbit);
        limits.download_mbit = self.download_mbit.unwrap_or(limits.download_mbit);
    }
}
