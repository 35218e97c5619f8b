//! The kernels' text: WGSL, made from templates.
