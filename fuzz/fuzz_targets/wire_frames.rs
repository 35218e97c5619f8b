//! Any bytes as what the other process sends: frames are refused or are messages, and memory stays bounded.

#![no_main]

use std::alloc::System;
use std::fmt::Debug;
use std::io::Write;
use std::os::unix::net::UnixStream;

use cap::Cap;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use unfazed_wire::frame::{HEADER_BYTES, MAX_BYTES, decode, encode, length};
use unfazed_wire::link::{LinkError, split};
use unfazed_wire::{ToEngine, ToFront};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Most bytes that a socket takes in without anybody who reads.
const SOCKET_BYTES: usize = 64 << 10;
/// Bytes of memory per byte of a message: the shortest token event has 3 bytes and takes 48, in a vector that doubles.
const EXPANSION: usize = 64;
/// For what a vector takes in advance on the word of its length.
const IN_ADVANCE: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    check::<ToFront>(bytes);
    check::<ToEngine>(bytes);
});

fn check<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(SOCKET_BYTES)];
    let limit = IN_ADVANCE + EXPANSION * bytes.len();
    let expected = limited(limit, || decoded::<T>(bytes));
    for beside_descriptors in [false, true] {
        assert_eq!(limited(limit, || received::<T>(bytes, beside_descriptors)), expected);
    }
}

/// What `run` gives back; fails if it held more memory than `limit` at a time.
fn limited<R>(limit: usize, run: impl FnOnce() -> R) -> R {
    // An allocation over the limit ends the process, which the fuzzer reports.
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + limit).expect("the limit is above what is allocated");
    let result = run();
    ALLOCATOR.set_limit(usize::MAX).expect("there is no limit");
    result
}

/// The messages in front of the first bytes that are none, as the bytes that they are encoded in.
fn decoded<T: Serialize + DeserializeOwned>(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Ok(len) = length(*header) else { break };
        assert!(len <= MAX_BYTES);
        let Some((body, rest)) = rest.split_at_checked(len) else { break };
        let Ok(message) = decode::<T>(body) else { break };
        messages.push(encoded(&message));
        bytes = rest;
    }
    messages
}

/// The same, sent through a socket.
fn received<T: Serialize + DeserializeOwned>(bytes: &[u8], beside_descriptors: bool) -> Vec<Vec<u8>> {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.write_all(bytes).expect("the socket's buffer takes the bytes");
    drop(ours);
    let (_, mut receiver) = split(theirs).expect("a second descriptor");
    let mut messages = Vec::new();
    loop {
        let message = if beside_descriptors {
            receiver.receive_with_descriptors::<T>().map(|received| received.map(|(message, _)| message))
        } else {
            receiver.receive::<T>()
        };
        match message {
            Ok(Some(message)) => messages.push(encoded(&message)),
            Ok(None) | Err(LinkError::Frame(_) | LinkError::Io(_)) => return messages,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A message that was decoded can be sent on and says the same there. (Bytes are compared, as some numbers in messages
/// are not equal to themselves.)
fn encoded<T: Serialize + DeserializeOwned>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("a message that fitted into a frame does so again");
    let again = decode::<T>(&bytes[HEADER_BYTES..]).expect("a message that was encoded decodes");
    let mut twice = Vec::new();
    encode(&again, &mut twice).expect("it fits again");
    assert_eq!(bytes, twice);
    bytes
}
