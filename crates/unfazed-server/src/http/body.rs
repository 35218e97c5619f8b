//! A request's body: all of it, within its limit, its time and what all bodies may take together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// Bounds of bodies.
pub(crate) struct Bodies {
    /// Most bytes of one.
    limit: usize,
    /// Time for one to arrive.
    time: Duration,
    /// Bytes that all bodies which are received or prepared may still take.
    room: Arc<Semaphore>,
}

/// A body. Its bytes count until it is dropped.
pub(crate) struct Received {
    bytes: Vec<u8>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Bodies of at most `limit` bytes each and `budget` bytes together.
    pub(crate) fn new(limit: usize, budget: usize, time: Duration) -> Bodies {
        Bodies { limit, time, room: Arc::new(Semaphore::new(budget.min(Semaphore::MAX_PERMITS))) }
    }

    /// Reads a body to its end. One whose head says that it is over the limit, or over the room there is, is not
    /// waited for. Room is taken by the bytes that came, not by those that were announced: announcing costs nothing.
    pub(crate) async fn read(&self, body: Body) -> Result<Received, ApiError> {
        let announced = body.size_hint().lower();
        if announced > self.limit as u64 {
            return Err(ApiError::too_large(self.limit));
        }
        if announced > self.room.available_permits() as u64 {
            return Err(busy());
        }
        tokio::time::timeout(self.time, self.collect(Limited::new(body, self.limit))).await.unwrap_or_else(
            |_| {
                let seconds = self.time.as_secs_f32();
                Err(ApiError::too_slow(format!("the body did not arrive within {seconds} s")))
            },
        )
    }

    async fn collect(&self, mut body: Limited<Body>) -> Result<Received, ApiError> {
        let mut received = Received { bytes: Vec::new(), taken: None };
        while let Some(frame) = body.frame().await {
            match frame {
                // What is no data is trailers, which nobody asked for.
                Ok(frame) => received.add(&frame.into_data().unwrap_or_default(), &self.room)?,
                Err(error) if error.is::<LengthLimitError>() => return Err(ApiError::too_large(self.limit)),
                Err(error) => {
                    return Err(ApiError::malformed(format!("the body cannot be read: {error}")));
                }
            }
        }
        Ok(received)
    }
}

impl Received {
    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn add(&mut self, bytes: &[u8], room: &Arc<Semaphore>) -> Result<(), ApiError> {
        let count = u32::try_from(bytes.len()).map_err(|_| busy())?;
        let more = Arc::clone(room).try_acquire_many_owned(count).map_err(|_| busy())?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

fn busy() -> ApiError {
    ApiError::no_room("server_busy", "too many requests are being received; try again later")
}
