//! Which differences of progress no honest pace explains.

/// Progress that differs by more steps than this, and by more than [`ODD_PROGRESS_SHARE`] of our own, is odd: in a young
/// run the slowest honest nodes lag by hundreds of steps (simulator), and what lies nearer does little harm:
/// one exchange shifts the swarm progress by a few intervals at most.
const ODD_PROGRESS_STEPS: f64 = 1000.0;
const ODD_PROGRESS_SHARE: f64 = 0.25;

/// Whether no honest pace explains a difference from `progress`, in steps.
pub(crate) fn is_progress_odd(difference: f64, progress: f64) -> bool {
    difference.abs() > ODD_PROGRESS_STEPS.max(ODD_PROGRESS_SHARE * progress)
}
