//! Bindings of a kernel, declared and listed in the same order.

use std::fmt::Write as _;

use crate::gpu::Access;

/// Bindings in the order of their declaration.
#[derive(Default)]
pub(super) struct Bindings {
    pub(super) text: String,
    pub(super) access: Vec<Access>,
}

impl Bindings {
    pub(super) fn read(&mut self, name: &str, element: &str) {
        self.declare("read", name, element);
        self.access.push(Access::Read);
    }

    /// f32.
    pub(super) fn write(&mut self, name: &str) {
        self.declare("read_write", name, "f32");
        self.access.push(Access::Write);
    }

    fn declare(&mut self, access: &str, name: &str, element: &str) {
        let _ = writeln!(
            self.text,
            "@group(0) @binding({}) var<storage, {access}> {name}: array<{element}>;",
            self.access.len()
        );
    }
}
