//! Answers as text: one line in a list of calls, one line per field in a comparison.

use std::time::Duration;

use limiter_core::{Limit, LimitStatus, MAX_COST, Status, Timestamp, Window};

use super::Answer;

/// The names and values of an answer's fields.
pub(crate) type Fields = Vec<(String, String)>;

/// Returns a time as microseconds after (or before) `start`.
pub(crate) fn since(start: Timestamp, at: Timestamp) -> String {
    match at.as_micros().checked_sub(start.as_micros()) {
        Some(later) => format!("+{later}"),
        None => format!("-{}", start.micros_since(at)),
    }
}

/// Returns a limit as text. The limit that covers every entry has a short name.
fn shown(limit: Limit) -> String {
    if (limit.max(), limit.window()) == (MAX_COST, Window::MAX) {
        "everything".to_owned()
    } else {
        limit.to_string()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "most values are numbers")]
fn named(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Adds one field per limit. The limit is part of the name if there are several.
fn push_each<T: ToString>(
    fields: &mut Fields,
    name: &str,
    status: &Status,
    value: impl Fn(&LimitStatus) -> T,
) {
    let limits = status.limits();
    for part in limits.iter() {
        let name = if limits.len() > 1 {
            format!("{}: {name}", shown(part.limit()))
        } else {
            name.to_owned()
        };
        fields.push(named(&name, value(part)));
    }
}

/// Returns the fields of a status, with times relative to `start`.
pub(crate) fn of_status(status: &Status, start: Timestamp) -> Fields {
    let mut fields = vec![
        named("at", since(start, status.at())),
        named("limit", shown(status.limit())),
    ];
    if !status.clock_behind().is_zero() {
        fields.push(named("clock_behind", status.clock_behind().as_micros()));
    }
    push_each(&mut fields, "used", status, LimitStatus::used);
    push_each(&mut fields, "remaining", status, LimitStatus::remaining);
    push_each(&mut fields, "refill_after", status, |part| {
        part.refill_after().as_micros()
    });
    push_each(&mut fields, "reset_after", status, |part| {
        part.reset_after().as_micros()
    });
    if status.limits().len() > 1 {
        fields.push(named("reset_after", status.reset_after().as_micros()));
    }
    fields
}

impl Answer {
    /// Returns the fields, with times relative to `start`.
    pub(crate) fn fields(&self, start: Timestamp) -> Fields {
        let none = || "none".to_owned();
        let mut fields = vec![named("allowed", self.allowed)];
        let retry_after = self.retry_after.as_ref().map(Duration::as_micros);
        fields.push(named(
            "retry_after",
            retry_after.map_or_else(none, |retry| retry.to_string()),
        ));
        fields.push(named("appended", self.appended));
        let receipt = self
            .receipt
            .map(|(at, window)| format!("of {}, for {window}", since(start, at)));
        fields.push(named("receipt", receipt.unwrap_or_else(none)));
        fields.extend(of_status(&self.status, start));
        if self.status.limits().len() > 1 {
            let retry_after =
                |part: &LimitStatus| part.retry_after().unwrap_or_default().as_micros();
            push_each(&mut fields, "retry_after", &self.status, retry_after);
        }
        fields
    }
}
