#![doc = include_str!("../../../docs/frameworks.md")]
