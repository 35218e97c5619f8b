//! What a user may ask of the server. Defaults are those of the command line.

use std::time::Duration;

/// Which origins other than the server's own may call it from a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// Every one.
    Any,
    /// These, as browsers send them (`https://example.org`).
    Only(Vec<String>),
}

/// Settings of the server. What decides memory is in the plan instead.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Address or name to bind.
    pub host: String,
    /// Port; 0 lets the system pick one, which the `listening` and `ready` events say.
    pub port: u16,
    /// Keys of which a client must send one; empty lets everybody in.
    pub api_keys: Vec<String>,
    /// Browser origins that are let in; `None` sends no CORS headers and lets in the server's own pages only.
    pub cors: Option<CorsOrigins>,
    /// Names that a `Host` header may carry beside the loopback names and the bound address; `*` lets all in.
    pub allowed_hosts: Vec<String>,
    /// The model's name towards clients.
    pub model_id: String,
    /// How long running requests may go on once the server was told to end.
    pub drain: Duration,
    /// Sequences that may wait beside those that run. More are refused (429).
    pub max_queue: usize,
    /// Longest request body, in bytes. Longer ones are refused (413).
    pub body_limit: usize,
    /// Bytes of all bodies that are being received or prepared. More are refused (429).
    pub body_budget: usize,
    /// Bytes of all events of streams that wait for their clients or are kept for those that come back.
    pub stream_budget: usize,
    /// Most connections at a time; fewer where the system's limit of open files leaves room for fewer.
    pub connections: usize,
    /// How long a client may take to send a request's head, and again its body (408).
    pub receive_timeout: Duration,
    /// A stream that is silent for this long gets a comment, so that nobody on the way closes it.
    pub keep_alive: Duration,
    /// An engine that gives no sign of progress for this long, and for 20 times as long as between its recent ones, is
    /// killed and replaced.
    pub stall: Duration,
    /// How long an engine may wait for storage before it is killed and replaced.
    pub storage_patience: Duration,
    /// Instruction set by name; `None` lets the engine take the best one.
    pub isa: Option<String>,
    /// Processors that compute threads may run on, by number; empty: all that the process may use.
    pub processors: Vec<usize>,
    /// Each compute thread stays on one of `processors`.
    pub pin: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            api_keys: Vec::new(),
            cors: None,
            allowed_hosts: Vec::new(),
            model_id: "model".to_owned(),
            drain: Duration::from_secs(30),
            max_queue: 256,
            body_limit: 32 << 20,
            body_budget: 256 << 20,
            stream_budget: 256 << 20,
            connections: 4096,
            receive_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            stall: Duration::from_secs(5),
            storage_patience: Duration::from_secs(600),
            isa: None,
            processors: Vec::new(),
            pin: false,
        }
    }
}
