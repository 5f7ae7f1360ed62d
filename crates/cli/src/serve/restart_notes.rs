//! Changes of a policy that take effect only after a restart.

use tidegate_policy::{Plan, ServiceListenerPlan, ServicePlan};

/// The listeners of the decision service by key.
fn by_key(plan: &ServicePlan) -> [(&'static str, Option<&ServiceListenerPlan>); 3] {
    [("grpc", plan.grpc.as_ref()), ("http", plan.http.as_ref()), ("resp", plan.resp.as_ref())]
}

/// What a change of the policy `old` to `new` changes only after a restart, given the decision service at the start, and whether
/// the addresses of `listen` differ from those at the start.
pub(super) fn restart_notes(
    service: &ServicePlan,
    moves_gateway: bool,
    old: &Plan,
    new: &Plan,
) -> Vec<String> {
    let mut notes = Vec::new();
    if moves_gateway {
        notes.push("changed addresses in `listen` take effect after a restart".to_owned());
    }
    let all = by_key(service).into_iter().zip(by_key(&old.service)).zip(by_key(&new.service));
    for (((key, started), (_, old)), (_, new)) in all {
        notes.extend(listener_note(key, started, new));
        let has_token = |listener: Option<&ServiceListenerPlan>| {
            listener.is_some_and(|listener| listener.token.is_some())
        };
        if started.is_some() && (has_token(started) || has_token(old)) && !has_token(new) {
            notes.push(format!("`service.{key}` requires its last token until a restart"));
        }
    }
    if old.store != new.store || old.admin != new.admin {
        notes.push("changes of `store` and `admin` take effect after a restart".to_owned());
    }
    notes
}

/// How a listener differs from the one at the start.
fn listener_note(
    key: &str,
    started: Option<&ServiceListenerPlan>,
    new: Option<&ServiceListenerPlan>,
) -> Option<String> {
    let (started, new) = match (started, new) {
        (None, None) => return None,
        (None, Some(_)) => {
            return Some(format!("the new listener `service.{key}` is opened after a restart"));
        }
        (Some(_), None) => {
            return Some(format!("the removed listener `service.{key}` stays open until a restart"));
        }
        (Some(started), Some(new)) => (started, new),
    };
    let settings = [
        ("address", started.address != new.address),
        ("use of TLS", started.tls.is_some() != new.tls.is_some()),
        ("client authorities", started.client_ca != new.client_ca),
    ];
    let changed: Vec<_> =
        settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
    let list = changed.join(" and ");
    (!list.is_empty()).then(|| format!("changes of `service.{key}` take effect after a restart: its {list}"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tidegate_policy::{FileError, Files, compile};

    use super::*;

    struct TokenFiles;

    impl Files for TokenFiles {
        fn read(&self, _: &str) -> Result<Cow<'_, [u8]>, FileError> {
            Ok(Cow::Borrowed(b"token-0123456789-0123456789"))
        }
    }

    fn plan(service: &str) -> Plan {
        let policy = format!("service: {service}\nrate_limits: {{ default: {{ requests: 1, window: 1m }} }}");
        compile("policy.yaml", policy.as_bytes(), &TokenFiles)
            .unwrap_or_else(|problems| panic!("{problems}"))
            .plan
    }

    fn notes(policies: [&str; 3]) -> Vec<String> {
        let [started, old, new] = policies.map(plan);
        restart_notes(&started.service, false, &old, &new)
    }

    const HTTP: &str = "{ http: '127.0.0.1:1' }";
    const WITH_TOKEN: &str = "{ http: { address: '127.0.0.1:1', token_file: t } }";

    #[test]
    fn restart_notes_name_each_listener_that_differs_from_the_start() {
        assert!(notes([HTTP, HTTP, HTTP]).is_empty());
        let both = "{ http: '127.0.0.1:1', resp: '127.0.0.1:2' }";
        assert_eq!(notes([HTTP, HTTP, both]), ["the new listener `service.resp` is opened after a restart"]);
        assert_eq!(
            notes([both, both, HTTP]),
            ["the removed listener `service.resp` stays open until a restart"]
        );
        let moved = "{ http: '127.0.0.1:3' }";
        let note = "changes of `service.http` take effect after a restart: its address";
        assert_eq!(notes([HTTP, HTTP, moved]), [note]);
        assert_eq!(notes([HTTP, moved, moved]), [note], "it has not taken effect yet");
        assert!(notes([HTTP, moved, HTTP]).is_empty(), "the listener was never moved");
    }

    #[test]
    fn restart_notes_say_that_a_removed_token_is_still_required() {
        let note = "`service.http` requires its last token until a restart";
        assert!(notes([WITH_TOKEN, WITH_TOKEN, WITH_TOKEN]).is_empty());
        assert!(notes([HTTP, HTTP, WITH_TOKEN]).is_empty(), "a new token is required at once");
        assert_eq!(notes([WITH_TOKEN, WITH_TOKEN, HTTP]), [note]);
        assert_eq!(notes([HTTP, WITH_TOKEN, HTTP]), [note]);
        let both = "{ http: { address: '127.0.0.1:1', token_file: t }, resp: '127.0.0.1:2' }";
        let removed = "the removed listener `service.http` stays open until a restart";
        assert_eq!(notes([both, both, "{ resp: '127.0.0.1:2' }"]), [removed, note]);
    }
}
