//! Parts of the daemon that need files and threads.

mod checkpoints;
mod data_driver;
mod divergence;
mod member;
mod optimizer;
mod privacy;
mod trainer;
