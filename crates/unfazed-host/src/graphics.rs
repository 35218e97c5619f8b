//! Whether this machine may have a GPU, without asking its drivers.

/// Whether there is a device that a driver of a real GPU works through. Where that cannot be told, there may be one.
pub fn has_device() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let names = |folder| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let numbered = |name: &str, prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let render = names("/dev/dri").any(|entry| numbered(&entry.file_name().to_string_lossy(), "renderD"));
    // Windows' own device, in its subsystem for Linux.
    render
        || names("/dev").any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            numbered(&name, "nvidia") || name == "dxg"
        })
}
