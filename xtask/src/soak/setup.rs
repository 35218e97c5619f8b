//! What a run needs: the program, a Python, the model's file system, a memory group; and what of it cannot be had here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use unfazed_sim::device::Bug;

use super::Arguments;
use super::device;
use super::exit;
use super::faults::{Class, DEVICE, Wanted};
use super::memory_group::MemoryGroup;
use super::openai;
use super::program::Launch;
use super::request::CONTEXT;
use super::storage::Storage;

/// Small chunks let faults fall into prompts; the queue holds all that clients may ask for.
const SETTINGS: [&str; 8] =
    ["--parallel", "16", "--prefill-chunk", "64", "--max-queue", "256", "--stall-ms", "1500"];
/// Of all experts so many have a slot where they are streamed.
const SLOTS_PERCENT: u64 = 40;

/// Everything that outlives the server.
pub(super) struct Setup {
    /// An undisturbed server, and the one that is disturbed.
    pub(super) undisturbed: Launch,
    pub(super) disturbed: Launch,
    pub(super) python: Option<PathBuf>,
    pub(super) storage: Option<Storage>,
    pub(super) group: Option<MemoryGroup>,
    pub(super) wanted: Wanted,
    /// What cannot be had here, and why.
    pub(super) left_out: Vec<String>,
}

impl Setup {
    /// Makes all of it in a folder.
    pub(super) async fn new(arguments: &Arguments, folder: &Path) -> Result<Setup> {
        let wanted = Wanted::parse(&arguments.faults)?;
        let program = match &arguments.program {
            Some(program) => program.clone(),
            None => build()?,
        };
        let python = match (&arguments.python, arguments.openai_clients()) {
            (_, 0) => None,
            (Some(python), _) => Some(python.clone()),
            (None, _) => Some(openai::environment(&folder.with_file_name("python")).await?),
        };
        let model = arguments.model.clone().unwrap_or_else(demo_model);
        let model = model.canonicalize().with_context(|| model.display().to_string())?;
        let launch = Launch { program, args: Vec::new(), folder: folder.to_owned() };
        let mut setup = Setup {
            undisturbed: launch.clone(),
            disturbed: launch,
            python,
            storage: None,
            group: None,
            wanted,
            left_out: Vec::new(),
        };
        setup.storage(folder, &model)?;
        setup.memory();
        setup.exit_codes();
        setup.arguments(&model)?;
        setup.device(folder, arguments.seed, arguments.plant.map(Bug::from))?;
        ensure!(
            !setup.wanted.classes.is_empty() || setup.wanted.device,
            "none of the faults of --faults {} can be had here: {}",
            arguments.faults,
            setup.left_out.join("; ")
        );
        Ok(setup)
    }

    fn leave_out(&mut self, what: &str, why: &str) {
        self.wanted.without(|class| class.group() == what || class.name() == what);
        self.left_out.push(format!("{what}: {why}"));
    }

    fn storage(&mut self, folder: &Path, model: &Path) -> Result<()> {
        if self.wanted.has("storage") {
            self.storage = Storage::new(&folder.join("mount"), model)?;
            if self.storage.is_none() {
                self.leave_out("storage", "no FUSE file system can be mounted here");
            }
        }
        Ok(())
    }

    fn memory(&mut self) {
        if self.wanted.has("memory") {
            self.group = MemoryGroup::new(&format!("unfazed-soak-{}", std::process::id()));
            if self.group.is_none() {
                self.leave_out("memory", "no memory control group can be made here");
            }
        }
    }

    fn exit_codes(&mut self) {
        if self.wanted.classes.contains(&Class::Exit) && !exit::possible() {
            self.leave_out(
                Class::Exit.name(),
                "it is known for x86-64 only how to make a process end by a code",
            );
        }
    }

    fn arguments(&mut self, model: &Path) -> Result<()> {
        let mut args: Vec<String> = SETTINGS.map(str::to_owned).to_vec();
        args.extend(["--context".to_owned(), CONTEXT.to_string()]);
        if self.storage.is_some()
            && let Some(slots) = slots(&self.undisturbed, model)?
        {
            args.extend(["--stream-experts".to_owned(), "on".to_owned()]);
            args.extend(["--expert-cache".to_owned(), slots.to_string()]);
        }
        let with_model = |path: &Path| {
            let model = ["--model".to_owned(), path.display().to_string()];
            [args.clone(), model.to_vec()].concat()
        };
        self.undisturbed.args = with_model(model);
        let mounted = self.storage.as_ref().map(Storage::file);
        self.disturbed.args = with_model(mounted.as_deref().unwrap_or(model));
        Ok(())
    }

    fn device(&mut self, folder: &Path, seed: u64, bug: Option<Bug>) -> Result<()> {
        if self.wanted.device {
            self.wanted.device = device::possible(&self.disturbed)?;
            if self.wanted.device {
                self.disturbed.args.extend(device::plan(folder, seed, bug)?);
            } else {
                self.leave_out(DEVICE, "the program has no --fault-plan");
            }
        }
        Ok(())
    }
}

/// The model in the repository.
fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/stories-moe-29m-Q4_0.gguf")
}

/// Builds the program as the soak needs it.
fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--locked", "--release", "--package", "unfazed", "--features", "fault-plan"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(cargo).args(build).current_dir(root).status()?;
    ensure!(status.success(), "the program cannot be built");
    crate::server::Server::program()
}

/// How many slots: so few that experts are read all the time. `None` for a model without experts.
fn slots(launch: &Launch, model: &Path) -> Result<Option<u64>> {
    let model = model.display().to_string();
    let plan = launch.output(&["plan", "--json", "--model", &model, "--expert-cache", "1"])?;
    let plan: Value = serde_json::from_str(&plan)?;
    let number = |name: &str| plan["experts"][name].as_u64();
    let (all, least) = (number("experts"), number("slots"));
    Ok(all.zip(least).map(|(all, least)| least.max(all * SLOTS_PERCENT / 100)))
}
