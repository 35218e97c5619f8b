//! A socket that carries frames, and how a child process gets its end of it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{self, FrameError, HEADER_BYTES};

/// Most descriptors beside one message (the kernel's own limit, SCM_MAX_FD, is 253).
pub const MAX_DESCRIPTORS: usize = 252;

/// A link that broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The socket failed.
    #[error("the link to the other process failed: {0}")]
    Io(#[from] io::Error),
    /// The other side sent what is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// More descriptors than fit beside one message.
    #[error("{0} files cannot be handed over at once (the limit is {MAX_DESCRIPTORS})")]
    TooManyDescriptors(usize),
    /// Standard input is not a link.
    #[error("standard input is not a socket: an engine is started by `unfazed serve`, not by hand")]
    NoSocket,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender {
    socket: UnixStream,
    buffer: Vec<u8>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    socket: UnixStream,
    buffer: Vec<u8>,
}

/// Both halves of a link over a connected socket.
pub fn split(socket: UnixStream) -> io::Result<(Sender, Receiver)> {
    let other = socket.try_clone()?;
    Ok((Sender { socket, buffer: Vec::new() }, Receiver { socket: other, buffer: Vec::new() }))
}

/// A connected pair: our end, and the end that a child gets as its standard input
/// (`Command::stdin(Stdio::from(theirs))`). Standard input is the one descriptor that a child inherits without a
/// moment in which another child, started by another thread, could inherit it too and keep the link open.
pub fn pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((ours, OwnedFd::from(theirs)))
}

/// The child's end: this process's standard input, which must be a connected stream socket.
pub fn from_stdin() -> Result<UnixStream, LinkError> {
    let stdin = io::stdin();
    match rustix::net::sockopt::socket_type(stdin.as_fd()) {
        Ok(rustix::net::SocketType::STREAM) => Ok(UnixStream::from(stdin.as_fd().try_clone_to_owned()?)),
        Ok(_) | Err(_) => Err(LinkError::NoSocket),
    }
}

impl Sender {
    /// Sends a message; blocks while the other side's buffer is full.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), LinkError> {
        self.fill(message)?;
        self.socket.write_all(&self.buffer)?;
        Ok(())
    }

    /// Sends a message with descriptors beside its first byte.
    pub fn send_with_descriptors<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(LinkError::TooManyDescriptors(descriptors.len()));
        }
        self.fill(message)?;
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(LinkError::TooManyDescriptors(descriptors.len()));
        }
        let sent = loop {
            match sendmsg(self.socket.as_fd(), &[IoSlice::new(&self.buffer)], &mut control, send_flags()) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result.map_err(io::Error::from)?,
            }
        };
        self.socket.write_all(self.buffer.get(sent..).unwrap_or_default())?;
        Ok(())
    }

    fn fill<T: Serialize>(&mut self, message: &T) -> Result<(), LinkError> {
        self.buffer.clear();
        Ok(frame::encode(message, &mut self.buffer)?)
    }
}

impl Receiver {
    /// Receives the next message; `None` when the other side has closed the link (or died) between messages.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LinkError> {
        let mut header = [0; HEADER_BYTES];
        if !self.fill_or_end(&mut header)? {
            return Ok(None);
        }
        self.body(header).map(Some)
    }

    /// Receives the next message and the descriptors beside it.
    pub fn receive_with_descriptors<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(T, Vec<OwnedFd>)>, LinkError> {
        let mut header = [0; HEADER_BYTES];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let first = loop {
            match recvmsg(
                self.socket.as_fd(),
                &mut [IoSliceMut::new(&mut header)],
                &mut control,
                receive_flags(),
            ) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result.map_err(io::Error::from)?.bytes,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        self.socket.read_exact(header.get_mut(first..).unwrap_or_default())?;
        Ok(Some((self.body(header)?, descriptors)))
    }

    fn body<T: DeserializeOwned>(&mut self, header: [u8; HEADER_BYTES]) -> Result<T, LinkError> {
        let len = frame::length(header)?;
        // The buffer grows with what comes: a length alone takes no memory.
        self.buffer.clear();
        if (&self.socket).take(len as u64).read_to_end(&mut self.buffer)? < len {
            return Err(LinkError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(frame::decode(&self.buffer)?)
    }

    /// False if the stream ends before the first byte of `buffer`; an end within it is an error.
    fn fill_or_end(&mut self, buffer: &mut [u8; HEADER_BYTES]) -> Result<bool, LinkError> {
        let first = loop {
            match self.socket.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                result => break result?,
            }
        };
        if first == 0 {
            return Ok(false);
        }
        self.socket.read_exact(buffer.get_mut(first..).unwrap_or_default())?;
        Ok(true)
    }
}

/// No signal where the other side is gone. macOS has no such flag; there the signal is ignored, as Rust programs do.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn send_flags() -> SendFlags {
    SendFlags::NOSIGNAL
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn send_flags() -> SendFlags {
    SendFlags::empty()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn receive_flags() -> RecvFlags {
    RecvFlags::CMSG_CLOEXEC
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn receive_flags() -> RecvFlags {
    RecvFlags::empty()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::{RequestId, ToEngine};

    fn links() -> (Sender, Receiver) {
        let (a, b) = UnixStream::pair().unwrap();
        (split(a).unwrap().0, split(b).unwrap().1)
    }

    #[test]
    fn messages_arrive_in_order_and_an_orderly_end_is_no_error() {
        let (mut sender, mut receiver) = links();
        for id in 0..100 {
            sender.send(&ToEngine::Cancel(RequestId(id))).unwrap();
        }
        drop(sender);
        for id in 0..100 {
            assert_eq!(receiver.receive::<ToEngine>().unwrap(), Some(ToEngine::Cancel(RequestId(id))));
        }
        assert_eq!(receiver.receive::<ToEngine>().unwrap(), None);
    }

    #[test]
    fn an_end_inside_a_frame_is_an_error() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[9, 0, 0, 0, 1]).unwrap();
        drop(a);
        assert!(matches!(split(b).unwrap().1.receive::<ToEngine>(), Err(LinkError::Io(_))));
    }

    #[test]
    fn a_message_larger_than_the_socket_buffer_arrives_whole_with_its_files() {
        let (mut sender, mut receiver) = links();
        let words: Vec<u32> = (0..1_000_000).collect();
        let sent = words.clone();
        let thread = std::thread::spawn(move || {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"weights").unwrap();
            sender.send_with_descriptors(&sent, &[file.as_fd(), file.as_fd()]).unwrap();
        });
        let (received, files) = receiver.receive_with_descriptors::<Vec<u32>>().unwrap().unwrap();
        thread.join().unwrap();
        assert_eq!(received, words);
        assert_eq!(files.len(), 2);
        let mut text = [0; 7];
        std::os::unix::fs::FileExt::read_exact_at(
            &File::from(files.into_iter().next().unwrap()),
            &mut text,
            0,
        )
        .unwrap();
        assert_eq!(&text, b"weights");
    }

    #[test]
    fn a_child_has_the_link_as_its_standard_input() {
        let (ours, theirs) = pair().unwrap();
        let mut child =
            std::process::Command::new("cat").stdin(theirs).stdout(std::process::Stdio::piped()).spawn();
        let child = child.as_mut().unwrap();
        (&ours).write_all(b"hello").unwrap();
        drop(ours);
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_standard_input_that_is_no_socket_is_refused() {
        assert!(matches!(from_stdin(), Err(LinkError::NoSocket)));
    }
}
