//! Landlock: which files a process may open. Descriptors that are open stay usable.

use std::os::fd::AsFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Needs;

/// Everything up to this version of the interface is given up, as far as the kernel knows it: files (1 to 3), TCP (4),
/// controls of devices (5), signals to other processes and abstract sockets (6).
const VERSION: ABI = ABI::V6;

pub(super) fn give_up(needs: &Needs<'_>) -> Result<u32, String> {
    let status = ruleset(needs).and_then(RulesetCreated::restrict_self).map_err(|error| error.to_string())?;
    match (status.landlock, status.ruleset) {
        (LandlockStatus::Available { effective_abi, .. }, RulesetStatus::NotEnforced) => {
            Err(format!("Landlock {effective_abi:?} does not restrict anything"))
        }
        (LandlockStatus::Available { effective_abi, .. }, _) => Ok(effective_abi.min(VERSION) as u32),
        (LandlockStatus::NotEnabled, _) => Err("Landlock is switched off in this kernel".to_owned()),
        (LandlockStatus::NotImplemented, _) => {
            Err("this kernel has no Landlock, or a container forbids it".to_owned())
        }
    }
}

/// All that is forbidden, with what is allowed nevertheless.
fn ruleset(needs: &Needs<'_>) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?;
    for file in needs.files {
        allow(&mut rules, file, AccessFs::ReadFile.into());
    }
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    for folder in &needs.read {
        allow_beneath(&mut rules, folder, read);
    }
    for device in &needs.devices {
        allow_beneath(&mut rules, device, read | AccessFs::WriteFile | AccessFs::IoctlDev);
    }
    let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    for folder in &needs.write {
        allow_beneath(&mut rules, folder, read | write);
    }
    Ok(rules)
}

/// A file by itself, or all that is in a folder. What is not there needs no rule.
fn allow_beneath(rules: &mut RulesetCreated, path: &Path, access: BitFlags<AccessFs>) {
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
    if let Ok(opened) = PathFd::new(path) {
        allow(rules, &opened, access);
    }
}

/// What cannot be allowed stays forbidden: files without a name (in memory) cannot, and need not, as Landlock never looks at
/// them.
fn allow(rules: &mut RulesetCreated, at: &impl AsFd, access: BitFlags<AccessFs>) {
    if let Err(error) = rules.add_rule(PathBeneath::new(at.as_fd(), access)) {
        tracing::debug!(%error, "a file or folder that may be opened is left out");
    }
}
