//! What the processor calls itself.

/// The processor's model, as its maker names it; the architecture if the system does not tell.
pub fn processor_name() -> String {
    system::name().unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    pub(super) fn name() -> Option<String> {
        of(&fs::read_to_string("/proc/cpuinfo").ok()?)
    }

    /// x86 has a name. Arm has numbers of maker and part, which tell models apart as well.
    fn of(cpuinfo: &str) -> Option<String> {
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
            line.split_once(':').map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        field("model name").or_else(|| {
            Some(format!("CPU implementer {} part {}", field("CPU implementer")?, field("CPU part")?))
        })
    }

    #[cfg(test)]
    mod tests {
        use super::of;

        #[test]
        fn a_name_is_found_on_x86_and_numbers_on_arm() {
            let x86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC  9554\n";
            assert_eq!(of(x86).unwrap(), "AMD EPYC 9554");
            let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
            assert_eq!(of(arm).unwrap(), "CPU implementer 0x41 part 0xd0c");
            assert_eq!(of(""), None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::process::Command;

    pub(super) fn name() -> Option<String> {
        let output =
            Command::new("/usr/sbin/sysctl").args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (!name.is_empty()).then_some(name)
    }
}
