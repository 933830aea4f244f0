//! Whether another process is suspended, as by Ctrl-Z or `kill -STOP`: it is there, and neither answers nor ends. Linux tells;
//! other systems tell nothing.

/// Whether the system says that a process is suspended.
pub(crate) fn is_suspended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state(&stat).is_some_and(|state| matches!(state, 'T' | 't'))
}

/// The third field. The second one, a name, may hold anything but is in parentheses.
fn state(stat: &str) -> Option<char> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_stands_behind_the_name_whatever_the_name_holds() {
        assert_eq!(state("12 (murmur) T 1 12 12 0"), Some('T'));
        assert_eq!(state("12 (a) T (b) S 1 12 12 0"), Some('S'));
        assert_eq!((state(""), is_suspended(std::process::id())), (None, false));
    }
}
