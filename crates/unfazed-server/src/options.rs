//! What a user may ask of the server. Defaults are those of the command line.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::alive::Alive;
use crate::supervisor::RendererProgram;

/// Which origins other than the server's own may call it from a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// Every one.
    Any,
    /// These, as browsers send them (`https://example.org`).
    Only(Vec<String>),
}

/// The journal on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// Its folder, which is made if it is not there.
    pub dir: PathBuf,
    /// Most bytes that it takes.
    pub bytes: u64,
    /// A stream of which nothing was written for so long is dropped.
    pub age: Duration,
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
    /// An answer ends when its last so many tokens repeat a pattern, unless its request says otherwise; 0 is never.
    pub repeat_stop_tokens: usize,
    /// Instruction set by name; `None` lets the engine take the best one.
    pub isa: Option<String>,
    /// Processors that compute threads may run on, by number; empty: all that the process may use.
    pub processors: Vec<usize>,
    /// Each compute thread stays on one of `processors`.
    pub pin: bool,
    /// Which expert leaves when another one comes, by name; used where experts are streamed.
    pub expert_policy: String,
    /// A file that is told which experts each step used.
    pub expert_trace: Option<Arc<File>>,
    /// How long it must be quiet before what was given up for faults is taken up again.
    pub recover_after: Duration,
    /// Names of placements, the fullest first, the processor alone last, where the plan puts nothing on a GPU.
    pub placements: Vec<String>,
    /// Faults that engines act out, where their build can.
    pub fault_plan: Option<String>,
    /// Where streams that can be resumed are kept for the next front; `None` keeps them in memory alone.
    pub journal: Option<JournalOptions>,
    /// Stands for how weights and KV pages are laid out in memory: a new front of the same layout goes on with them.
    pub layout: String,
    /// Renders chat templates in processes of its own; `None` renders them in this one.
    pub renderer: Option<RendererProgram>,
    /// Who wants signs of life.
    pub alive: Option<Alive>,
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
            repeat_stop_tokens: 0,
            isa: None,
            processors: Vec::new(),
            pin: false,
            expert_policy: "s3-fifo".to_owned(),
            expert_trace: None,
            recover_after: Duration::from_secs(600),
            placements: vec!["cpu".to_owned()],
            fault_plan: None,
            journal: None,
            layout: String::new(),
            renderer: None,
            alive: None,
        }
    }
}
