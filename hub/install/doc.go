// Package install decides whether the hub installs or upgrades the agent of a member.
//
// Only members with label v1alpha1.LabelInstallAgent get the agent: the chart of the
// hub's own version, with the values of the hub's namespace. Invariant: without an
// annotation of the MemberCluster nothing that somebody else installed is changed, and no
// newer version is replaced by an older one. Attempts are counted before they are made,
// and bounded.
//
// The package is pure.
package install
