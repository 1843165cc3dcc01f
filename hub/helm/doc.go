// Package helm installs and upgrades the agent's chart in a member, by Helm's library. It
// is the only package that knows it.
//
// A release is marked, on the Secret that Helm keeps it in, with the hub that made it,
// the member that it is for, what it was made of, and its number: labels go on to the
// releases that others make of it, and the number does not fit those.
package helm
