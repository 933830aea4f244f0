//! Network namespaces of Linux without names. What holds one are descriptors of this process and the processes in it, so the kernel
//! removes it, with its links, once both are gone, however they end.

use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
#[cfg(target_os = "linux")]
use std::os::unix::process::CommandExt;
use std::process::Command;

#[cfg(target_os = "linux")]
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network of its own. It takes root.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "none can be made"))]
pub struct Namespace(File);

#[cfg(target_os = "linux")]
impl Namespace {
    /// One without links.
    ///
    /// # Errors
    /// Without the right to make one.
    pub fn new() -> io::Result<Namespace> {
        let make = || {
            // SAFETY: no descriptor and no memory is unshared, only the network of this thread, which ends below.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net").map(Namespace)
        };
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(make)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it has panicked")))
    }

    /// How other processes name it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// This thread is in it from now on.
    #[cfg(test)]
    pub(crate) fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Has a command run in it. It is to be there when the command is started.
    pub fn place(&self, command: &mut Command) {
        let descriptor = self.0.as_raw_fd();
        let enter = move || {
            // SAFETY: the child has all descriptors of its parent, which holds this one for longer than it takes to start.
            let namespace = unsafe { BorrowedFd::borrow_raw(descriptor) };
            Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
        };
        // SAFETY: between fork and exec it is one system call, which takes no lock and no memory.
        unsafe { command.pre_exec(enter) };
    }
}

/// Of other systems: there are none.
#[cfg(not(target_os = "linux"))]
#[allow(missing_docs)]
impl Namespace {
    pub fn new() -> io::Result<Namespace> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn path(&self) -> String {
        String::new()
    }

    pub fn place(&self, _command: &mut Command) {}
}
