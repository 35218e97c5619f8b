//! `install`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use unfazed_guard::shell::{self, Done, Shell};

use super::{Guard, printable};

const EXAMPLES: &str = "\
Examples:
  unfazed guard install --print       what would be put into the profile
  unfazed guard install               into the profile of the shell that SHELL names
  unfazed guard install --uninstall   out of it

In new shells, python, python3 and mlx_lm's programs then ask `unfazed guard panic-gate` first and are not
started while it says 2 (they end with 10). Off: METALGUARD_SHELL_GUARD_DISABLED=1. What launchd starts
reads no profile: ask the gate in its script.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct InstallArgs {
    /// Which shell's profile [default: of SHELL]
    #[arg(long, value_name = "NAME")]
    shell: Option<ShellName>,

    /// Print the block and change nothing
    #[arg(long, conflicts_with = "uninstall")]
    print: bool,

    /// Take the block out of the profile
    #[arg(long)]
    uninstall: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShellName {
    Zsh,
    Bash,
}

pub(super) fn run(guard: &Guard<'_>, args: &InstallArgs) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let program = program.to_str().context("this program's path is no UTF-8, which a profile cannot name")?;
    let block = shell::block(program);
    if args.print {
        guard.print(|| json!({"block": block}), || block.clone())?;
        return Ok(ExitCode::SUCCESS);
    }
    let shell = match args.shell {
        Some(ShellName::Zsh) => Shell::Zsh,
        Some(ShellName::Bash) => Shell::Bash,
        None => match Shell::of(&std::env::var("SHELL").unwrap_or_default()) {
            Some(shell) => shell,
            None => bail!("SHELL names neither zsh nor bash: say --shell zsh or --shell bash"),
        },
    };
    let folder = std::env::var_os("ZDOTDIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let profile = shell.profile(guard.places()?.home(), folder.as_deref());
    let done = if args.uninstall { shell::uninstall(&profile) } else { shell::install(&profile, &block) }?;
    let word = match (done, args.uninstall) {
        (Done::Nothing, false) => "was there already",
        (Done::Nothing, true) => "was not there",
        (Done::Changed, false) => "installed",
        (Done::Replaced, false) => "replaced",
        (_, true) => "removed",
    };
    let lines = || {
        let mut lines =
            format!("{}: the block of unfazed guard {word}\n", printable(&profile.display().to_string()));
        if !args.uninstall {
            lines.push_str("In new shells, python and mlx_lm ask the panic gate first. Off: METALGUARD_SHELL_GUARD_DISABLED=1\n");
            lines.push_str(
                "What launchd starts reads no profile: ask `unfazed guard panic-gate` in its script.\n",
            );
        }
        lines
    };
    guard.print(|| json!({"profile": profile, "block": word}), lines)?;
    Ok(ExitCode::SUCCESS)
}
