// Package diagnosis says what holds a machine up, in the words of whoever knows: KubeVirt,
// CDI, the scheduler, the kubelet, a quota or a webhook. One table turns all of their
// conditions, container states and phases into a reason and whether a person has to act.
// It is pure.
package diagnosis
