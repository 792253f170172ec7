//! Answers as text: one line in a list of calls, one line per field in a comparison.

use limiter_core::{Limit, MAX_COST, Timestamp, Window};

use super::{Answer, LimitAnswer, StatusAnswer};

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
    if (limit.max(), limit.window()) == (MAX_COST, Window::MAX) { "everything".to_owned() } else { limit.to_string() }
}

#[allow(clippy::needless_pass_by_value, reason = "most values are numbers")]
fn named(name: &str, value: impl ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Adds one field per limit. The limit is part of the name if there are several.
fn push_each(fields: &mut Fields, name: &str, status: &StatusAnswer, value: impl Fn(usize, &LimitAnswer) -> u64) {
    for (i, part) in status.limits.iter().enumerate() {
        let name = if status.limits.len() > 1 { format!("{}: {name}", shown(part.limit)) } else { name.to_owned() };
        fields.push((name, value(i, part).to_string()));
    }
}

/// Returns the fields of a status, with times relative to `start`.
pub(crate) fn of_status(status: &StatusAnswer, start: Timestamp) -> Fields {
    let binding = status.limits.get(status.binding).map(|part| shown(part.limit));
    let mut fields = vec![named("at", since(start, status.at)), named("limit", binding.unwrap_or_default())];
    push_each(&mut fields, "used", status, |_, part| part.used);
    push_each(&mut fields, "remaining", status, |_, part| part.remaining);
    push_each(&mut fields, "refill_after", status, |_, part| part.refill_after);
    push_each(&mut fields, "reset_after", status, |_, part| part.reset_after);
    if status.limits.len() > 1 {
        fields.push(named("reset_after", status.reset_after));
    }
    fields
}

impl Answer {
    /// Returns the fields, with times relative to `start`.
    pub(crate) fn fields(&self, start: Timestamp) -> Fields {
        let none = || "none".to_owned();
        let mut fields = vec![named("allowed", self.allowed)];
        fields.push(named("retry_after", self.retry_after.map_or_else(none, |retry| retry.to_string())));
        fields.push(named("appended", self.appended));
        let receipt = self.receipt.map(|(at, window)| format!("of {}, for {window}", since(start, at)));
        fields.push(named("receipt", receipt.unwrap_or_else(none)));
        fields.extend(of_status(&self.status, start));
        if self.status.limits.len() > 1 {
            let retry = |i: usize, _: &LimitAnswer| self.retry_after_each.get(i).copied().unwrap_or(0);
            push_each(&mut fields, "retry_after", &self.status, retry);
            fields.push(named("binding limit", shown(self.limit)));
            fields.push(named("used of it", self.used));
            fields.push(named("remaining of it", self.remaining));
            fields.push(named("refill_after of it", self.refill_after));
        }
        fields
    }
}
