// Package dashboard serves the fleet's dashboard to one person on their own machine: it reads
// by the connection that other verbs use, and writes by the kubeconfig.
//
// Other people on the machine, and all web sites in the person's browser, are taken for
// hostile. They reach the port; nothing but pages of its own origin, with the cookie that a
// one-time key was exchanged for, from a process of the person, gets an answer.
package dashboard
