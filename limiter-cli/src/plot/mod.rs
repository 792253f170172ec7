//! stub
use crate::replay::{Answer, Observer};
use crate::summary::Summary;
use crate::trace::Row;
use limiter_core::Policy;
pub struct View;
impl View {
    pub fn new(_: &Summary, _: &Policy, _: Option<&[u8]>) -> Result<Self, String> {
        Ok(Self)
    }
}
pub struct Collector;
impl Collector {
    pub fn new(_: View, _: &Policy) -> Self {
        Self
    }
    pub fn finish(self) -> () {}
}
impl Observer for Collector {
    fn row(&mut self, _: &Row<'_>, _: &Answer) -> anyhow::Result<()> {
        Ok(())
    }
}
pub fn draw(_: &(), _: &Policy) -> anyhow::Result<String> {
    Ok(String::new())
}
