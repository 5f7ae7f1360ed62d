//! Route selection and the path that is forwarded.

use std::borrow::Cow;

use crate::matcher::Matcher;
use crate::path::{
    NormalizedPath, PathError, decode_slashes, encoded_control, normalize, normalize_detailed,
};
use crate::plan::{EncodedSlash, Route};

/// The route of a request, and the path that is matched and forwarded.
#[derive(Debug)]
pub(crate) struct Target<'m, 'p> {
    /// The first route that matches; `None` if no route does.
    pub(crate) route: Option<&'m Route>,
    /// The normalised path, with slashes decoded if the route is configured so.
    pub(crate) path: Cow<'p, str>,
}

impl Matcher {
    /// Normalises `path` and finds its route at `host`, which must be normalised. Does not allocate if the path is already
    /// normalised.
    ///
    /// `http.encoded_slash` decides how ambiguous escapes are handled: that of the route that matches the path as sent, or
    /// that of the policy if no route matches.
    pub(crate) fn target<'p>(&self, host: &str, path: &'p str) -> Result<Target<'_, 'p>, PathError> {
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
            // The limits of both readings apply, so it is safe that the other reading may have another route.
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
