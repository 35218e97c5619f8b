//! A client's socket, beneath the HTTP protocol: whether an answer is out, a client that takes nothing, and an end that
//! does not throw the answer away.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connections::Place;

/// How long a client may take none of the bytes that wait for it. Beyond it the connection is closed, as its answer may
/// be large and its place is needed.
const STALL: Duration = Duration::from_secs(120);
/// How long a client that is still sending may do so after its answer.
const LINGER: Duration = Duration::from_secs(2);

/// The socket of a connection that has a place.
pub(super) struct Socket<T> {
    inner: T,
    place: Arc<Place>,
    /// Runs while bytes wait.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Runs once our side is closed.
    lingers: Option<Pin<Box<Sleep>>>,
}

impl<T> Socket<T> {
    pub(super) fn new(inner: T, place: Arc<Place>) -> Socket<T> {
        Socket { inner, place, stalled: None, lingers: None }
    }

    /// Passes the result of a write on, unless the client has taken nothing for too long.
    fn watched(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL))).as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Socket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.place.heard();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Called by the protocol with nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.place.flushed();
        Poll::Ready(Ok(()))
    }

    /// Closes our side. What the client still sends to a request that was refused is then read and thrown away: bytes
    /// left unread would make the system reset the connection, and with it an answer that the client has not read.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingers.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            if !self.place.has_unread() {
                return Poll::Ready(Ok(()));
            }
            self.lingers = Some(Box::pin(sleep(LINGER)));
        }
        let mut bytes = [0; 16 << 10];
        loop {
            if self.lingers.as_mut().is_some_and(|lingers| lingers.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                // The client's end, or the connection's.
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::super::connections::Connections;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_for_long_is_left_and_one_that_takes_little_is_not() {
        let (mut client, server) = duplex(4);
        let (place, _closed) = Connections::new(1).enter().await;
        let mut socket = Socket::new(server, place);
        let write = tokio::spawn(async move { socket.write_all(b"12345678").await });
        let mut byte = [0];
        for _ in 0..3 {
            tokio::time::sleep(STALL - Duration::from_secs(1)).await;
            client.read_exact(&mut byte).await.unwrap();
            assert!(!write.is_finished());
        }
        let error = write.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_still_sends_is_read_to_its_end_or_for_a_while() {
        for ends in [true, false] {
            let (mut client, server) = duplex(4);
            let (place, _closed) = Connections::new(1).enter().await;
            place.heard();
            let mut socket = Socket::new(server, place);
            let shutdown = tokio::spawn(async move { socket.shutdown().await });
            client.write_all(&[0; 100]).await.unwrap();
            assert!(!shutdown.is_finished());
            if ends {
                client.shutdown().await.unwrap();
            }
            shutdown.await.unwrap().unwrap();
        }
    }
}
