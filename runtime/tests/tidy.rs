//! Rules of this project that no compiler checks, as tests over the sources of the whole workspace.
//!
//! Each rule is a function from sources to findings. It has a test that runs it over the workspace, and one that feeds
//! it bad text and sees it refuse: a check that can't fail is a defect. Exceptions are committed beside their rule, each
//! with its reason; one that is no longer needed is a finding too. The scanning is of text, not of syntax trees: it
//! knows comments, strings, braces and `use` trees, and nothing of macros or types.

mod tidy {
    mod banned;
    mod edges;
    mod finding;
    mod length;
    mod manifests;
    mod paths;
    mod places;
    mod planted;
    mod promises;
    mod source;
    mod token;
    mod tree;
    mod unsafety;
}
