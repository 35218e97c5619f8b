//! Devices of graphics adapters that the kernel shows, and whether this user may open them.

use std::path::Path;

use rustix::fs::{Access, access};

use super::files;
use super::finding::Finding;

/// An adapter, by what the kernel shows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Adapter {
    /// The device node that programs compute through, as `/dev/dri/renderD128`.
    pub(super) node: String,
    /// The kernel's driver: `amdgpu`, `i915`, `nvidia`.
    pub(super) driver: String,
    /// This user may open it.
    pub(super) open: bool,
}

/// Adapters with a node to compute through, and NVIDIA's, which have one of their own.
pub(super) fn read(root: &Path) -> Vec<Adapter> {
    let may_open = |node: &str| access(root.join(node), Access::READ_OK | Access::WRITE_OK).is_ok();
    let render = files::names(root, "sys/class/drm").into_iter().filter(|name| name.starts_with("renderD"));
    let render = render.map(|name| {
        let link = root.join(format!("sys/class/drm/{name}/device/driver"));
        let driver = std::fs::read_link(link).ok();
        let driver = driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
        let node = format!("dev/dri/{name}");
        Adapter {
            open: may_open(&node),
            node: format!("/{node}"),
            driver: driver.unwrap_or_else(|| "unknown driver".to_owned()),
        }
    });
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let nvidia = files::names(root, "dev").into_iter();
    let nvidia = nvidia.filter(|name| name.strip_prefix("nvidia").is_some_and(is_number)).map(|name| {
        let node = format!("dev/{name}");
        Adapter { open: may_open(&node), node: format!("/{node}"), driver: "nvidia".to_owned() }
    });
    render.chain(nvidia).collect()
}

pub(super) fn judge(adapters: &[Adapter]) -> Finding {
    const CHECK: &str = "graphics";
    if adapters.is_empty() {
        return Finding::ok(CHECK, "no device of a GPU is visible", "the processor computes");
    }
    let name = |adapter: &Adapter| format!("{} ({})", adapter.node, adapter.driver);
    let list = |adapters: Vec<&Adapter>| adapters.into_iter().map(name).collect::<Vec<_>>().join(", ");
    let closed: Vec<_> = adapters.iter().filter(|adapter| !adapter.open).collect();
    if closed.is_empty() {
        let reason = "this user may open what a GPU's driver works through";
        return Finding::ok(CHECK, list(adapters.iter().collect()), reason);
    }
    Finding::warn(
        CHECK,
        format!("{}: this user may not open it", list(closed)),
        "its driver finds no GPU then, and the processor computes",
    )
    .command("sudo usermod -aG render,video \"$USER\"")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn adapters_are_told_and_those_that_may_not_be_opened_are_a_warning() {
        assert_eq!(judge(&[]).verdict, Verdict::Ok);
        let adapter =
            |open| Adapter { node: "/dev/dri/renderD128".to_owned(), driver: "amdgpu".to_owned(), open };
        let open = judge(&[adapter(true)]);
        assert_eq!((open.verdict, open.found.as_str()), (Verdict::Ok, "/dev/dri/renderD128 (amdgpu)"));
        let closed = judge(&[adapter(true), adapter(false)]);
        assert_eq!(closed.verdict, Verdict::Warn);
        assert!(closed.command.unwrap().contains("usermod"));
    }

    #[test]
    fn adapters_are_found_by_their_nodes() {
        let root = crate::cgroup::machine(&[
            ("sys/class/drm/renderD128/device/vendor", "0x1002\n"),
            ("sys/class/drm/card0/device/vendor", "0x1002\n"),
            ("dev/dri/renderD128", ""),
            ("dev/nvidia0", ""),
            ("dev/nvidiactl", ""),
            ("dev/nvidia-uvm", ""),
        ]);
        let driver = root.path().join("sys/class/drm/renderD128/device/driver");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/amdgpu", driver).unwrap();
        let adapter = |node: &str, driver: &str| Adapter {
            node: node.to_owned(),
            driver: driver.to_owned(),
            open: true,
        };
        let expected = [adapter("/dev/dri/renderD128", "amdgpu"), adapter("/dev/nvidia0", "nvidia")];
        assert_eq!(read(root.path()), expected);
    }
}
