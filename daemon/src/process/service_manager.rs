//! What a daemon tells the systemd that has started it: that it is ready, that it lives, that it leaves (`sd_notify(3)`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a daemon that is not ready yet asks for more time, and for how long at most. Guesses.
const PREPARING_PERIOD: Duration = Duration::from_secs(30);
const PREPARING_MAX: Duration = Duration::from_secs(86_400);

/// Whether this process's daemon listens.
static IS_READY: AtomicBool = AtomicBool::new(false);

/// A service manager that wants to be told.
#[derive(Clone, Debug)]
pub(crate) struct ServiceManager {
    #[cfg(unix)]
    socket: std::ffi::OsString,
    /// It ends a daemon that is silent for longer.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that has started this process, where there is one.
    pub(crate) fn from_environment() -> Option<ServiceManager> {
        let is_ours = |pid: String| pid.parse() == Ok(std::process::id());
        let watched = std::env::var("WATCHDOG_PID").map_or(true, is_ours);
        let microseconds = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let watchdog = microseconds.filter(|_| watched).map(Duration::from_micros);
        #[cfg(unix)]
        {
            let socket = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())?;
            Some(ServiceManager { socket, watchdog })
        }
        #[cfg(not(unix))]
        {
            let _ = watchdog;
            None
        }
    }

    /// How often it is to hear that the daemon lives: twice in its patience.
    pub(crate) fn period(&self) -> Option<Duration> {
        self.watchdog.map(|patience| patience / 2)
    }

    /// The daemon needs this much more time before it listens.
    pub(crate) fn wait_for(&self, patience: Duration) {
        self.tell(&format!("EXTEND_TIMEOUT_USEC={}", patience.as_micros()));
    }

    /// While data is prepared or a model is loaded it needs more time than the unit grants: it says so regularly until it is ready,
    /// a day long at most.
    pub(crate) fn wait_until_ready(self) {
        let periods = (PREPARING_MAX.as_secs() / PREPARING_PERIOD.as_secs()) as u32;
        std::thread::spawn(move || {
            for _ in 0..periods {
                std::thread::sleep(PREPARING_PERIOD);
                if IS_READY.load(Ordering::Acquire) {
                    return;
                }
                self.wait_for(2 * PREPARING_PERIOD);
            }
        });
    }

    /// The daemon listens.
    pub(crate) fn ready(&self) {
        IS_READY.store(true, Ordering::Release);
        self.tell("READY=1");
    }

    /// It lives.
    pub(crate) fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// It leaves its swarm.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    #[cfg(unix)]
    fn tell(&self, state: &str) {
        if let Err(error) = self.try_tell(state) {
            tracing::warn!("cannot tell the service manager {state}: {error}");
        }
    }

    #[cfg(not(unix))]
    fn tell(&self, _: &str) {}

    #[cfg(unix)]
    fn try_tell(&self, state: &str) -> std::io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let name = self.socket.as_bytes();
        let address = match name.strip_prefix(b"@") {
            #[cfg(target_os = "linux")]
            Some(name) => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&self.socket)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address).map(drop)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_hears_of_a_daemons_life() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("notify");
        let listener = std::os::unix::net::UnixDatagram::bind(&path).expect("bound");
        listener.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        let manager = ServiceManager { socket: path.into(), watchdog: Some(Duration::from_secs(120)) };
        manager.wait_for(Duration::from_secs(60));
        manager.ready();
        manager.alive();
        manager.stopping();
        let heard = || {
            let mut bytes = [0; 64];
            let length = listener.recv(&mut bytes).expect("told");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let expected = ["EXTEND_TIMEOUT_USEC=60000000", "READY=1", "WATCHDOG=1", "STOPPING=1"];
        assert_eq!([heard(), heard(), heard(), heard()], expected);
        assert_eq!(manager.period(), Some(Duration::from_secs(60)));
    }
}
