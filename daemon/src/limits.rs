//! What a node may take of its machine: its network by the hour and the day, its memory and disk, its time.

pub(crate) mod clock;
pub(crate) mod daily_traffic;
pub(crate) mod expected_traffic;
pub(crate) mod memory_check;
pub(crate) mod pace;
pub(crate) mod quiet_hours;
pub(crate) mod rest;
pub(crate) mod stay;
