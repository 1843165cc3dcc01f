// Package helm installs and upgrades the agent's chart in a member. No other package
// imports Helm's library.
//
// The Secret of a release is labelled with the hub that made it, its member, its content
// and its number. Helm copies labels to later releases, so the number shows whether they
// belong to this one.
package helm
