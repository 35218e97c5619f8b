//! Rights that an engine gives up, as soon as it knows what it needs.
//!
//! An engine handles bytes from outside (weights, prompts) with code that is made for speed. Whoever takes it over should not
//! get further: no network, no programs, no files but the model's and what is kept from run to run.
//!
//! First, before there is any thread of its own: files and calls. Then, once its ring is there: new rings. Each part is optional:
//! what cannot be had is told, and the engine works without it.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use unfazed_host::sandbox::{Calls, Needs, give_up_calls, give_up_files};
use unfazed_host::{cache, disk};
use unfazed_wire::SandboxInfo;

/// What is read there: this process's own state, the machine's processors, drives and limits. Nothing of other processes.
const SYSTEM: [&str; 2] = ["/proc/self", "/sys"];

/// Rights given up so far.
#[derive(Debug)]
pub(crate) struct Sandbox(SandboxInfo);

impl Sandbox {
    /// Gives up files and calls. `descriptors` are those that the front handed over. With `gpus` their drivers stay, which
    /// are programs of others: libraries, lists of them, devices, and what they keep from run to run.
    ///
    /// To be called before other threads are started: a thread that is there already keeps its files.
    pub(crate) fn enter(descriptors: &[OwnedFd], gpus: bool) -> Sandbox {
        let mut info = SandboxInfo::default();
        let mut needs = needs(descriptors);
        if gpus {
            gpu_drivers(&mut needs);
        }
        match give_up_files(&needs) {
            Ok(version) => info.landlock = Some(version),
            Err(error) => info.missing.push(format!("landlock: {error}")),
        }
        match give_up_calls(Calls::Outside) {
            Ok(()) => info.seccomp = true,
            Err(error) => info.missing.push(format!("seccomp: {error}")),
        }
        Sandbox(info)
    }

    /// Keeps all rights.
    pub(crate) fn off() -> Sandbox {
        Sandbox(SandboxInfo { missing: vec!["--sandbox off".to_owned()], ..SandboxInfo::default() })
    }

    /// Gives up new rings. `ring`: there is one, which can only read.
    pub(crate) fn no_more_rings(mut self, ring: bool) -> SandboxInfo {
        self.0.ring = ring;
        if self.0.seccomp
            && let Err(error) = give_up_calls(Calls::Rings)
        {
            self.0.missing.push(format!("seccomp, for new rings: {error}"));
        }
        let SandboxInfo { seccomp, landlock, ring, missing } = &self.0;
        let missing = missing.join("; ");
        tracing::info!(seccomp, landlock, ring, missing, "rights given up");
        self.0
    }
}

/// Files and folders that an engine opens while it runs.
fn needs(descriptors: &[OwnedFd]) -> Needs<'_> {
    let mut read: Vec<PathBuf> = SYSTEM.map(PathBuf::from).to_vec();
    read.extend(descriptors.iter().filter_map(folder_after_return));
    let write = cache::folder().filter(|folder| match std::fs::create_dir_all(folder) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "nothing can be kept from run to run");
            false
        }
    });
    Needs { files: descriptors, read, devices: Vec::new(), write: write.into_iter().collect() }
}

/// Where GPU drivers' libraries are, and the lists that a Vulkan loader finds them by.
const DRIVERS: [&str; 10] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local",
    "/usr/share",
    "/etc",
    "/opt",
    "/run/opengl-driver",
    "/proc/driver/nvidia",
];
/// Prefixes of GPUs' names among the devices.
const DEVICES: [&str; 6] = ["nvidia", "dri", "kfd", "dxg", "udmabuf", "null"];

fn gpu_drivers(needs: &mut Needs<'_>) {
    needs.read.extend(DRIVERS.map(PathBuf::from));
    needs
        .read
        .extend(["/proc/modules", "/proc/cpuinfo", "/proc/meminfo", "/proc/devices"].map(PathBuf::from));
    needs.read.extend(std::env::var_os("VK_DRIVER_FILES").into_iter().flat_map(|list| {
        std::env::split_paths(&list)
            .filter_map(|file| file.parent().map(Path::to_path_buf))
            .collect::<Vec<_>>()
    }));
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    needs.devices.extend(entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        DEVICES.iter().any(|prefix| name.starts_with(prefix))
    }));
    // Mesa's and NVIDIA's caches of compiled kernels.
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from) {
        needs.write.extend(
            [".cache/mesa_shader_cache", ".cache/mesa_shader_cache_db", ".cache/nvidia", ".nv"]
                .map(|name| home.join(name)),
        );
    }
}

/// A file on a drive that may go away is opened again by its name when the drive is back. It is another mount then, of which no
/// rule can be made yet, but its place is known: the folder that holds it. `None` for files that stay, and where that folder is
/// the root.
fn folder_after_return(descriptor: &OwnedFd) -> Option<PathBuf> {
    let file = File::from(descriptor.try_clone().ok()?);
    if !disk::of(&file).may_vanish() {
        return None;
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
    let folder = mount_holder(&path, &std::fs::read("/proc/self/mountinfo").ok()?)?;
    folder.parent().is_some().then_some(folder)
}

/// The folder that holds the mount which a file is on, by the kernel's list of mounts: the file itself is not asked, as it may
/// be away.
fn mount_holder(file: &Path, mounts: &[u8]) -> Option<PathBuf> {
    let points = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        // Number, parent, device, root, mount point.
        let point = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescaped(point))))
    });
    let longest =
        points.filter(|point| file.starts_with(point)).max_by_key(|point| point.as_os_str().len())?;
    longest.parent().map(Path::to_path_buf)
}

/// A path of that list: blanks and the like are written as three octal digits.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, others @ ..] = rest {
        let (byte, behind) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..] => {
                (((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), behind)
            }
            _ => (*first, others),
        };
        plain.push(byte);
        rest = behind;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_holds_a_files_mount_is_found_by_the_longest_mount_point() {
        let mounts = b"22 1 254:0 / / rw - ext4 /dev/a rw\n\
            30 22 0:50 / /media/user/My\\040Disk rw,nosuid - fuseblk /dev/b rw\n\
            31 22 0:51 / /media/user rw - tmpfs c rw\n";
        let holder = |file: &str| mount_holder(Path::new(file), mounts);
        assert_eq!(holder("/media/user/My Disk/a/model.gguf"), Some("/media/user".into()));
        assert_eq!(holder("/media/user/model.gguf"), Some("/media".into()));
        assert_eq!(holder("/home/model.gguf"), None);
        assert_eq!(mount_holder(Path::new("/a"), b""), None);
    }
}
