//! Which errors pass, and how long they are waited for.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rustix::io::Errno;

/// How long a read may take before it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// An attempt that brings nothing for so long is given up and made again.
    pub attempt: Duration,
    /// How long attempts are made while the storage is away or says nothing.
    pub away: Duration,
    /// How long attempts are made while the storage is there and says that it cannot read.
    pub media: Duration,
    /// The pause after the first attempt; each pause is twice the one before it.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for Patience {
    /// Ten minutes for storage that is away: the time that the front grants a declared wait. Half a minute for bytes that
    /// cannot be read: drives have given up by then what they try again by themselves.
    fn default() -> Self {
        Patience {
            attempt: Duration::from_secs(30),
            away: Duration::from_secs(600),
            media: Duration::from_secs(30),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(2),
        }
    }
}

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The same is tried again at once: the system was interrupted.
    Again,
    /// It may pass while the storage is there.
    Media,
    /// The storage is away: the file has to be opened again as well.
    Away,
    /// It stays.
    Final,
}

impl Patience {
    /// The pause before the attempt after number `attempts` (from 1 on).
    pub fn pause(&self, attempts: u32) -> Duration {
        let doubled = 2u32.saturating_pow(attempts.saturating_sub(1));
        self.first_pause.saturating_mul(doubled).min(self.longest_pause)
    }

    /// How long attempts are made with errors of this kind.
    pub fn limit(&self, fate: Fate) -> Duration {
        match fate {
            Fate::Again | Fate::Away => self.away,
            Fate::Media => self.media,
            Fate::Final => Duration::ZERO,
        }
    }
}

/// What follows from an error of a read, or of opening a file again.
pub fn fate(error: &io::Error) -> Fate {
    match error.kind() {
        ErrorKind::Interrupted => return Fate::Again,
        ErrorKind::TimedOut => return Fate::Away,
        _ => {}
    }
    let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else { return Fate::Final };
    match errno {
        Errno::IO | Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::BUSY => Fate::Media,
        #[cfg(target_os = "linux")]
        Errno::REMOTEIO => Fate::Media,
        // A server or a drive that went away: its mount, its network, its device.
        Errno::STALE
        | Errno::NOENT
        | Errno::NODEV
        | Errno::NXIO
        | Errno::NOTCONN
        | Errno::CONNABORTED
        | Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::SHUTDOWN
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::NETDOWN
        | Errno::NETUNREACH
        | Errno::NETRESET
        | Errno::NOLINK
        | Errno::PIPE => Fate::Away,
        _ => Fate::Final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_pass_are_told_from_those_that_stay() {
        let of = |errno: Errno| fate(&io::Error::from(errno));
        assert_eq!(of(Errno::INTR), Fate::Again);
        for errno in [Errno::IO, Errno::AGAIN] {
            assert_eq!(of(errno), Fate::Media, "{errno}");
        }
        for errno in [Errno::STALE, Errno::NOENT, Errno::NOTCONN, Errno::TIMEDOUT, Errno::CONNABORTED] {
            assert_eq!(of(errno), Fate::Away, "{errno}");
        }
        for errno in [Errno::BADF, Errno::ACCESS, Errno::INVAL, Errno::ISDIR] {
            assert_eq!(of(errno), Fate::Final, "{errno}");
        }
        assert_eq!(fate(&ErrorKind::UnexpectedEof.into()), Fate::Final);
        assert_eq!(fate(&ErrorKind::TimedOut.into()), Fate::Away);
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let patience = Patience::default();
        let pauses: Vec<_> = (1..9).map(|n| patience.pause(n).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(patience.pause(u32::MAX), patience.longest_pause);
    }
}
