//! Help, usage errors, errors.

use std::net::TcpListener;
use std::process::Stdio;

use crate::support::{one_line_error, output, program, text};

#[test]
fn help_teaches_the_commands_by_example() {
    let help = output(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = text(&help.stdout);
    for part in ["serve", "run", "Examples:", "unfazed serve -m model.gguf", "unfazed help COMMAND"] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
    assert!(!help.contains("engine"), "the engine is not for people:\n{help}");
}

#[test]
fn help_of_a_command_groups_its_flags() {
    let help = text(&output(&["help", "serve"]).stdout);
    for part in ["Model:", "Network:", "Access:", "Events and logs:", "Examples:", "UNFAZED_API_KEY"] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
}

#[test]
fn without_a_command_the_help_is_shown_as_a_usage_error() {
    let nothing = output(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(text(&nothing.stderr).contains("Examples:"));
}

#[test]
fn the_version_says_which_build_it_is() {
    let version = text(&output(&["--version"]).stdout);
    assert!(version.starts_with("unfazed 0."), "{version}");
    assert!(version.trim().split('-').count() >= 3, "{version}");
}

#[test]
fn a_mistyped_flag_ends_with_2_and_names_the_nearest_one() {
    let mistyped = output(&["serve", "--prefil-chunk", "64"]);
    assert_eq!(mistyped.status.code(), Some(2));
    assert!(text(&mistyped.stderr).contains("'--prefill-chunk'"), "{}", text(&mistyped.stderr));
    assert!(mistyped.stdout.is_empty());
}

#[test]
fn a_value_that_makes_no_sense_ends_with_2_and_names_its_flag() {
    for args in [
        ["--port", "65536"],
        ["--context", "lots"],
        ["--log", "loud"],
        ["--isa", "mmx"],
        ["--cache-type-k", "q3_k"],
    ] {
        let refused = output(&["serve", args[0], args[1]]);
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        assert!(text(&refused.stderr).contains(args[0]), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_closed_pipe_is_a_clean_end() {
    let mut child = program(&["serve", "--help"]).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(text(&ended.stderr), "");
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let line = one_line_error(&output(&["serve", "-m", "no/such/model.gguf"]));
    assert!(line.contains("model.gguf"), "{line}");
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let line = one_line_error(&output(&["serve", "--log", "off", "--events", "off", "--port", &port]));
    assert!(line.contains(&format!("port {port} is in use")) && line.contains("--port"), "{line}");
}

#[test]
fn an_empty_key_is_refused_instead_of_letting_everybody_in() {
    let line = one_line_error(&output(&["serve", "--api-key", ""]));
    assert!(line.contains("--api-key is empty"), "{line}");
    let refused = program(&["serve"]).env("UNFAZED_API_KEY", " ").output().unwrap();
    let line = one_line_error(&refused);
    assert!(line.contains("UNFAZED_API_KEY is empty"), "{line}");
}

#[test]
fn an_engine_started_by_hand_says_who_starts_engines() {
    for stdin in [Stdio::null(), Stdio::piped()] {
        let refused = program(&["engine"]).stdin(stdin).output().unwrap();
        let line = one_line_error(&refused);
        assert!(line.contains("unfazed serve"), "{line}");
    }
}
