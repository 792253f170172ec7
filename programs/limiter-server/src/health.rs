//! Whether the server is healthy.

use std::sync::Arc;
use std::time::Duration;

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::options::Unhealthy;
use crate::service::Service;

/// How often the health for gRPC follows the state.
const FOLLOW: Duration = Duration::from_millis(250);

/// The result of health checks.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    service: Arc<Service>,
    unhealthy_when: Arc<[Unhealthy]>,
}

impl Health {
    pub(crate) fn new(service: Arc<Service>, unhealthy_when: &[Unhealthy]) -> Self {
        Self {
            service,
            unhealthy_when: unhealthy_when.into(),
        }
    }

    /// Returns the server's health: `true` if it is healthy, and its state in words.
    pub(crate) fn state(&self) -> (bool, &'static str) {
        let is_away = self.service.store().is_away();
        let has_no_rules = self.service.rules().iter().next().is_none();
        let problem = self.unhealthy_when.iter().find_map(|when| match when {
            Unhealthy::StoreDown => is_away.then_some("store down\n"),
            Unhealthy::NoRules => has_no_rules.then_some("no rules\n"),
        });
        match problem {
            Some(problem) => (false, problem),
            None if has_no_rules => (true, "OK, no rules\n"),
            None if is_away => (true, "OK, store down\n"),
            None if !self.service.store().evicting().is_empty() => {
                (true, "OK, store evicts logs\n")
            }
            None => (true, "OK\n"),
        }
    }

    /// Sets the health of these services for gRPC whenever it changes. The future never ends.
    pub(crate) async fn follow(self, reporter: HealthReporter, services: &[&str]) {
        let mut last = None;
        loop {
            let (healthy, _) = self.state();
            if last.replace(healthy) != Some(healthy) {
                let status = if healthy {
                    ServingStatus::Serving
                } else {
                    ServingStatus::NotServing
                };
                for name in services {
                    reporter.set_service_status(*name, status).await;
                }
            }
            tokio::time::sleep(FOLLOW).await;
        }
    }
}
