//! A service manager told by a process of its own: the manager is found by the environment.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use unfazed_host::service_manager::{News, ServiceManager};

/// Runs a test of this program in a process that a service manager started; what the manager was told.
fn told_by(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("notify");
    let socket = UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--ignored"]).env("NOTIFY_SOCKET", &address);
    let mut child = child.envs(variables.iter().copied()).spawn().unwrap();
    let mut told = Vec::<String>::new();
    while !told.last().is_some_and(|text| text.contains("STATUS=the end")) {
        let mut bytes = [0; 4096];
        let count = socket.recv(&mut bytes).expect("the manager is told something");
        told.push(String::from_utf8(bytes[..count].to_vec()).unwrap());
    }
    assert!(child.wait().unwrap().success());
    told
}

#[test]
fn a_watchdog_of_another_process_is_none_and_without_a_number_it_is_ours() {
    for (number, own) in [("1", "no"), ("", "yes")] {
        let mut variables = vec![("WATCHDOG_USEC", "3000000"), ("EXPECTED", own)];
        if !number.is_empty() {
            variables.push(("WATCHDOG_PID", number));
        }
        told_by("the_process_with_a_watchdog", &variables);
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn the_process_with_a_watchdog() {
    let manager = ServiceManager::find().unwrap();
    let expected = (std::env::var("EXPECTED").unwrap() == "yes").then_some(Duration::from_secs(3));
    assert_eq!(manager.watchdog(), expected);
    manager.tell(&[News::Alive, News::Status("the end".to_owned())]).unwrap();
}
