//! Rules: a limiter, a request's key, and its charge.

use std::fmt;

use http::StatusCode;
use limiter_core::store::LogKey;
use limiter_core::{Error, Limiter, Policy, WindowStore};

use crate::head::{RequestHead, ResponseHead};
use crate::key::KeyExtractor;

/// A limiter, and how it charges requests.
///
/// ```
/// use http::StatusCode;
/// use exact_limiter::{Limiter, MemoryStore, policy};
/// use limiter_tower::key::ClientAddress;
/// use limiter_tower::{ActualCost, MissingKey, Rule};
///
/// // Only failed logins count: each login is charged, and refunded if it succeeds.
/// let login = Limiter::new("login", policy!("3/1m"), MemoryStore::new());
/// let rule = Rule::new(login, ClientAddress::peer(), MissingKey::Reject(StatusCode::BAD_REQUEST))
///     .settle(|response| if response.status().is_success() { ActualCost::Nothing } else { ActualCost::AsCharged })?;
/// # let _ = rule;
/// # Ok::<(), exact_limiter::Error>(())
/// ```
pub struct Rule {
    pub(crate) limiter: Limiter,
    pub(crate) key: Box<dyn KeyExtractor>,
    pub(crate) missing_key: MissingKey,
    /// One unit if `None`.
    pub(crate) charge: Option<ChargeHook>,
    pub(crate) exempt: Option<Exempt>,
    pub(crate) settle: Option<SettleHook>,
    pub(crate) handler_settles: bool,
    pub(crate) refund_abandoned: bool,
    pub(crate) keep_charge: bool,
    pub(crate) shadow: bool,
}

pub(crate) type ChargeHook = Box<dyn Fn(&RequestHead<'_>) -> Charge + Send + Sync>;
pub(crate) type SettleHook = Box<dyn Fn(&ResponseHead<'_>) -> ActualCost + Send + Sync>;
type Exempt = Box<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

/// The choice for requests for which a rule finds no key. If all such requests should share one key, let it
/// [fall back](crate::key::KeyExtractor::or) to a [`Constant`](crate::key::Constant).
#[derive(Clone, Copy, Debug)]
pub enum MissingKey {
    /// The request is refused with this status, and no rule charges it.
    Reject(StatusCode),
    /// The rule does not apply to the request.
    Skip,
}

/// The charge for a request.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The units. 0 does not charge, and the response still reports the usage.
    pub cost: u64,
    /// The policy, such as a gold customer's. `None` is the limiter's own.
    ///
    /// A charge that exceeds the limiter's own policy is neither settled nor refunded. If such charges have to be, make the largest
    /// policy the limiter's own.
    pub policy: Option<Box<Policy>>,
}

impl Charge {
    /// Returns a charge of `cost` units with the limiter's own policy.
    #[must_use]
    pub const fn units(cost: u64) -> Self {
        Self { cost, policy: None }
    }

    /// Returns the same charge with a copy of this policy.
    #[must_use]
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.policy = Some(Box::new(policy.clone()));
        self
    }
}

/// The actual cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActualCost {
    /// The charge stays as it is.
    AsCharged,
    /// The charge is refunded.
    Nothing,
    /// The charge becomes this many units, at the time at which it counts already. It may exceed the limit: then requests are
    /// denied until enough of it has expired.
    Units(u64),
    /// The whole log of the key is removed, as after a good login.
    Reset,
}

impl Rule {
    /// Returns a rule that charges one unit of `limiter` for each request.
    #[must_use]
    pub fn new<S: WindowStore>(
        limiter: Limiter<S>,
        key: impl KeyExtractor,
        missing_key: MissingKey,
    ) -> Self {
        Self {
            limiter: limiter.into_shared(),
            key: Box::new(key),
            missing_key,
            charge: None,
            exempt: None,
            settle: None,
            handler_settles: false,
            refund_abandoned: false,
            keep_charge: false,
            shadow: false,
        }
    }

    /// Sets a request's cost and policy with a function. Default: one unit, with the limiter's own policy.
    ///
    /// A policy that must be looked up, for instance in a database, comes from an outer middleware as an extension of the request.
    ///
    /// A cost above a maximum of the policy could never fit: the request is refused with 413 and without `Retry-After`.
    #[must_use]
    pub fn charge(
        mut self,
        charge: impl Fn(&RequestHead<'_>) -> Charge + Send + Sync + 'static,
    ) -> Self {
        self.charge = Some(Box::new(charge));
        self
    }

    /// Exempts requests: the rule does not apply to those for which the function returns `true`.
    #[must_use]
    pub fn exempt(
        mut self,
        exempt: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.exempt = Some(Box::new(exempt));
        self
    }

    /// Settles the charge when the response's head is known, before it is sent. The header fields show the usage afterwards.
    ///
    /// A handler can pass values, such as LLM tokens, in an extension of the response. If the store fails, the charge stays. If
    /// the service returns an error instead of a response, the charge also stays.
    ///
    /// # Errors
    /// [`NeedsExactLimit`](limiter_core::ErrorKind::NeedsExactLimit) if the limiter's policy has no exact limit.
    pub fn settle(
        mut self,
        settle: impl Fn(&ResponseHead<'_>) -> ActualCost + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        self.settle = Some(Box::new(settle));
        self.with_receipts()
    }

    /// Keeps the charge when another rule denies the request. Default: only a request that all rules admit is charged.
    ///
    /// With it, attempts to log in count for their address although the account's rule denies them:
    ///
    /// ```
    /// # use exact_limiter::{Limiter, MemoryStore, policy};
    /// # use limiter_tower::key::{Header, ClientAddress};
    /// # use limiter_tower::{MissingKey, Rule};
    /// # let store = std::sync::Arc::new(MemoryStore::new());
    /// let account = Header::new(http::HeaderName::from_static("x-account"));
    /// let rules = [
    ///     Rule::new(Limiter::new("account", policy!("5/15m"), store.clone()), account, MissingKey::Skip),
    ///     Rule::new(Limiter::new("address", policy!("50/15m"), store), ClientAddress::peer(), MissingKey::Skip).keep_charge(),
    /// ];
    /// # let _ = rules;
    /// ```
    #[must_use]
    pub fn keep_charge(mut self) -> Self {
        self.keep_charge = true;
        self
    }

    /// Hands the charge to the handler as the request's extension [`Charges`](crate::Charges), to be settled at any time: at
    /// the end of a streamed body, for instance.
    ///
    /// # Errors
    /// [`NeedsExactLimit`](limiter_core::ErrorKind::NeedsExactLimit) if the limiter's policy has no exact limit.
    pub fn settle_in_handler(mut self) -> Result<Self, Error> {
        self.handler_settles = true;
        self.with_receipts()
    }

    /// Refunds the charge if the client disconnects before the response's head is known. Default: the charge stays, because
    /// the work may have been done. Use it only for requests whose work stops with them: with it, a client that always disconnects
    /// in time is never charged. A body that breaks off after the head keeps its charge.
    ///
    /// The refund runs as a task of the tokio runtime. It is lost if the process ends or the store fails; the charge then stays
    /// until it expires.
    ///
    /// # Errors
    /// [`NeedsExactLimit`](limiter_core::ErrorKind::NeedsExactLimit) if the limiter's policy has no exact limit.
    #[cfg(feature = "tokio")]
    pub fn refund_abandoned(mut self) -> Result<Self, Error> {
        self.refund_abandoned = true;
        self.with_receipts()
    }

    /// Makes the rule a shadow: it decides and reports, but never denies, and adds no header fields.
    ///
    /// To try a new policy, add a shadow rule with the same key and a limiter with another name, so that their logs are
    /// separate:
    ///
    /// ```
    /// # use exact_limiter::{Limiter, MemoryStore, policy};
    /// # use limiter_tower::key::ClientAddress;
    /// # use limiter_tower::{MissingKey, Rule};
    /// # let store = std::sync::Arc::new(MemoryStore::new());
    /// let enforced = Limiter::new("search", policy!("5/10s"), store.clone());
    /// let candidate = Limiter::new("search candidate", policy!("20/1m"), store);
    /// let rules = [
    ///     Rule::new(enforced, ClientAddress::peer(), MissingKey::Skip),
    ///     Rule::new(candidate, ClientAddress::peer(), MissingKey::Skip).shadow(),
    /// ];
    /// # let _ = rules;
    /// ```
    ///
    /// Shadow rules charge only requests that all other rules admit.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }
}

impl Rule {
    /// Returns an error if the limiter's policy has no exact limit, because its charges can then be neither settled nor refunded.
    fn with_receipts(self) -> Result<Self, Error> {
        let log = LogKey::new(self.limiter.name(), "");
        let checked = self.limiter.policy().check_receipts();
        checked.map_err(|error| error.with_log(log)).map(|()| self)
    }

    /// Whether a response or its absence may change a charge.
    pub(crate) const fn settles(&self) -> bool {
        self.settle.is_some() || self.refund_abandoned
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Rule");
        out.field("limiter", &self.limiter.name())
            .field("missing_key", &self.missing_key);
        out.field("shadow", &self.shadow).finish_non_exhaustive()
    }
}
