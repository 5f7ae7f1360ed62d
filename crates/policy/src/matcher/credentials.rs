//! Checks the tokens and API keys of a request before it is matched.

use http::HeaderMap;
use tidegate_core::Timestamp;

use super::Matcher;
use crate::directory::Directory;
use crate::identity::HeaderError;
use crate::plan::OnInvalid;
use crate::request::ReadOptions;

impl Matcher {
    /// Rejects tokens that name different users, and invalid tokens and keys as `clients.on_invalid` says: for a caller that
    /// cannot remove a header, `remove` is `reject`.
    fn check_credentials(
        &self,
        headers: &HeaderMap,
        directory: Option<&Directory>,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), HeaderError> {
        let clients = &self.plan.clients;
        let is_checked = clients.on_invalid != OnInvalid::Forward;
        for source in self.plan.identities.token_sources() {
            source.check(headers)?;
            if is_checked && source.read(headers).is_some_and(|tokens| !tokens.is_valid(now())) {
                return Err(HeaderError::InvalidToken(source.header().clone()));
            }
        }
        let identities = &self.plan.identities;
        if let Some(source) = identities.tier_claim() {
            source.check(headers)?;
        }
        if let Some(name) =
            directory.and_then(|directory| identities.header_with_several_keys(headers, directory))
        {
            return Err(HeaderError::SeveralKeys(name.clone()));
        }
        if is_checked
            && clients.tiers.file.is_some()
            && let Some((name, key)) = identities.sent_key(headers)
        {
            let is_listed = directory.is_some_and(|directory| identities.has_listed_key(headers, directory));
            if !is_listed && !self.exempt_keys.contains(key) {
                return Err(HeaderError::UnknownKey(name.clone()));
            }
        }
        Ok(())
    }

    /// The same, but removes invalid headers if that is possible, which is an error unless the policy says `remove`. After an error
    /// with a [`challenge`](HeaderError::challenge) the request is to be counted as one without them: a guess must not be free, and
    /// names no client. Must run after [`HeaderRules`](crate::HeaderRules). `now` is called only if it is needed.
    #[expect(clippy::inline_always, reason = "most policies have none to check")]
    #[inline(always)]
    pub(crate) fn apply_credentials(
        &self,
        headers: &mut HeaderMap,
        options: ReadOptions<'_>,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), HeaderError> {
        match options {
            _ if !self.checks_credentials => Ok(()),
            ReadOptions { directory, removes_headers: true, .. } => {
                self.check_or_remove(headers, directory, now)
            }
            ReadOptions { directory, .. } => self.check_credentials(headers, directory, now),
        }
    }

    fn check_or_remove(
        &self,
        headers: &mut HeaderMap,
        directory: Option<&Directory>,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), HeaderError> {
        let mut refused = Ok(());
        loop {
            match self.check_credentials(headers, directory, &now) {
                Err(error @ (HeaderError::InvalidToken(_) | HeaderError::UnknownKey(_))) => {
                    if let HeaderError::InvalidToken(name) | HeaderError::UnknownKey(name) = &error {
                        headers.remove(name);
                    }
                    if self.plan.clients.on_invalid != OnInvalid::Remove {
                        refused = refused.and(Err(error));
                    }
                }
                Err(error) => return Err(error),
                Ok(()) => return refused,
            }
        }
    }
}
