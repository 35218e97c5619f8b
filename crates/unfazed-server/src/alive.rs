//! Signs of life, for whoever would start the server anew.
//!
//! A sign says that the runtime turns, that the listener listens, that nobody sits on what front and keeper share, and that
//! engines are being kept. That an engine is dead, loads or is stuck in a restart's pause is no lack of life: the front sees to
//! that, and its own end would cost the clients their connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::supervisor::Engine;

/// Wait for the next look where the last one found no life: a front that was stopped for a while is well a moment later.
const AGAIN: Duration = Duration::from_millis(500);

/// Who is told, and how often.
#[derive(Clone)]
pub struct Alive {
    /// Time between two signs.
    pub every: Duration,
    /// Gives a sign. Must not wait.
    pub tell: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alive").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Gives signs for as long as there is life. Never resolves.
pub(crate) async fn give_signs(alive: Alive, engine: Engine, listener: AbortHandle) {
    signs(&alive, || !listener.is_finished() && engine.is_kept()).await;
}

async fn signs(alive: &Alive, is_well: impl Fn() -> bool) {
    loop {
        let wait = if is_well() {
            (alive.tell)();
            alive.every
        } else {
            alive.every.min(AGAIN)
        };
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn signs_come_at_intervals_cease_while_something_hangs_and_come_again() {
        let begun = Instant::now();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = {
            let told = Arc::clone(&told);
            Arc::new(move || told.lock().unwrap().push(begun.elapsed().as_millis()))
        };
        let alive = Alive { every: Duration::from_secs(10), tell };
        // It hangs from 15 s to 44.2 s.
        let hangs = || (15_000..44_200).contains(&begun.elapsed().as_millis());
        let _ = tokio::time::timeout(Duration::from_secs(60), signs(&alive, || !hangs())).await;
        assert_eq!(*told.lock().unwrap(), [0, 10_000, 44_500, 54_500]);
    }
}
