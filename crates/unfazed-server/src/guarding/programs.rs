//! Servers whose words are known: what each calls its port and host, so that it can be given private ones.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What stands for the private port in arguments of servers that are not known.
const PORT: &str = "{port}";
/// The same for the address.
const HOST: &str = "{host}";
/// Where guarded servers listen.
pub(super) const LOCAL: &str = "127.0.0.1";

/// A server's words.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    /// The program's base name, or the Python module's.
    name: &'static str,
    /// The word behind it that makes it a server.
    subcommand: Option<&'static str>,
    /// Its words for the port, the first one to be used.
    port: &'static [&'static str],
    /// Its word for the address.
    host: &'static str,
    /// Where it listens unless told otherwise.
    default_port: u16,
    /// Its word for the key that clients need, and the variable.
    key: Option<(&'static str, &'static str)>,
}

const fn known(
    name: &'static str,
    subcommand: Option<&'static str>,
    port: &'static [&'static str],
    default_port: u16,
    key: Option<(&'static str, &'static str)>,
) -> Known {
    Known { name, subcommand, port, host: "--host", default_port, key }
}

/// All of them.
const KNOWN: [Known; 11] = {
    const LONG: &[&str] = &["--port"];
    const BOTH: &[&str] = &["--port", "-p"];
    [
        known("llama-server", None, LONG, 8080, Some(("--api-key", "LLAMA_API_KEY"))),
        known("mlx_lm.server", None, LONG, 8080, None),
        known("mlx_lm", Some("server"), LONG, 8080, None),
        known("SwiftLM", None, LONG, 5413, Some(("--api-key", ""))),
        // Strata's, which is a script.
        known("serve/server.py", None, LONG, 8095, Some(("--api-key", "STRATA_API_KEY"))),
        known("unfazed", Some("serve"), BOTH, 8080, Some(("--api-key", ""))),
        known("ds4-server", None, LONG, 8000, None),
        known("coli", Some("serve"), LONG, 8000, Some(("--api-key", ""))),
        known("vllm", Some("serve"), LONG, 8000, Some(("--api-key", "VLLM_API_KEY"))),
        known("mistralrs", Some("serve"), BOTH, 1234, None),
        known("mistralrs-server", None, BOTH, 1234, None),
    ]
};

/// Flags of llama-server that make it speak TLS, and so not with a guard.
const TLS: [&str; 2] = ["--ssl-key-file", "--ssl-cert-file"];

/// A command line that cannot be guarded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// There is none.
    #[error(
        "which server? Give its command line behind --, as in: unfazed guard run -- llama-server -m model.gguf"
    )]
    Nothing,
    /// Nothing says how it is told its port.
    #[error(
        "{name} is no server whose words are known: write {{port}} where its port belongs, as in: unfazed guard run --port 8080 -- \
         {name} --listen 127.0.0.1:{{port}}"
    )]
    Unknown {
        /// The program's base name.
        name: String,
    },
    /// A flag for the port without a port.
    #[error("{flag} {value:?}: a port is a number from 0 to 65535")]
    Port {
        /// The flag.
        flag: String,
        /// What stands behind it.
        value: String,
    },
    /// The guard could not talk to it.
    #[error(
        "{flag}: the server behind the guard must speak plain HTTP; leave it out (TLS belongs in front of the guard)"
    )]
    Tls {
        /// The flag.
        flag: String,
    },
}

/// A server's command line, ready to be given one private port after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The program, as it was given.
    pub program: OsString,
    /// With placeholders where the private port and address belong.
    arguments: Vec<OsString>,
    /// What it is called, for people: its base name.
    pub name: String,
    /// The port that it was to listen on: the guard's own, unless that was said.
    pub port: Option<u16>,
    /// The same of the address.
    pub host: Option<String>,
    /// The key that its clients need.
    pub(super) key: Option<String>,
}

impl Command {
    /// Reads a command line. `variable` looks up the environment.
    ///
    /// # Errors
    ///
    /// It cannot be given a private port.
    pub fn parse(
        words: &[OsString],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Command, CommandError> {
        let (program, arguments) = words.split_first().ok_or(CommandError::Nothing)?;
        let name = base_name(program);
        let found =
            words.iter().enumerate().find_map(|(at, word)| Some((at, find(word, words.get(at + 1))?)));
        let placed = words.iter().any(|word| word.to_string_lossy().contains(PORT));
        let mut command = Command {
            program: program.clone(),
            arguments: arguments.to_vec(),
            name,
            port: None,
            host: None,
            key: None,
        };
        let Some((at, known)) = found else {
            return if placed { Ok(command) } else { Err(CommandError::Unknown { name: command.name }) };
        };
        command.name = base_name(OsStr::new(known.name));
        command.key = known.key.and_then(|(_, name)| variable(name)).filter(|key| !key.is_empty());
        command.arguments.truncate(at);
        command.take(known, words.get(at + 1..).unwrap_or_default())?;
        command.port = command.port.or((!placed).then_some(known.default_port));
        if !placed {
            let words = [known.port.first().copied().unwrap_or("--port"), PORT, known.host, HOST];
            command.arguments.extend(words.map(OsString::from));
        }
        Ok(command)
    }

    /// Takes a known server's arguments over, but for its port and address.
    fn take(&mut self, known: &Known, words: &[OsString]) -> Result<(), CommandError> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let (flag, value) = text.split_once('=').map_or((&*text, None), |(f, v)| (f, Some(v.to_owned())));
            let mut value =
                || value.clone().or_else(|| words.next().map(|value| value.to_string_lossy().into_owned()));
            if TLS.contains(&flag) {
                return Err(CommandError::Tls { flag: flag.to_owned() });
            } else if known.port.contains(&flag) {
                let value = value().unwrap_or_default();
                if value.contains(PORT) {
                    self.arguments.extend([OsString::from(flag), value.into()]);
                    continue;
                }
                let port = value.parse();
                self.port = Some(port.map_err(|_| CommandError::Port { flag: flag.to_owned(), value })?);
            } else if known.host == flag {
                self.host = value();
            } else if known.key.is_some_and(|(key, _)| key == flag) {
                let value = value().unwrap_or_default();
                // llama-server takes several, of which each will do.
                self.key = value.split(',').next().map(str::to_owned);
                self.arguments.extend([OsString::from(flag), value.into()]);
            } else {
                self.arguments.push(word.clone());
            }
        }
        Ok(())
    }

    /// The arguments for a server on a private port.
    pub(super) fn arguments(&self, port: u16) -> Vec<OsString> {
        let port = port.to_string();
        let fill = |word: &OsString| match word.to_str() {
            Some(text) => OsString::from(text.replace(PORT, &port).replace(HOST, LOCAL)),
            None => word.clone(),
        };
        self.arguments.iter().map(fill).collect()
    }

    /// llama-server computes a prompt position by position, as it does an answer: the same tokens give the same numbers, whether
    /// they were generated or are a prompt.
    pub(super) fn is_even(&self) -> bool {
        let pairs = self.arguments.windows(2);
        pairs.into_iter().any(
            |pair| matches!(pair, [flag, one] if (flag == "-ub" || flag == "--ubatch-size") && one == "1"),
        )
    }

    /// The server asks its clients for a key.
    pub fn wants_key(&self) -> bool {
        self.key.is_some()
    }
}

/// The server that a word names, with the word behind it.
fn find(word: &OsStr, next: Option<&OsString>) -> Option<&'static Known> {
    let path = Path::new(word);
    KNOWN.iter().find(|known| {
        let named = path.ends_with(known.name) || word == known.name;
        named && known.subcommand.is_none_or(|subcommand| next.is_some_and(|next| next == subcommand))
    })
}

fn base_name(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, CommandError> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Command::parse(&words, |name| (name == "LLAMA_API_KEY").then(|| "from-variable".to_owned()))
    }

    fn line(command: &Command) -> String {
        let words = command.arguments(4321);
        let words = words.iter().map(|word| word.to_string_lossy().into_owned());
        std::iter::once(command.program.to_string_lossy().into_owned())
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn each_known_server_gets_a_private_port_and_its_own_becomes_the_guards() {
        for (given, started, port, host) in [
            ("llama-server -m a.gguf", "llama-server -m a.gguf --port 4321 --host 127.0.0.1", 8080, None),
            (
                "/opt/bin/llama-server --port 9000 -m a --host 0.0.0.0 -p hello",
                "/opt/bin/llama-server -m a -p hello --port 4321 --host 127.0.0.1",
                9000,
                Some("0.0.0.0"),
            ),
            (
                "nice -n 5 llama-server --port=9000 --host=::1",
                "nice -n 5 llama-server --port 4321 --host 127.0.0.1",
                9000,
                Some("::1"),
            ),
            (
                "python -m mlx_lm.server --model x --port 81",
                "python -m mlx_lm.server --model x --port 4321 --host 127.0.0.1",
                81,
                None,
            ),
            ("mlx_lm.server --model x", "mlx_lm.server --model x --port 4321 --host 127.0.0.1", 8080, None),
            ("python3 -m mlx_lm server", "python3 -m mlx_lm server --port 4321 --host 127.0.0.1", 8080, None),
            ("SwiftLM --model x", "SwiftLM --model x --port 4321 --host 127.0.0.1", 5413, None),
            (
                "python serve/server.py --engine strata",
                "python serve/server.py --engine strata --port 4321 --host 127.0.0.1",
                8095,
                None,
            ),
            ("unfazed serve -p 7 -c 8k", "unfazed serve -c 8k --port 4321 --host 127.0.0.1", 7, None),
            ("vllm serve m --port 1", "vllm serve m --port 4321 --host 127.0.0.1", 1, None),
        ] {
            let command = parse(given).unwrap();
            assert_eq!(line(&command), started, "{given}");
            assert_eq!((command.port, command.host.as_deref()), (Some(port), host), "{given}");
        }
    }

    #[test]
    fn an_unknown_server_says_where_its_port_belongs() {
        let command = parse("my-server --listen {host}:{port} -v").unwrap();
        assert_eq!(line(&command), "my-server --listen 127.0.0.1:4321 -v");
        assert_eq!((command.port, command.host), (None, None));
        assert_eq!(parse("my-server --port 80"), Err(CommandError::Unknown { name: "my-server".to_owned() }));
        // Neither a model of that name nor a chat makes it one.
        assert!(parse("unfazed run").is_err());
        assert_eq!(parse(""), Err(CommandError::Nothing));
    }

    #[test]
    fn a_known_servers_port_may_be_placed_by_hand() {
        let command = parse("llama-server --port {port} -m a").unwrap();
        assert_eq!(line(&command), "llama-server --port 4321 -m a");
    }

    #[test]
    fn what_cannot_work_is_refused_by_what_is_wrong_with_it() {
        let error = parse("llama-server --port http").unwrap_err();
        assert_eq!(error.to_string(), "--port \"http\": a port is a number from 0 to 65535");
        assert!(parse("llama-server --port").is_err());
        assert!(matches!(parse("llama-server --ssl-key-file a"), Err(CommandError::Tls { .. })));
    }

    #[test]
    fn the_servers_key_is_found_and_stays_the_servers() {
        let command = parse("llama-server --api-key one,two").unwrap();
        assert_eq!(command.key.as_deref(), Some("one"));
        assert!(line(&command).contains("--api-key one,two"));
        assert_eq!(parse("llama-server").unwrap().key.as_deref(), Some("from-variable"));
        assert_eq!(parse("SwiftLM --model x").unwrap().key, None);
    }
}
