//! GPUs, as their drivers describe them: whoever asked did so in a process of its own.

use super::finding::{Finding, size};

const CHECK: &str = "gpu";
/// Mesa's processor that acts as a GPU leaves loops too early before this version.
const SOUND_MESA: u32 = 25;

/// What the drivers told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Why there is no Vulkan loader, where there should be one.
    pub no_loader: Option<String>,
    /// In the order of their numbers.
    pub all: Vec<Adapter>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// Its driver and that one's version.
    pub driver: String,
    /// What it is reached through.
    pub backend: String,
    /// A processor that acts as a GPU.
    pub software: bool,
    /// Bytes of its memory, where its driver tells.
    pub memory: Option<u64>,
    /// Bytes of that which are free.
    pub free: Option<u64>,
}

/// A line for each adapter, or one that says what is missing. `device`: the kernel shows a device of a real GPU.
pub(super) fn judge(told: &Result<Adapters, String>, device: bool, packages: Packages) -> Vec<Finding> {
    let Adapters { no_loader, all } = match told {
        Ok(told) => told,
        Err(why) => {
            let found = "the GPUs' drivers do not tell what there is";
            let finding = Finding::warn(CHECK, found, format!("{why}; the processor computes alone"));
            return vec![finding.command("vulkaninfo --summary")];
        }
    };
    let mut findings: Vec<Finding> =
        all.iter().enumerate().map(|(number, adapter)| one(number, adapter)).collect();
    match no_loader {
        Some(why) if device => {
            let found = format!("there is no Vulkan loader ({why})");
            findings.push(
                Finding::warn(CHECK, found, "no GPU can be used without it").command(packages.loader()),
            );
        }
        None if device && all.iter().all(|adapter| adapter.software) => {
            let found = "the Vulkan loader finds no driver of the GPU that the kernel shows";
            let why = "the driver's package lacks its Vulkan part, or this user may not open the device";
            findings.push(Finding::warn(CHECK, found, why).command(packages.driver()));
        }
        _ if findings.is_empty() => {
            findings.push(Finding::ok(CHECK, "no GPU was found", "the processor computes"));
        }
        _ => {}
    }
    findings
}

fn one(number: usize, adapter: &Adapter) -> Finding {
    let Adapter { name, driver, backend, software, memory, free } = adapter;
    let memory = match (memory, free) {
        (Some(memory), Some(free)) => format!("{}, {} free", size(*memory), size(*free)),
        (Some(memory), None) => size(*memory),
        (None, _) => "its memory is not told".to_owned(),
    };
    let found = format!("{number} is {name} ({driver}, {backend}, {memory})");
    match (software, mesa(driver)) {
        (false, _) if adapter.memory.is_none() => {
            Finding::note(CHECK, found, "layers are put on it only if --gpu-layers says how many")
        }
        (false, _) => Finding::ok(CHECK, found, "layers are put on it where they fit"),
        (true, Some(version)) if version < SOUND_MESA => Finding::note(
            CHECK,
            format!("{found}, a processor that acts as a GPU, of Mesa {version}"),
            format!("it is used only if --gpu names it, and its results are wrong before Mesa {SOUND_MESA}"),
        ),
        (true, _) => Finding::ok(
            CHECK,
            format!("{found}, a processor that acts as a GPU"),
            "it is used only if --gpu names it, and slower than the processor itself",
        ),
    }
}

/// Mesa's major version in a driver's words, such as `llvmpipe Mesa 22.3.6 (LLVM 15.0.6)`.
fn mesa(driver: &str) -> Option<u32> {
    let (_, behind) = driver.split_once("Mesa ")?;
    behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Who installs packages here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packages {
    Apt,
    Dnf,
    Pacman,
    Unknown,
}

impl Packages {
    /// By the programs that there are.
    pub(super) fn of_machine() -> Packages {
        let there = |name: &str| std::path::Path::new("/usr/bin").join(name).exists();
        match () {
            () if there("apt-get") => Packages::Apt,
            () if there("dnf") => Packages::Dnf,
            () if there("pacman") => Packages::Pacman,
            () => Packages::Unknown,
        }
    }

    fn loader(self) -> &'static str {
        match self {
            Packages::Apt => "sudo apt-get install libvulkan1",
            Packages::Dnf => "sudo dnf install vulkan-loader",
            Packages::Pacman => "sudo pacman -S vulkan-icd-loader",
            Packages::Unknown => "install the Vulkan loader, libvulkan.so.1",
        }
    }

    fn driver(self) -> &'static str {
        match self {
            Packages::Apt => {
                "sudo apt-get install mesa-vulkan-drivers   # NVIDIA: libegl1 libgl1 libglx0 libopengl0 libgles2"
            }
            Packages::Dnf => "sudo dnf install mesa-vulkan-drivers   # NVIDIA: its own driver",
            Packages::Pacman => "sudo pacman -S vulkan-radeon   # or vulkan-intel, nvidia-utils",
            Packages::Unknown => "install the Vulkan part of the GPU's driver",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn told(all: &[Adapter]) -> Result<Adapters, String> {
        Ok(Adapters { no_loader: None, all: all.to_vec() })
    }

    fn real() -> Adapter {
        Adapter {
            name: "NVIDIA H200".to_owned(),
            driver: "NVIDIA 580.82".to_owned(),
            backend: "Vulkan".to_owned(),
            software: false,
            memory: Some(139 << 30),
            free: Some(138 << 30),
        }
    }

    fn software(version: &str) -> Adapter {
        let driver = format!("llvmpipe Mesa {version} (LLVM 19)");
        Adapter { name: "llvmpipe".to_owned(), driver, software: true, ..real() }
    }

    fn verdicts(findings: &[Finding]) -> Vec<Verdict> {
        findings.iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn each_adapter_has_its_line_with_driver_and_memory() {
        let findings = judge(&told(&[real(), software("25.0.7")]), true, Packages::Apt);
        assert_eq!(verdicts(&findings), [Verdict::Ok, Verdict::Ok]);
        assert_eq!(findings[0].found, "0 is NVIDIA H200 (NVIDIA 580.82, Vulkan, 139 GiB, 138 GiB free)");
        assert!(findings[1].found.contains("acts as a GPU"));
        let silent = Adapter { memory: None, free: None, ..real() };
        assert_eq!(verdicts(&judge(&told(&[silent]), true, Packages::Apt)), [Verdict::Note]);
    }

    #[test]
    fn an_old_software_device_is_told_to_be_wrong() {
        let findings = judge(&told(&[software("22.3.6")]), false, Packages::Apt);
        assert_eq!(verdicts(&findings), [Verdict::Note]);
        assert!(findings[0].reason.contains("wrong before Mesa 25"), "{}", findings[0].reason);
    }

    #[test]
    fn a_device_without_loader_or_driver_is_told_with_the_package() {
        let none = Ok(Adapters { no_loader: Some("no libvulkan.so.1".to_owned()), all: Vec::new() });
        let findings = judge(&none, true, Packages::Apt);
        assert_eq!(verdicts(&findings), [Verdict::Warn]);
        assert_eq!(findings[0].command.as_deref(), Some("sudo apt-get install libvulkan1"));
        assert_eq!(verdicts(&judge(&none, false, Packages::Apt)), [Verdict::Ok]);
        let findings = judge(&told(&[software("25.0")]), true, Packages::Dnf);
        assert_eq!(verdicts(&findings), [Verdict::Ok, Verdict::Warn]);
        assert!(findings[1].command.as_deref().unwrap().contains("mesa-vulkan-drivers"));
    }

    #[test]
    fn drivers_that_hang_are_told() {
        let findings = judge(&Err("they gave no answer within 15 s".to_owned()), true, Packages::Unknown);
        assert_eq!(verdicts(&findings), [Verdict::Warn]);
        assert!(findings[0].reason.starts_with("they gave no answer"));
    }
}
