// Package install decides whether the hub installs or upgrades the agent of a member.
//
// It is asked to by label v1alpha1.LabelInstallAgent alone, and installs what the hub
// brings: the chart of its own version, with the values of the hub's namespace. What
// somebody else has installed it leaves alone, and a newer version it does not replace
// by an older one, unless an annotation of the MemberCluster says so. Attempts at one
// thing are counted before they are made, and bounded.
//
// Decisions are functions of what was seen and the time.
package install
