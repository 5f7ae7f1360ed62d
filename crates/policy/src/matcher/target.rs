//! Where a request goes, and with which path.

use std::borrow::Cow;

use crate::matcher::Matcher;
use crate::path::{
    NormalizedPath, PathError, decode_slashes, encoded_control, normalize, normalize_detailed,
};
use crate::plan::{EncodedSlash, Route};

/// The route of a request, and the path that is matched and forwarded.
#[derive(Debug)]
pub struct Target<'m, 'p> {
    /// The first route that takes the request; `None` if no route does.
    pub route: Option<&'m Route>,
    /// The path, normalised; decoded where the route says so.
    pub path: Cow<'p, str>,
}

impl Matcher {
    /// Normalises `path` and finds the route for it at `host`, which is normalised already. Nothing is allocated for a
    /// path that is normalised already.
    ///
    /// An escape that upstream servers read in more than one way is handled as `http.encoded_slash` says: of the route
    /// that takes the path as sent or, if no route does, of the policy.
    pub fn target<'p>(&self, host: &str, path: &'p str) -> Result<Target<'_, 'p>, PathError> {
        let NormalizedPath { path, ambiguous } = normalize_detailed(path)?;
        let target = Target { route: self.route(host, &path), path };
        match ambiguous {
            None => Ok(target),
            Some(escape) => self.resolve(host, target, escape),
        }
    }

    #[cold]
    fn resolve<'m, 'p>(
        &'m self,
        host: &str,
        target: Target<'m, 'p>,
        escape: u8,
    ) -> Result<Target<'m, 'p>, PathError> {
        match target.route.map_or(self.plan.http, |route| route.http).encoded_slash {
            EncodedSlash::Reject if escape.is_ascii_control() => {
                Err(PathError::EncodedControl { byte: escape })
            }
            EncodedSlash::Reject => Err(PathError::EncodedSlash { byte: escape }),
            // The limits of both readings apply, so the route may differ from that of the other reading.
            EncodedSlash::Keep => Ok(target),
            EncodedSlash::Decode => {
                if let Some(byte) = encoded_control(&target.path) {
                    return Err(PathError::EncodedControl { byte });
                }
                let path = normalize(&decode_slashes(&target.path))?.into_owned();
                let route = self.route(host, &path);
                if route.is_some_and(|route| route.http.encoded_slash != EncodedSlash::Decode) {
                    return Err(PathError::DecodedElsewhere);
                }
                Ok(Target { route, path: Cow::Owned(path) })
            }
        }
    }
}
