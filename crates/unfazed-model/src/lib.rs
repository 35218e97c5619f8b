//! Model families: a forward pass written once against the operations of a device.
