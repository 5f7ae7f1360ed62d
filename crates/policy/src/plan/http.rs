//! How ambiguous requests are handled: `http` in the policy and in a route.

/// The settings of `http`. A [`Route`](crate::Route) carries its own with the defaults of the policy filled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpOptions {
    /// How `%2F`, `%5C` and encoded control characters in a path are handled.
    pub encoded_slash: EncodedSlash,
    /// Whether limits match paths without regard to case.
    pub path_case: PathCase,
    /// Whether headers with an underscore in their name are forwarded.
    pub underscore_headers: UnderscoreHeaders,
}

impl HttpOptions {
    /// Each setting as its key and its value, as a policy writes them.
    pub fn settings(&self) -> [(&'static str, &'static str); 3] {
        [
            ("encoded_slash", self.encoded_slash.name()),
            ("path_case", self.path_case.name()),
            ("underscore_headers", self.underscore_headers.name()),
        ]
    }
}

/// How `%2F`, `%5C` and encoded control characters in a path are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EncodedSlash {
    /// The request is rejected with 400.
    #[default]
    Reject,
    /// The path is forwarded as sent; the limits of both readings apply.
    Keep,
    /// `%2F` and `%5C` become `/` before routing, matching and forwarding; control characters are rejected.
    Decode,
}

impl EncodedSlash {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Reject, Self::Keep, Self::Decode];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Keep => "keep",
            Self::Decode => "decode",
        }
    }
}

/// Whether limits match paths without regard to case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathCase {
    /// `/LOGIN` also counts against the limits of `/login`.
    #[default]
    Insensitive,
    /// Case matters.
    Sensitive,
}

impl PathCase {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Insensitive, Self::Sensitive];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insensitive => "insensitive",
            Self::Sensitive => "sensitive",
        }
    }
}

/// Whether request headers with an underscore in their name are forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnderscoreHeaders {
    /// They are removed: many servers read `X_User_Id` as `X-User-Id`.
    #[default]
    Drop,
    /// They are forwarded.
    Keep,
}

impl UnderscoreHeaders {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Drop, Self::Keep];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Keep => "keep",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{ENCODED_SLASHES, PATH_CASES, UNDERSCORE_HEADERS};

    #[test]
    fn language_lists_every_value_of_the_http_options() {
        assert_eq!(EncodedSlash::ALL.map(EncodedSlash::name), *ENCODED_SLASHES);
        assert_eq!(PathCase::ALL.map(PathCase::name), *PATH_CASES);
        assert_eq!(UnderscoreHeaders::ALL.map(UnderscoreHeaders::name), *UNDERSCORE_HEADERS);
    }
}
