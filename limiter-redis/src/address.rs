//! Where a server is.

/// A host and a port.
pub(crate) type Address = (String, u16);
