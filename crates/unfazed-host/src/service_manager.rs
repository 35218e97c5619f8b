//! What a service manager is told: systemd's protocol (`sd_notify(3)`), which other managers and containers speak too.
//!
//! The manager says by `NOTIFY_SOCKET` where it listens, and by `WATCHDOG_USEC` how often it wants to hear that the service is
//! well. Both are for the server's own process: [`keep_from`] takes them from what it starts.

use std::io;
use std::process::Command;
use std::time::Duration;

use sd_notify::NotifyState;

/// Where the manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";
/// Whom the watchdog's interval is for.
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";
/// Everything that the manager says to a service by its environment.
const VARIABLES: [&str; 3] = [SOCKET, WATCHDOG_PROCESS, "WATCHDOG_USEC"];
/// Longest line of status.
const STATUS_CHARS: usize = 200;

/// The manager that started this process.
#[derive(Clone, Copy, Debug)]
pub struct ServiceManager {
    watchdog: Option<Duration>,
}

/// Something that it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The service answers: its start is over.
    Ready,
    /// The service ends.
    Stopping,
    /// The service is well. Has to come within [`ServiceManager::watchdog`] of the last one.
    Alive,
    /// How it goes, for people.
    Status(String),
    /// Starting or ending may take so long from now.
    MoreTime(Duration),
}

impl ServiceManager {
    /// The manager that wants to be told, if there is one.
    pub fn find() -> Option<ServiceManager> {
        let socket = std::env::var_os(SOCKET).filter(|socket| !socket.is_empty());
        socket.map(|_| ServiceManager { watchdog: sd_notify::watchdog_enabled() })
    }

    /// It ends a service that says nothing for so long, and starts another.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|limit| !limit.is_zero())
    }

    /// Tells it, all at once. May wait for the manager, if very much waits to be read there already.
    ///
    /// # Errors
    ///
    /// The system's: nobody listens, or it may not be reached from here.
    pub fn tell(&self, news: &[News]) -> io::Result<()> {
        let status: Vec<Option<String>> = news.iter().map(News::status).collect();
        let states = news.iter().zip(&status).map(|(news, status)| match news {
            News::Ready => NotifyState::Ready,
            News::Stopping => NotifyState::Stopping,
            News::Alive => NotifyState::Watchdog,
            News::MoreTime(time) => {
                NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
            }
            News::Status(_) => NotifyState::Status(status.as_deref().unwrap_or_default()),
        });
        sd_notify::notify(&states.collect::<Vec<_>>())
    }
}

impl News {
    /// A line of status, made safe: lines are what separates one thing from another for the manager, and a status may quote what an
    /// engine said.
    fn status(&self) -> Option<String> {
        let News::Status(text) = self else { return None };
        let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        Some(line.take(STATUS_CHARS).collect())
    }
}

/// Keeps the manager from a process that the server starts: it has nothing to say there.
pub fn keep_from(command: &mut Command) {
    for variable in VARIABLES {
        command.env_remove(variable);
    }
}

/// Lets a process that takes this one's place know the manager. The watchdog's interval was given to this process by number.
pub fn hand_down(command: &mut Command) {
    command.env_remove(WATCHDOG_PROCESS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_cannot_say_anything_else() {
        let status = |text: &str| News::Status(text.to_owned()).status().unwrap();
        assert_eq!(status("the engine said\nMAINPID=1\r\0"), "the engine said MAINPID=1  ");
        assert_eq!(status(&"x".repeat(1000)).len(), STATUS_CHARS);
        assert_eq!(News::Ready.status(), None);
    }

    #[test]
    fn a_process_that_the_server_starts_does_not_know_the_manager_and_its_successor_does() {
        let removed = |command: &Command| {
            let mut names: Vec<_> =
                command.get_envs().map(|(name, value)| (name.to_owned(), value.is_none())).collect();
            names.sort();
            names
        };
        let mut child = Command::new("child");
        keep_from(&mut child);
        let all = VARIABLES.map(|name| (name.into(), true));
        assert_eq!(removed(&child), all);
        let mut successor = Command::new("successor");
        hand_down(&mut successor);
        assert_eq!(removed(&successor), [(WATCHDOG_PROCESS.into(), true)]);
    }
}
