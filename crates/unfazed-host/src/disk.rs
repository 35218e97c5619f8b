//! What a file is stored on: its file system, its drive, and whether either may go away.

use std::fmt;
use std::os::fd::AsFd;

/// What is known about where a file is. What the system does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The file system, as it is called: `ext4`, `nfs`, `fuse`.
    pub file_system: Option<String>,
    /// The file system gets its bytes from elsewhere: another machine, or another process.
    pub remote: bool,
    /// The drive behind the file system: `nvme0n1`.
    pub device: Option<String>,
    /// What the drive calls itself.
    pub model: Option<String>,
    /// The drive hangs on USB.
    pub usb: bool,
    /// The drive has heads to move.
    pub rotational: bool,
}

impl Disk {
    /// It may go away and come back while the machine runs, and a question to it may take as long as that.
    pub fn may_vanish(&self) -> bool {
        self.remote || self.usb
    }

    /// A name to keep measurements of it under; `None` where there is nothing to tell it from others.
    pub fn key(&self) -> Option<String> {
        let name = self.model.as_ref().or(self.device.as_ref()).or(self.file_system.as_ref())?;
        let device = self.device.as_deref().unwrap_or("-");
        Some(format!("{name} {device} {}", self.file_system.as_deref().unwrap_or("-")))
    }

    /// One line of what to expect from it, for people; `None` for a drive like any other.
    pub fn caution(&self) -> Option<String> {
        let name = self.file_system.as_deref().unwrap_or("this file system");
        if self.remote {
            return Some(format!(
                "{name} is a file system of another machine or process: it is as fast as what is between, and reads wait while it is away"
            ));
        }
        if self.usb {
            return Some("the drive hangs on USB: reads wait while it is unplugged".to_owned());
        }
        let slow = "the drive has moving heads: loading is slow, and experts cannot be streamed from it at a useful rate";
        self.rotational.then(|| slow.to_owned())
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_system.as_deref().unwrap_or("an unknown file system"))?;
        if let Some(device) = &self.device {
            write!(f, " on {device}")?;
        }
        if let Some(model) = &self.model {
            write!(f, " ({model})")?;
        }
        f.write_str(if self.usb { ", USB" } else { "" })
    }
}

/// What an open file is stored on.
pub fn of(file: &impl AsFd) -> Disk {
    system::of(file)
}

#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::AsFd;
    use std::path::{Path, PathBuf};

    use rustix::fs::{fstat, fstatfs, major, minor};

    use super::Disk;

    /// Magic numbers of file systems (`statfs(2)`, linux/magic.h), whether they are remote, and their names.
    const FILE_SYSTEMS: [(u32, bool, &str); 25] = [
        (0x0000_ef53, false, "ext4"),
        (0x5846_5342, false, "xfs"),
        (0x9123_683e, false, "btrfs"),
        (0x2fc1_2fc1, false, "zfs"),
        (0xf2f5_2010, false, "f2fs"),
        (0xca45_1a4e, false, "bcachefs"),
        (0x0102_1994, false, "tmpfs"),
        (0x794c_7630, false, "overlayfs"),
        (0x2011_bab0, false, "exfat"),
        (0x0000_4d44, false, "vfat"),
        (0x7366_746e, false, "ntfs3"),
        (0x7371_7368, false, "squashfs"),
        (0xe0f5_e1e2, false, "erofs"),
        (0x0000_9660, false, "iso9660"),
        (0x8584_58f6, false, "ramfs"),
        (0x0000_6969, true, "nfs"),
        (0xff53_4d42, true, "cifs"),
        (0xfe53_4d42, true, "smb2"),
        (0x0000_517b, true, "smb"),
        (0x6573_5546, true, "fuse"),
        (0x0102_1997, true, "9p"),
        (0x00c3_6400, true, "ceph"),
        (0x5346_414f, true, "afs"),
        (0x0bd0_0bd0, true, "lustre"),
        (0x1983_0326, true, "beegfs"),
    ];

    pub(super) fn of(file: &impl AsFd) -> Disk {
        let mut disk = Disk::default();
        if let Ok(found) = fstatfs(file) {
            // The type of the field differs among architectures; the numbers are of 32 bits.
            let magic = found.f_type as u32;
            let known = FILE_SYSTEMS.iter().find(|(number, ..)| *number == magic);
            disk.file_system = Some(known.map_or_else(|| format!("{magic:#x}"), |known| known.2.to_owned()));
            disk.remote = known.is_some_and(|known| known.1);
        }
        if let Ok(found) = fstat(file) {
            let (major, minor) = (major(found.st_dev), minor(found.st_dev));
            drive(&mut disk, Path::new(&format!("/sys/dev/block/{major}:{minor}")));
        }
        disk
    }

    /// What sysfs says of a block device, or of the drive that it is a part of.
    fn drive(disk: &mut Disk, block: &Path) {
        let Ok(block) = block.canonicalize() else { return };
        let drive: PathBuf = match block.parent() {
            Some(parent) if block.join("partition").exists() => parent.to_owned(),
            _ => block,
        };
        let read = |name: &str| Some(std::fs::read_to_string(drive.join(name)).ok()?.trim().to_owned());
        disk.device = drive.file_name().map(|name| name.to_string_lossy().into_owned());
        disk.model = read("device/model").filter(|model| !model.is_empty());
        disk.usb = drive.components().any(|part| part.as_os_str().to_string_lossy().starts_with("usb"));
        // A virtual machine's disk says that it has heads, whatever is behind it.
        let is_virtual =
            drive.components().any(|part| part.as_os_str().to_string_lossy().starts_with("virtio"));
        disk.rotational = !is_virtual && read("queue/rotational").is_some_and(|text| text == "1");
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_partition_is_told_by_its_drive_and_a_usb_drive_by_its_path() {
            let sys = tempfile::tempdir().unwrap();
            let drive_folder = sys.path().join("devices/pci0000:00/usb2/2-1/block/sda");
            std::fs::create_dir_all(drive_folder.join("sda1")).unwrap();
            std::fs::create_dir_all(drive_folder.join("device")).unwrap();
            std::fs::create_dir_all(drive_folder.join("queue")).unwrap();
            std::fs::write(drive_folder.join("sda1/partition"), "1\n").unwrap();
            std::fs::write(drive_folder.join("device/model"), "Portable SSD T7 \n").unwrap();
            std::fs::write(drive_folder.join("queue/rotational"), "1\n").unwrap();
            let link = sys.path().join("8:1");
            std::os::unix::fs::symlink(drive_folder.join("sda1"), &link).unwrap();
            let mut disk = Disk { file_system: Some("exfat".to_owned()), ..Disk::default() };
            drive(&mut disk, &link);
            assert_eq!(disk.to_string(), "exfat on sda (Portable SSD T7), USB");
            assert!(disk.usb && disk.rotational && disk.may_vanish());
            assert!(disk.caution().unwrap().contains("USB"));
        }

        #[test]
        fn a_file_of_this_machine_has_a_file_system_with_a_name() {
            let disk = of(&tempfile::tempfile().unwrap());
            assert!(disk.file_system.is_some() && !disk.to_string().is_empty());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::os::fd::AsFd;

    use super::Disk;

    /// `MNT_LOCAL`, which macOS sets for file systems of the machine's own drives.
    const LOCAL: u32 = 0x1000;

    pub(super) fn of(file: &impl AsFd) -> Disk {
        let Ok(found) = rustix::fs::fstatfs(file) else { return Disk::default() };
        let name: Vec<u8> = found.f_fstypename.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        Disk {
            file_system: Some(String::from_utf8_lossy(&name).into_owned()),
            remote: found.f_flags & LOCAL == 0,
            ..Disk::default()
        }
    }
}
