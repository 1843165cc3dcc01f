// Package why decides what holds up an image, a machine, a rollout or a cluster, and until
// when: a snapshot of what clusters say in, one screen out.
package why
